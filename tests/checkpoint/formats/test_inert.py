"""Nothing of a pickle is ever run, whatever it is and wherever it lies."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint.metadata
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.formats import inert, names
from slurm_robust.checkpoint.store.verification import verify


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("where", ["zip", "old", "dcp", "megatron", "deepspeed", "lightning", "index"])
def test_nothing_is_run(tmp_path: Path, where: str) -> None:
    """In every place where a format is told by a pickle, with and without a look at the values."""
    trap, folder = tmp_path / "ran", tmp_path / "step-1"
    folder.mkdir()
    pickled = pickle.dumps({"state_dict": Evil(trap), "args": Evil(trap), "iteration": 1, "global_step": 1})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
    names = {
        "zip": "model.pt",
        "old": "model.pt",
        "dcp": ".metadata",
        "megatron": "mp_rank_00/model_optim_rng.pt",
        "deepspeed": "mp_rank_00_model_states.pt",
        "lightning": "a.ckpt",
        "index": "model.bin",
    }
    path = folder / names[where]
    path.parent.mkdir(exist_ok=True)
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    path.write_bytes({"old": magic + pickled, "dcp": pickled}.get(where, packed.getvalue()))
    (folder / "model.bin.index.json").write_text('{"weight_map": {"state_dict": "model.bin"}}')
    verify(folder, values=True)
    assert not trap.exists()
    pickle.loads(pickled)
    assert trap.exists(), "the trap itself works"


def test_what_is_named_becomes_a_husk() -> None:
    """Classes, their arguments, attributes and items are there to be read, and nothing of theirs is imported."""
    value = inert.load(pickle.dumps(Path("/x")))
    assert inert.path_of(value).rpartition(".")[2] == "PosixPath"
    assert inert.load(pickle.dumps({"a": [1, (2.5, None)], "s": {3}})) == {"a": [1, (2.5, None)], "s": {3}}


def test_a_class_that_torch_saved_with_its_source(tmp_path: Path) -> None:
    """Before torch 1.6 a whole module went into the file, its class by a persistent id: a good file, and read so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    report = verify(tmp_path / "m.pt", values=True)
    assert (report.problems, report.formats) == ((), ("torch.save",))


@given(st.binary(max_size=60))
def test_any_bytes(noise: bytes) -> None:
    """A value or a ValueError, nothing else, and no gigabytes for a length that is not there."""
    with contextlib.suppress(ValueError):
        inert.load(noise)


@pytest.mark.parametrize(
    "bomb", [b"\x80\x04r\xff\xff\xff\xff.", b"\x80\x04Nr\xff\xff\xff\xff.", b"\x80\x04\x8e" + b"\xff" * 8]
)
def test_lengths_that_are_not_there(bomb: bytes) -> None:
    """A memo index or a length of four billion costs nothing."""
    with contextlib.suppress(ValueError):
        inert.load(bomb)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("torch.FloatStorage", ""),
        ("torch.FlnatStorage", "torch.FloatStorage"),
        ("torch._utils._rebuild_tensor_v2", ""),
        ("torch._utils._rebuild_tensor_v9", ""),
        ("torch._utils._rebuild_tensos_v2", "torch._utils._rebuild_tensor_v2"),
        ("torch.qint8", ""),
        ("pathlib.PosixPatH", "pathlib.PosixPath"),
        ("my.own.Class", ""),
    ],
)
def test_a_name_with_a_wrong_letter(path: str, known: str) -> None:
    """A load would fail on it; a name that is merely unknown is somebody's own, and another digit a later version."""
    assert names.meant(path) == known


def test_every_name_of_torchs_own_is_its_own() -> None:
    """None that torch may write is taken for another one."""
    kinds = (torch.dtype, torch.layout, torch.memory_format)
    there = [name for name in dir(torch) if isinstance(getattr(torch, name), kinds) or name.endswith("Storage")]
    there += [f"_utils.{name}" for name in dir(torch._utils) if name.startswith("_rebuild")]
    there += [f"distributed.checkpoint.metadata.{name}" for name in dir(torch.distributed.checkpoint.metadata)]
    assert len(there) > 80
    assert [name for name in there if names.meant(f"torch.{name}")] == []
