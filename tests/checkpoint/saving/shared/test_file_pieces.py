"""A framed piece is a file that torch.load reads, wherever its size lies."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.formats import torchfile
from slurm_robust.checkpoint.saving.shared import file_pieces
from slurm_robust.checkpoint.saving.shared.file_layout import pickled_tensor

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64, torch.float8_e4m3fn)


def tensor_piece(tensor: torch.Tensor, *, zip64: bool = False) -> bytes:
    """A whole piece of a tensor."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    frame = file_pieces.frame_tensor(pickled_tensor(tensor.dtype, tensor.shape), len(data), zip64=zip64)
    assert len(frame.before) % file_pieces.ALIGN_BYTES == 0
    return frame.before + data + frame.after


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(DTYPES),
    zip64=st.booleans(),
    seed=st.integers(),
)
def test_torch_loads_what_was_framed(shape: list[int], dtype: torch.dtype, zip64: bool, seed: int) -> None:
    """Every dtype and shape comes back bit for bit, in 32-bit and 64-bit zips; `find` sees the same bytes."""
    generator = torch.Generator().manual_seed(seed % (1 << 32))
    raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).view(shape) if raw.numel() else torch.empty(shape, dtype=dtype)
    piece = tensor_piece(tensor, zip64=zip64)
    back = torch.load(io.BytesIO(piece), weights_only=True)
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert not tensor.numel() or torch.equal(back.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))
    start, length = file_pieces.find(memoryview(piece), file_pieces.TENSOR)
    assert length == tensor.numel() * dtype.itemsize
    assert start % file_pieces.ALIGN_BYTES == 0


@pytest.mark.parametrize("zip64", [False, True])
def test_the_structure_is_known_to_verify(tmp_path, zip64: bool) -> None:
    """`srobust ckpt verify` finds nothing wrong with it, and finds it cut."""
    path = tmp_path / "piece.pt"
    piece = tensor_piece(torch.arange(1000.0), zip64=zip64)
    path.write_bytes(piece)
    with path.open("rb") as file:
        content = torchfile.read(file, whole=True)
    assert content is not None
    assert content.problems == []
    path.write_bytes(piece[:-1])
    with path.open("rb") as file:
        cut = torchfile.read(file, whole=True)
    assert cut is not None
    assert cut.problems


@given(value=st.recursive(st.none() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=9))
def test_a_value_is_read_back_whatever_is_reserved(value: object) -> None:
    """What lies behind the end of the pickle is no part of it."""
    pickled = pickle.dumps(value, protocol=2)
    frame = file_pieces.frame_object(len(pickled) + 100)
    piece = frame.before + pickled + b"\xff" * 100 + frame.after
    assert torch.load(io.BytesIO(piece), weights_only=True) == value


@given(st.binary(max_size=200))
def test_what_is_no_piece_is_refused(data: bytes) -> None:
    """Foreign bytes are a ValueError, nothing else."""
    with pytest.raises(ValueError, match="no record"):
        file_pieces.find(memoryview(data), file_pieces.TENSOR)
