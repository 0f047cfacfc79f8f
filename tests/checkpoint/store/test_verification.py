"""Every byte counts where there is a seal; without one, only what the files' own structure tells."""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.verification import Problem, verify

Make = Callable[..., Path]


class Ways(enum.Enum):
    """What a pickle rebuilds by calling its class, as transformers' TrainingArguments have them."""

    STEPS = "steps"


class Calls:
    """What has a function called when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getcwd, ()


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
    with pytest.raises(CheckpointError, match="incomplete or invalid JSON"):
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
    assert "a broken link" in verify(path).problems[0].what
    (path / "link").unlink()
    (path / "link").symlink_to(tmp_path)
    assert "a link to outside of" in verify(path).problems[0].what


@pytest.mark.parametrize("zipped", [True, False])
def test_no_tensor_and_a_call_is_no_checkpoint_that_anybody_knows(tmp_path: Path, zipped: bool) -> None:
    """A file that holds no tensor and has a function called is not said to be right, and not sealed; a person may."""
    path = tmp_path / "step-3.pt"
    torch.save({"model": Calls(), "step": 3}, path, _use_new_zipfile_serialization=zipped)
    report = verify(path)
    (problem,) = report.problems
    assert (report.verified, report.formats) == (False, ("torch.save",))
    assert problem.what.startswith("could not tell: it contains no tensor, and loading it calls posix.getcwd")
    with pytest.raises(CheckpointError, match=r"loading it calls posix\.getcwd"):
        checkpoint.seal(path)
    assert checkpoint.latest(tmp_path, unsealed=True).path is None
    ((refused, why),) = checkpoint.seal_all(tmp_path, settled_s=0).refused
    assert (refused, "posix.getcwd" in why) == (path, True)
    checkpoint.seal(path, unchecked=True)
    assert verify(path).verified


def test_calls_beside_tensors_are_usual(tmp_path: Path) -> None:
    """training_args.bin holds no tensor and calls classes of transformers; the weights are beside it, or in it."""
    path = tmp_path / "step-3"
    path.mkdir()
    torch.save({"save_strategy": Ways.STEPS}, path / "training_args.bin")
    assert not verify(path).verified
    torch.save({"w": torch.ones(2)}, path / "pytorch_model.bin")
    assert verify(path).verified
    torch.save({"w": torch.ones(2), "save_strategy": Ways.STEPS}, tmp_path / "one.pt")
    torch.save({"step": 3, "when": Path("/x")}, tmp_path / "numbers.pt")
    assert verify(tmp_path / "one.pt").verified
    assert verify(tmp_path / "numbers.pt").verified
    torch.save({"w": np.ones(2), "save_strategy": Ways.STEPS}, tmp_path / "arrays.pt")
    assert verify(tmp_path / "arrays.pt").verified
