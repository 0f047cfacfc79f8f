"""Every byte counts where there is a seal; without one, only what the files' own structure tells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import checkpoint
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
