"""What torch.save writes: every byte that a load depends on is held against its CRC or its pickle."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_material import state
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from slurm_robust.checkpoint.store.verification import verify


def saved(value: Any, **options: Any) -> bytes:
    """Its file's bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


WHOLE = saved(state())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write over."""
    return tmp_path_factory.mktemp("x") / "model.pt"


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_does_not_matter(place: Path, at: int, bit: int) -> None:
    """What passes loads bit for bit as it was saved."""
    place.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ 1 << bit]) + WHOLE[at + 1 :])
    if verify(place).verified:
        back = torch.load(place, weights_only=True)
        assert all(torch.equal(back[name], tensor) for name, tensor in state().items())


@settings(max_examples=60, deadline=None)
@given(keep=st.integers(0, len(WHOLE) - 1))
def test_any_cut_is_found(place: Path, keep: int) -> None:
    """Wherever the file ends early."""
    place.write_bytes(WHOLE[:keep])
    assert not verify(place).verified


def test_a_record_that_calls_itself_a_folder_is_found(place: Path) -> None:
    """One bit of the directory's attributes: torch then takes the record for empty, and hands out whatever is there."""
    attributes_at = 38
    entry_at = WHOLE.index(b"PK\x01\x02")
    while WHOLE[entry_at : entry_at + 4] == b"PK\x01\x02":
        at = entry_at + attributes_at
        place.write_bytes(WHOLE[:at] + bytes([WHOLE[at] ^ 0x10]) + WHOLE[at + 1 :])
        (problem,) = verify(place).problems
        assert "directory is damaged" in problem.what
        entry_at += 46 + sum(int.from_bytes(WHOLE[entry_at + n : entry_at + n + 2], "little") for n in (28, 30, 32))


def test_a_crc_that_does_not_fit_tells_where(place: Path) -> None:
    """Record, offset range and both CRCs."""
    weights = state()["layer.weight"].numpy().tobytes()
    at = WHOLE.index(weights)
    place.write_bytes(WHOLE.replace(weights, bytes([weights[0] ^ 1]) + weights[1:]))
    (problem,) = verify(place).problems
    assert "data/0" in problem.what
    assert f"bytes {at} to {at + len(weights) - 1}" in problem.what


def test_a_file_without_crcs(place: Path) -> None:
    """Torch can be told to write none: it passes as it is, and a cut is found all the same."""
    torch.serialization.set_crc32_options(False)
    try:
        whole = saved(state())
    finally:
        torch.serialization.set_crc32_options(True)
    place.write_bytes(whole)
    assert verify(place).verified
    place.write_bytes(whole[:-200])
    assert not verify(place).verified


OLD = saved(state(), _use_new_zipfile_serialization=False)
OLD_KEYS = sorted(set(re.findall(rb"(?s)X.\0\0\0(\d{6,})", OLD)))


def renamed(whole: bytes, nth: int) -> bytes:
    """The last digit of a storage's key changed where it stands for the nth time: in its tensor, or in the list."""
    at = [match.end() - 1 for match in re.finditer(re.escape(OLD_KEYS[0]), whole)][nth]
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (renamed(OLD, 0), "listed"),
        (renamed(OLD, -1), "listed"),
        (b"\x81" + OLD[1:], "begins like"),
        (OLD[:7] + b"\0\0" + OLD[9:], "begins like"),
        # Shape (16, 8) with strides (8, 1) becomes (16, 9): beyond its 128 elements.
        (OLD.replace(b"K\x10K\x08\x86", b"K\x10K\x09\x86"), "reaches beyond"),
        (OLD.replace(b"K\x10K\x08\x86", b"K\x10K\x88\x86"), "reaches beyond"),
    ],
)
def test_what_an_old_file_tells_of_itself_fits_together(place: Path, damaged: bytes, what: str) -> None:
    """There is no CRC; keys, their list, shapes and the beginning are held against each other."""
    place.write_bytes(OLD)
    assert verify(place).verified
    assert damaged != OLD
    place.write_bytes(damaged)
    problems = verify(place).problems
    assert what in problems[0].what, problems


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", ["zip", "old", "safetensors"])
def test_values_that_are_not_finite_are_counted(tmp_path: Path, dtype: torch.dtype, bad: float, form: str) -> None:
    """The tensor is named; only where it is asked for."""
    tensors = {"good": torch.ones(10).to(dtype), "bad": torch.tensor([1.0, bad, 2.0, bad]).to(dtype)}
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=form == "zip")
    assert verify(path).verified
    if form == "old" and dtype is torch.float8_e5m2:
        return  # its storages' sizes are not told there
    (problem,) = verify(path, values=True).problems
    assert problem.what == "bad: 2 of 4 values are NaN or Inf"


def test_what_a_callback_keeps_is_no_weight(tmp_path: Path) -> None:
    """Lightning's ModelCheckpoint starts from an infinite `kth_value`: that is no damage; a weight's infinity is."""
    kept = {"callbacks": {"ModelCheckpoint{'monitor': None}": {"kth_value": torch.tensor(math.inf)}}}
    for weight, verified in ((1.0, True), (math.inf, False)):
        torch.save({**kept, "state_dict": {"w": torch.tensor([weight])}}, tmp_path / "step=1.ckpt")
        assert verify(tmp_path / "step=1.ckpt", values=True).verified is verified
