from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.sources import small_files


def test_words_numbers_and_names(tmp_path: Path) -> None:
    """What stands in /sys, as it is meant."""
    (tmp_path / "rate").write_text("4096\t131072\x00\t6291456 \n")
    assert small_files.word(tmp_path / "rate") == "4096 131072 6291456"
    (tmp_path / "count").write_text("42\n")
    assert (small_files.number(tmp_path / "count"), small_files.count(tmp_path / "count")) == (42, 42)
    (tmp_path / "count").write_text("-1\n")
    assert (small_files.number(tmp_path / "count"), small_files.count(tmp_path / "count")) == (-1, None)
    (tmp_path / "mlx5_10").mkdir()
    (tmp_path / "mlx5_9").mkdir()
    (tmp_path / "link").symlink_to("../0000:03:00.0")
    assert small_files.names(tmp_path) == ["count", "link", "mlx5_9", "mlx5_10", "rate"]
    assert small_files.target(tmp_path / "link") == "0000:03:00.0"


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    """No file, a folder instead of a file, a file instead of a folder."""
    assert small_files.word(tmp_path / "none") == small_files.word(tmp_path) == ""
    assert small_files.number(tmp_path / "none") is None
    assert small_files.names(tmp_path / "none") == []
    (tmp_path / "file").write_text("")
    assert small_files.names(tmp_path / "file") == []
    assert small_files.target(tmp_path / "file") == ""


@pytest.mark.parametrize(
    ("text", "decimal", "hexadecimal"),
    [
        ("0x1003", None, 0x1003),
        ("10\n", 10, 16),
        ("N/A (no PMA)", None, None),
        ("", None, None),
        ("٣", None, None),
        ("1e9", None, 0x1E9),
        ("9" * 30, None, None),
        ("-5", -5, None),
        ("0x", None, None),
    ],
)
def test_numbers(text: str, decimal: int | None, hexadecimal: int | None) -> None:
    """Only what the kernel writes is a number: no other alphabet's digits, nothing longer than 64 bits."""
    assert small_files.integer(text) == decimal
    assert small_files.hexadecimal(text) == hexadecimal


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """Numbers, names and their order are total."""
    small_files.integer(text)
    small_files.hexadecimal(text)
    assert small_files.natural(text) == small_files.natural(text)
    assert not (small_files.is_name(text) and ("/" in text or text in (".", "..")))


def test_what_is_there_and_what_is_gone(tmp_path: Path) -> None:
    """Gone is only what its folder does not have: a folder that is not there, or is closed, says nothing."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert small_files.exists(tmp_path / "file")
    assert small_files.is_folder(tmp_path)
    assert not small_files.is_folder(tmp_path / "file")
    assert not small_files.exists(tmp_path / "loop")
    assert not small_files.is_gone(tmp_path / "file")
    assert not small_files.is_gone(tmp_path / "loop")
    assert small_files.is_gone(tmp_path / "none")
    assert not small_files.is_gone(tmp_path / "none" / "none")
    assert not small_files.is_gone(tmp_path / "file" / "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_closed_folder_raises_nothing(tmp_path: Path) -> None:
    """As a plain user, who may not look into it."""
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed/file").write_text("x")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(54321)
        path = tmp_path / "closed/file"
        found = [
            small_files.exists(path),
            small_files.is_folder(path),
            small_files.is_gone(path),
            small_files.word(path),
            small_files.names(path.parent),
        ]
        os.write(writer, repr(found).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    said = os.read(reader, 1000)
    os.close(reader)
    assert said == b"[False, False, False, '', []]"
