"""Every byte counts where there is a seal; without one, only what the files' own structure tells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.verification import Problem, verify

Make = Callable[..., Path]


def test_a_whole_one(make: Make) -> None:
    """It is verified, sealed, and tells its step."""
    report = verify(make(12))
    assert (report.verified, report.sealed, report.step, report.problems) == (True, True, 12, ())


@given(place=st.integers(0, 1999), bit=st.integers(0, 7), cut=st.booleans())
def test_any_flipped_bit_or_cut_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int, cut: bool
) -> None:
    """Whichever bit changes, or wherever the file ends early, its file is named."""
    path = tmp_path_factory.mktemp("step") / "step-1"
    path.mkdir()
    data = bytes(range(250)) * 8
    (path / "w").write_bytes(data)
    checkpoint.seal(path)
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    (path / "w").write_bytes(data[:place] if cut else changed)
    report = verify(path)
    shutil.rmtree(path.parent)
    assert not report.verified
    assert [problem.file for problem in report.problems] == ["w"]


def test_without_a_seal_structure_only(make: Make) -> None:
    """It says that there is no seal, and an empty shard is a problem all the same."""
    path = make(3, sealed=False)
    report = verify(path)
    assert (report.verified, report.sealed, report.step) == (True, False, 3)
    (path / "rank-00001.pt").write_bytes(b"")
    assert verify(path).problems == (Problem("rank-00001.pt", "empty file"),)


def test_an_empty_folder_is_not_verified(directory: Path) -> None:
    """Nothing in it: nothing to resume from."""
    assert verify(directory).problems == (Problem("", "holds no file"),)


def test_nothing_there(directory: Path) -> None:
    """A path that does not exist is an error that says what to type."""
    with pytest.raises(CheckpointError, match="srobust ckpt list"):
        verify(directory / "nope")


def test_a_mismatch_tells_both_digests_and_where(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large file, the part that differs; of a small one, all of it."""
    monkeypatch.setattr(files, "PART_BYTES", 1 << 20)
    path = make(3, content=b"w" * (5 << 19))
    before = {file.name: file.xxh3_128 for file in checkpoint.seal(path).files}
    for name, at in (("rank-00000.pt", (1 << 20) + 5), ("rank-00001.pt", 5 << 19)):
        with (path / name).open("r+b") as file:
            file.seek(at)
            file.write(b"!")
    first, second = verify(path).problems
    assert before["rank-00000.pt"] in first.what
    assert files.digest(path / "rank-00000.pt") in first.what
    assert f"bytes {1 << 20} to {(2 << 20) - 1}: xxh3-64" in first.what
    assert f"bytes {2 << 20} to {(5 << 19) + 1}: xxh3-64" in second.what
    small = make(4)
    (small / "rank-00000.pt").write_bytes(b"x" * 7002)
    assert "bytes 0 to 7001" in verify(small).problems[0].what


def test_a_false_alarm_can_be_overruled(make: Make) -> None:
    """Nobody is held up by a check of ours that is wrong."""
    path = make(3, sealed=False)
    (path / "marker.json").write_text("{")
    with pytest.raises(CheckpointError, match="no whole JSON"):
        checkpoint.seal(path)
    checkpoint.seal(path, unchecked=True)
    assert verify(path).verified


def test_links(make: Make, tmp_path: Path) -> None:
    """One that leads nowhere or out is a problem; one that stays inside is a file like any other."""
    path = make(3, sealed=False)
    (path / "link").symlink_to("rank-00000.pt")
    assert verify(path).verified
    (path / "link").unlink()
    (path / "link").symlink_to("gone")
    assert "leads nowhere" in verify(path).problems[0].what
    (path / "link").unlink()
    (path / "link").symlink_to(tmp_path)
    assert "leads out" in verify(path).problems[0].what
