"""A secret is one word in a plain file that nobody else may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.wire import secret_file
from slurm_robust.wire.secret_file import SecretFileError


def secret(path: Path, text: str, mode: int = 0o600) -> Path:
    """A file with this text."""
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_word_is_read_without_the_end_of_its_line(tmp_path: Path) -> None:
    """Also through a link, as secrets are often mounted."""
    secret(tmp_path / "s", " https://a/b \n")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    assert secret_file.read(tmp_path / "s", 100) == secret_file.read(tmp_path / "link", 100) == "https://a/b"


@pytest.mark.parametrize(
    ("mode", "others", "read"), [(0o640, 0o077, False), (0o640, 0o027, True), (0o604, 0o027, False)]
)
def test_one_that_others_may_read_is_refused(tmp_path: Path, mode: int, others: int, read: bool) -> None:
    """Unless the caller allows a group."""
    path = secret(tmp_path / "s", "word", mode)
    if read:
        assert secret_file.read(path, 100, others=others) == "word"
    else:
        with pytest.raises(SecretFileError, match=f"chmod 600 {path}"):
            secret_file.read(path, 100, others=others)


@pytest.mark.parametrize("text", ["", " ", "two words", "two\nlines", "a\0b", "x" * 101])
def test_anything_but_one_word_is_refused_and_not_told(tmp_path: Path, text: str) -> None:
    """The message names the file, and nothing of what it holds."""
    path = secret(tmp_path / "s", text)
    with pytest.raises(SecretFileError) as refused:
        secret_file.read(path, 100)
    assert str(refused.value) == f"{path} does not hold one word on one line: the secret alone"


def test_a_pipe_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    """None of them is waited for."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (
        ("pipe", "not a plain file"),
        (".", "not a plain file"),
        ("none", "cannot be read"),
        ("\0", "cannot"),
    ):
        with pytest.raises(SecretFileError, match=why):
            secret_file.read(tmp_path / name, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_one_of_another_user_is_refused_where_it_has_to_be_ones_own(tmp_path: Path) -> None:
    """Root may read everything, and some secrets have to be its own."""
    path = secret(tmp_path / "s", "word")
    os.chown(path, 12345, -1)
    assert secret_file.read(path, 100) == "word"
    with pytest.raises(SecretFileError, match="belongs to another user"):
        secret_file.read(path, 100, own=True)
