"""A seal names files inside of its checkpoint and nothing else, and is only put on what is whole."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint import demote
from slurm_robust.checkpoint.base.checkpoint_files import unsafe
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.demotion import demotion
from slurm_robust.checkpoint.store.find import latest
from slurm_robust.checkpoint.store.seals import read, seal, step_in_name

Make = Callable[..., Path]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000100", 100),
        ("iter_0001234", 1234),
        ("global_step7", 7),
        ("checkpoint-500", 500),
        ("epoch=2-step=300.ckpt", 300),
        ("epoch=2-step=300-val_loss=0.25.ckpt", 300),
        ("epoch=2-step=300-v1.ckpt", 300),
        ("model--val_loss=1.23-step=7-consumed_samples=56.0-last", 7),
        ("model-step-7.pt", 7),
        ("0000042", 42),
        ("step-0", 0),
        ("logs", None),
        ("run-2024", None),
        ("v1.5", None),
    ],
)
def test_steps_in_names(name: str, step: int | None) -> None:
    """The names that frameworks give tell their steps; other numbers are not taken for one."""
    assert step_in_name(Path("/x") / name) == step


@given(st.text(alphabet="a./\\\0", max_size=12))
def test_names_never_lead_out(name: str) -> None:
    """A name that passes stays in the folder it is relative to."""
    if not unsafe(name):
        assert os.path.normpath(Path("/ckpt") / name).startswith("/ckpt/")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": []}, "lists no file"),
        ({"version": 9}, "version 9"),
        ({"step": "x"}, "cannot be read"),
        ({"step": -1}, "cannot be read"),
        ({"step": 10**30}, "cannot be read"),
        ({"step": 2}, "changed since it was written"),
        ({"files": [{"name": "../x"}]}, "cannot be read"),
        (
            {"files": [{"name": "../x", "size_bytes": 1, "xxh3_128": "0" * 32, "mtime_ns": 0, "inode": 0}]},
            "outside of the checkpoint",
        ),
        (
            {"files": [{"name": "x", "size_bytes": -1, "xxh3_128": "0" * 32, "mtime_ns": 0, "inode": 0}]},
            "cannot be read",
        ),
        ({"files": [{"name": "x", "size_bytes": 1, "xxh3_128": "zz", "mtime_ns": 0, "inode": 0}]}, "cannot be read"),
    ],
)
def test_a_malformed_seal_is_refused(make: Make, directory: Path, change: dict[str, object], why: str) -> None:
    """It names the file and what is wrong, and the checkpoint is passed over."""
    path = make(1)
    raw = json.loads((path / "seal.json").read_text())
    (path / "seal.json").write_text(json.dumps(raw | change))
    with pytest.raises(CheckpointError, match=why):
        read(path)
    assert latest(directory).path is None


def test_any_flipped_bit_of_a_seal_is_found(make: Make) -> None:
    """A step of 1001 that was 1: each byte is under the seal's own CRC, or the seal cannot be read at all."""
    path = make(1)
    whole = read(path)
    where = path / "seal.json"
    raw = where.read_bytes()
    harmless = raw.index(b'"check"'), raw.index(b'"check"') + len(b'"check"')  # without the CRC's name there is none
    for at in range(len(raw)):
        for bit in {0, at % 8}:
            where.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
            if harmless[0] <= at < harmless[1]:
                continue
            with pytest.raises(CheckpointError):
                read(path)
    where.write_bytes(raw)
    assert read(path) == whole


def test_a_seal_of_before_it_had_a_crc(make: Make) -> None:
    """It counts as it did."""
    path = make(1)
    raw = json.loads((path / "seal.json").read_text())
    assert raw.pop("check")
    (path / "seal.json").write_text(json.dumps(raw))
    assert latest(path.parent).path == path


def test_a_seal_that_is_none(make: Make, directory: Path) -> None:
    """A pipe, which would be waited for, and a file larger than memory: neither is read."""
    for step in (1, 2):
        make(step)
        (directory / f"step-{step:08d}" / "seal.json").unlink()
    os.mkfifo(directory / "step-00000001" / "seal.json")
    with (directory / "step-00000002" / "seal.json").open("wb") as file:
        file.truncate(1 << 40)
    found = latest(directory)
    assert found.path is None
    assert ["not a seal: not a regular file" in why for _, why in found.passed_over] == [True, True]


@given(st.binary(max_size=200))
def test_any_bytes_for_a_seal(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    """A seal that is none is a CheckpointError and nothing else."""
    path = tmp_path_factory.mktemp("x")
    (path / "seal.json").write_bytes(noise)
    with pytest.raises(CheckpointError):
        read(path)


def test_a_truncated_torch_file_is_not_sealed(directory: Path) -> None:
    """A zip without its directory, or with a record whose CRC does not fit, is named."""
    path = directory / "step-1"
    path.mkdir()
    with zipfile.ZipFile(path / "model.pt", "w") as archive:
        archive.writestr("data/0", b"weights" * 100)
    whole = (path / "model.pt").read_bytes()
    (path / "model.pt").write_bytes(whole[:-30])
    with pytest.raises(CheckpointError, match=r"model.pt: zip directory"):
        seal(path)
    (path / "model.pt").write_bytes(whole.replace(b"weights", b"weighty", 1))
    with pytest.raises(CheckpointError, match="record 'data/0'"):
        seal(path)
    (path / "model.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="empty file"):
        seal(path)
    (path / "model.pt").write_bytes(whole)
    assert seal(path).step == 1


def test_what_cannot_be_sealed(directory: Path, tmp_path: Path) -> None:
    """Nothing there, nothing in it, no step told, a link that leads out: each is said."""
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        seal(directory / "step-1")
    (directory / "step-1").mkdir()
    with pytest.raises(CheckpointError, match="no file to seal"):
        seal(directory / "step-1")
    (directory / "best").mkdir()
    (directory / "best" / "w").write_text("x")
    with pytest.raises(CheckpointError, match="--step N"):
        seal(directory / "best")
    (tmp_path / "secret").write_text("x")
    (directory / "step-1" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="a link to outside of"):
        seal(directory / "step-1")


def test_sealing_ends_a_demotion(make: Make, directory: Path) -> None:
    """A demoted checkpoint comes back when it is sealed anew, also where the marker was not removed."""
    path = make(4)
    demote(path, "died twice")
    marker = (path / "demoted.json").read_bytes()
    assert demotion(path) == "died twice"
    (path / "extra").write_text("x")
    seal(path)
    assert not (path / "demoted.json").exists()
    (path / "demoted.json").write_bytes(marker)
    assert latest(directory).path == path


def test_an_unreadable_marker_still_demotes(make: Make) -> None:
    """Somebody did not want it used: a broken marker is not taken for none."""
    path = make(4)
    (path / "demoted.json").write_text("{")
    assert "cannot be read" in demotion(path)
