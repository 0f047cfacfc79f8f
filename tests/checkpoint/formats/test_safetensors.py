"""safetensors: what passes loads, what does not load is found, but for bytes of a tensor, which nothing speaks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.distributed.checkpoint.filesystem import SerializationFormat

from slurm_robust.checkpoint.store.verification import verify

WHOLE = save({"w": torch.ones(4, 3), "b": torch.arange(5), "e": torch.empty(0)}, {"format": "pt"})
LENGTH = int.from_bytes(WHOLE[:8], "little")
PLACE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def made(header: Any, size_bytes: int = 4) -> bytes:
    """A file with a header of that content."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size_bytes)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A file to write over."""
    return tmp_path / "model.safetensors"


def test_every_bit_of_the_header(place: Path) -> None:
    """Whichever is flipped: it is found, or the file loads (with another name, say, which only a seal finds)."""
    for at in range(8 + LENGTH):
        for bit in range(8):
            raw = WHOLE[:at] + bytes([WHOLE[at] ^ 1 << bit]) + WHOLE[at + 1 :]
            place.write_bytes(raw)
            try:
                load(raw)
            except SafetensorError:
                loads = False
            else:
                loads = True
            assert loads or not verify(place).verified, f"byte {at}, bit {bit}: {raw[8:][:LENGTH]!r}"


@pytest.mark.parametrize(
    "header",
    [
        {"a": {**PLACE, "dtype": "H32"}},
        {"a": {**PLACE, "dtype": "F33"}},
        {"a": {**PLACE, "shape": [True]}},
        {"a": PLACE, "__metadata__": {"step": 1}},
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": NaN}',
    ],
)
def test_headers_that_do_not_load(place: Path, header: Any) -> None:
    """Found by us as by the library."""
    raw = made(header)
    with pytest.raises(SafetensorError):
        load(raw)
    place.write_bytes(raw)
    assert not verify(place).verified


@pytest.mark.parametrize(
    ("header", "size_bytes"),
    [
        ({}, 0),
        ({"__metadata__": {"format": "pt"}}, 0),
        ({"__metadata__": None, "a": PLACE}, 4),
        ({"a": {**PLACE, "shape": []}}, 4),
        ({"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, 4),
        ({"a": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}, 4),
        ({"a": {"dtype": "F8_E3M4FN", "shape": [4], "data_offsets": [0, 4]}}, 4),
    ],
)
def test_headers_that_are_good(place: Path, header: Any, size_bytes: int) -> None:
    """Also with types that a later version of the library knows."""
    place.write_bytes(made(header, size_bytes))
    assert verify(place).problems == ()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_into_its_own_shards(tmp_path: Path) -> None:
    """`.distcp` files may hold safetensors, too."""
    path = tmp_path / "step-7"
    writer = dcp.FileSystemWriter(str(path), serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"w": torch.ones(4, 2), "b": torch.ones(3), "lr": 0.1}, storage_writer=writer, no_dist=True)
    assert verify(path).problems == ()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("options", [{"save_distributed": True}, {"fqn_to_index_mapping": {"w": 1, "b": 2}}, {}])
def test_what_torch_writes_for_the_hub(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each rank's own files have no index, and need none; what has one is held against it."""
    path = tmp_path / "step-7"
    state = {"w": torch.ones(4, 2), "b": torch.ones(3)}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(path), **options), no_dist=True)
    assert verify(path).problems == ()
