"""Every format in real files: recognised, and whatever is cut, dropped or flipped in it is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_material import MAKERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint.seals import contents
from slurm_robust.checkpoint.verification import verify


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One of each, made once; tests copy it."""
    return request.param, MAKERS[request.param][0](tmp_path_factory.mktemp("made"))


@pytest.fixture
def copy(made: tuple[str, Path], tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return copied(made[1], tmp_path)


def copied(path: Path, to: Path) -> Path:
    """A copy of a folder or of a single file."""
    if path.is_dir():
        return shutil.copytree(path, to / path.name)
    return Path(shutil.copy(path, to / path.name))


def files(path: Path) -> Iterator[Path]:
    """Every file of a checkpoint."""
    yield from (path / name for name in contents(path)) if path.is_dir() else iter([path])


def test_a_whole_one_is_recognised(made: tuple[str, Path], copy: Path) -> None:
    """Its format, step and ranks are told, and nothing is wrong with it, sealed or not, values too."""
    _, recognised, world_size = MAKERS[made[0]]
    report = verify(copy, values=True)
    assert report.problems == ()
    assert (report.verified, report.sealed, report.step) == (True, False, 7)
    assert recognised in report.formats
    assert report.world_size == world_size
    sealed = checkpoint.seal(copy)
    assert (sealed.step, sealed.world_size) == (7, world_size)
    assert recognised in sealed.layout
    assert verify(copy).verified


def test_whatever_is_cut_is_found_without_a_seal(copy: Path) -> None:
    """Every file, at its beginning, in the middle, near its end; a cut file is named, or the one that tells of it."""
    for path in files(copy):
        whole = path.read_bytes()
        size = len(whole)
        for keep in sorted({0, 1, 3, 8, size // 4, size // 2, 3 * size // 4, size - 30, size - 1} & set(range(size))):
            os.truncate(path, keep)
            assert not verify(copy).verified, f"{path.name} cut to {keep} of {size} bytes"
            path.write_bytes(whole)
    assert verify(copy).verified


def test_zeros_where_a_file_was_are_found(copy: Path) -> None:
    """A crash may leave the size without the bytes."""
    for path in files(copy):
        whole = path.read_bytes()
        if path.name == "latest":
            continue
        path.write_bytes(bytes(len(whole)))
        assert not verify(copy).verified, path.name
        path.write_bytes(whole)


@pytest.mark.parametrize("made", [n for n in MAKERS if not n.startswith(("torch.save", "Lightning"))], indirect=True)
def test_whatever_is_missing_is_found_without_a_seal(made: tuple[str, Path], copy: Path) -> None:
    """Each file of those that belong together; a plain folder does not tell how many they should be."""
    # What a Trainer writes for some trainings only cannot be missed.
    optional = {"training_args.bin", "optimizer.pt", "latest", "rng_state_1.pth"}
    for path in files(copy):
        if path.name in optional:
            continue
        whole = path.read_bytes()
        path.unlink()
        assert not verify(copy).verified, path.name
        path.write_bytes(whole)
    assert verify(copy).verified


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_seal_finds_any_flip_cut_or_loss(made: tuple[str, Path], copy: Path, data: st.DataObject) -> None:
    """Any bit of any file, any length but its own, any file."""
    if not checkpoint.verify(copy).sealed:
        checkpoint.seal(copy)
    path = data.draw(st.sampled_from(sorted(files(copy))))
    whole = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    how = data.draw(st.sampled_from(["flip", "cut", "drop"]))
    if how == "flip":
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    elif how == "cut":
        os.truncate(path, at)
    else:
        path.unlink()
    problems = verify(copy).problems if copy.exists() else ()
    path.write_bytes(whole)
    assert [problem.file for problem in problems] == [path.relative_to(copy).as_posix()] or not copy.is_dir()
    assert copy.is_dir() or how == "drop" or problems


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_noise_is_a_verdict_and_no_crash(made: tuple[str, Path], copy: Path, data: st.DataObject) -> None:
    """Without a seal not every flipped bit can be seen, but none ends in an exception."""
    path = data.draw(st.sampled_from(sorted(files(copy))))
    whole = path.read_bytes()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    verify(copy)
    path.write_bytes(whole)
