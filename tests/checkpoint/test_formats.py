"""Every format in real files: recognised, and whatever is cut, dropped or flipped in it is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch
from checkpoint_material import MAKERS, state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base.checkpoint_files import contents
from slurm_robust.checkpoint.formats import dcp
from slurm_robust.checkpoint.store import bad_values
from slurm_robust.checkpoint.store.bad_values import tensors_of
from slurm_robust.checkpoint.store.verification import verify


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
        used = size - PADDING_BYTES if path.parent.name.startswith("step-00000007-") else size
        for keep in sorted({0, 1, 3, 8, size // 4, size // 2, 3 * size // 4, used - 30, used - 1} & set(range(size))):
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


ALONE = ("torch.save", "torch.save, old", "Lightning", "Accelerate", "safetensors")
"""One file, or files of which none says that another one belongs to it."""


@pytest.mark.parametrize("made", [n for n in MAKERS if n not in ALONE or n == "safetensors"], indirect=True)
def test_other_bytes_where_a_file_was_are_found(copy: Path) -> None:
    """Of the same size, and of no format at all: whatever lies where the framework's own loader will look."""
    for path in files(copy):
        whole = path.read_bytes()
        if path.name == "latest" or path.suffix == ".json":
            continue
        path.write_bytes((b"garbage " * (len(whole) // 8 + 1))[: len(whole)])
        report = verify(copy)
        assert not report.verified, path.name
        path.write_bytes(whole)
    assert verify(copy).verified


PADDING_BYTES = 4096
"""The Checkpointer's file is a memory image, whose last page is filled up with zeros that nothing speaks of."""


@pytest.mark.parametrize("made", [n for n in MAKERS if n not in ALONE], indirect=True)
def test_whatever_is_missing_is_found_without_a_seal(made: tuple[str, Path], copy: Path) -> None:
    """Each file of those that belong together; a plain folder does not tell how many they should be."""
    # What a Trainer writes for some trainings only cannot be missed.
    optional = {"training_args.bin", "optimizer.pt", "latest", "rng_state_1.pth", "meta.pt", "io.json"}
    for path in files(copy):
        if path.name in optional:
            continue
        whole = path.read_bytes()
        path.unlink()
        assert not verify(copy).verified, path.name
        path.write_bytes(whole)
    assert verify(copy).verified


@pytest.mark.parametrize("made", ["Megatron-LM torch_dist"], indirect=True)
def test_megatrons_save_that_died_early_is_not_whole(copy: Path) -> None:
    """`common.pt` is there first, `metadata.json` last: what lies between is no checkpoint."""
    (copy / "metadata.json").unlink()
    assert [problem.file for problem in verify(copy).problems] == ["metadata.json"]
    for path in files(copy):
        if path.name != "common.pt":
            path.unlink()
    report = verify(copy)
    assert (report.formats[0], report.verified, report.step) == ("Megatron-LM", False, 7)


@pytest.mark.parametrize("made", ["DCP, async"], indirect=True)
def test_an_asynchronous_save_that_is_not_done_is_not_whole(copy: Path) -> None:
    """All shards are there, `.metadata` is not: it is written last. A rewritten one leaves `.metadata.tmp` behind."""
    whole = (copy / ".metadata").read_bytes()
    (copy / ".metadata").rename(copy / ".metadata.tmp")
    (problem,) = verify(copy).problems
    assert (problem.file, "written last" in problem.what) == (".metadata", True)
    (copy / ".metadata").write_bytes(whole)
    assert verify(copy).verified


@pytest.mark.parametrize("made", ["Megatron-LM", "DeepSpeed", "DeepSpeed ZeRO 3"], indirect=True)
def test_a_rank_of_another_step_is_found(copy: Path) -> None:
    """A save over an older one that died half way: each file is whole, and they do not belong together."""
    path = max(path for path in files(copy) if path.name.endswith(("model_optim_rng.pt", "model_states.pt")))
    saved = torch.load(path, weights_only=False)
    torch.save({**saved, "iteration": 6, "global_steps": 6}, path)
    (problem,) = verify(copy).problems
    assert problem.file == path.relative_to(copy).as_posix()
    assert "of step 6, the first rank's is of 7" in problem.what


@pytest.mark.parametrize("made", ["DeepSpeed ZeRO 2"], indirect=True)
def test_a_missing_expert_is_found(copy: Path) -> None:
    """A mixture of experts has a file for each, numbered through in every layer."""
    for layer in range(2):
        for expert in range(4):
            torch.save(state(), copy / f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt")
    assert verify(copy).verified
    (copy / "layer_1_expert_3_mp_rank_00_model_states.pt").unlink()
    (copy / "layer_0_expert_0_mp_rank_00_model_states.pt").unlink()
    assert [problem.file for problem in verify(copy).problems] == [
        "layer_0_expert_0_mp_rank_00_model_states.pt",
        "layer_1_expert_3_mp_rank_00_model_states.pt",
    ]


@pytest.mark.parametrize("made", ["DCP of FSDP2"], indirect=True)
def test_metadata_is_read_once_for_all_shards(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take seconds, and there may be thousands of them."""
    read: list[Path] = []
    real = dcp._shards
    monkeypatch.setattr(dcp, "_shards", lambda path: (read.append(path), real(path))[1])
    assert list(bad_values.not_finite(copy, contents(copy))) == []
    assert read == [copy / ".metadata"]


@pytest.mark.parametrize("made", MAKERS, indirect=True)
def test_a_flip_in_a_tensor(made: tuple[str, Path], copy: Path) -> None:
    """Found without a seal where the format keeps CRCs; where it keeps none, a seal finds it: docs/checkpoints.md."""
    flipped: list[tuple[Path, int]] = []
    for path in files(copy):
        with path.open("rb") as file:
            places = [(path, offset + size_bytes // 2) for _, _, offset, size_bytes in tensors_of(path, file, {})]
        flipped += places
        for _, at in places:
            with path.open("r+b") as file:
                flip(file, at)
                has_crcs = path.suffix != ".safetensors" and made[0] not in ("torch.save, old", "Checkpointer")
                assert verify(copy).verified != has_crcs, f"{path.name}, byte {at}"
                flip(file, at)
    checkpoint.seal(copy)
    path, at = flipped[0]
    with path.open("r+b") as file:
        flip(file, at)
    assert not verify(copy).verified


def flip(file: IO[bytes], at: int) -> None:
    """One bit of it."""
    byte = os.pread(file.fileno(), 1, at)[0]
    os.pwrite(file.fileno(), bytes([byte ^ 4]), at)


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
