"""NeMo 2 for real_frameworks.py: its own ModelCheckpoint and AutoResume, in a trainer of Lightning's on one CPU.

    pip install lightning nemo_toolkit==2.5.3 --no-deps   # and what Lightning needs
    python scripts/real_frameworks.py nemo

The rest of NeMo cannot be loaded without the libraries of GPUs. So stand-ins replace what these files import beyond
Lightning, and torch.distributed.checkpoint writes what Megatron's strategy would write into the folder.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from slurm_robust import checkpoint
from slurm_robust.checkpoint.integrations import Sealer, lightning_callback, resume_path

_OWN = ("nemo.lightning.resume", "nemo.lightning.ckpt_utils", "nemo.lightning.pytorch.callbacks.model_checkpoint")
"""What is loaded from NeMo's own files."""


class _Anything(type):
    """A class that has whatever is asked of it."""

    def __getattr__(cls, name: str) -> Any:
        return _anything(name)


def _anything(name: str) -> Any:
    """A class of that name whose instances' methods do nothing, and answer False."""
    if name.startswith("__"):
        raise AttributeError(name)
    members = {
        "__init__": lambda *_, **__: None,
        "__getattr__": lambda *_: lambda *_, **__: False,
        "get_instance": classmethod(lambda cls: cls()),
    }
    return _Anything(name, (), members)


class _StandIn(types.ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, _anything(name))
        return self.__dict__[name]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the files of `_OWN`, and stand-ins for the rest of NeMo and Megatron."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """As importlib wants it."""
        if fullname.partition(".")[0] not in ("nemo", "megatron"):
            return None
        if fullname in _OWN:
            return importlib.util.spec_from_file_location(fullname, self.root / f"{fullname.replace('.', '/')}.py")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        """One that has everything."""
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing, but for what has to tell the truth."""
        truths: dict[str, dict[str, Any]] = {
            "nemo.utils.get_rank": {"is_global_rank_zero": lambda: True},
            "nemo.utils.msc_utils": {"is_multistorageclient_url": lambda _: False},
            "nemo.utils.model_utils": {"uninject_model_parallel_rank": lambda path: path},
            "nemo.utils.exp_manager": {"get_git_hash": lambda: (False, "")},
            "nemo.utils.app_state": {"AppState": _state},
            "nemo.lightning.io.pl": {"TrainerContext": _Context},
        }
        for name, value in truths.get(module.__name__, {}).items():
            setattr(module, name, value)


def _state() -> types.SimpleNamespace:
    """NeMo's, of a run that keeps no logs."""
    none = {name: [] for name in ("files_to_move", "files_to_copy", "cmd_args")}
    return types.SimpleNamespace(restore=False, log_dir=Path("/dev/null"), **none)


class _Context:
    """Writes what NeMo writes beside the weights, when it does."""

    @classmethod
    def from_trainer(cls, _: Any) -> _Context:
        """As NeMo's."""
        return cls()

    def io_dump(self, folder: Path, **_: Any) -> None:
        """As NeMo's, to a file of its name."""
        folder.mkdir(parents=True)
        (folder / "io.json").write_text(json.dumps({"root": 1}))


def _checkpoint_io(to_folder: Any) -> Any:
    """What Megatron's strategy does to the disk."""
    base: Any = importlib.import_module("lightning.pytorch.plugins.io").CheckpointIO

    class MegatronIO(base):  # type: ignore[misc]
        """A folder of shards with `common.pt` and, last, `metadata.json`."""

        def save_checkpoint(self, saved: dict[str, Any], path: Any, storage_options: Any = None) -> None:
            where = Path(to_folder(path)) / "weights"
            dcp.save(saved.pop("state_dict"), checkpoint_id=where, no_dist=True)
            torch.save(saved, where / "common.pt")
            (where / "metadata.json").write_text('{"sharded_backend": "torch_dist", "common_backend": "torch"}')

        def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
            saved: dict[str, Any] = torch.load(Path(path) / "common.pt", weights_only=False)
            weights = {"layer.weight": torch.zeros(1, 4), "layer.bias": torch.zeros(1)}
            dcp.load(weights, checkpoint_id=path, no_dist=True)
            return {**saved, "state_dict": weights}

        def remove_checkpoint(self, path: Any) -> None:
            raise NotImplementedError

    return MegatronIO()


def one_layer(pl: Any) -> Any:
    """A module of Lightning's that trains one layer; `pl` is `lightning.pytorch`."""

    class Model(pl.LightningModule):  # type: ignore[misc]
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model()


def nemo(folder: Path) -> str:
    """ModelCheckpoint every two steps; the newest is damaged; AutoResume has a new trainer go on from the one before.

    Raises:
        RuntimeError: it does not go so.
    """
    found = importlib.util.find_spec("nemo")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("its files are not there")
    sys.meta_path.insert(0, _Finder(Path(found.submodule_search_locations[0]).parent))
    resume, paths, saving = (importlib.import_module(name) for name in _OWN)
    pl: Any = importlib.import_module("lightning.pytorch")

    def trainer(steps: int) -> Any:
        saver = saving.ModelCheckpoint(
            monitor=None, dirpath=folder, filename="model--{step}-{epoch}", every_n_train_steps=2, save_top_k=-1,
            save_last=False,
        )  # fmt: skip
        return pl.Trainer(
            max_steps=steps, callbacks=[saver, lightning_callback(Sealer(background=False))], logger=False,
            accelerator="cpu", plugins=[_checkpoint_io(paths.ckpt_to_dir)], enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip

    data = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2)
    trainer(6).fit(one_layer(pl), data)
    saved = sorted(folder.glob("model--step=*"))
    for step, path in zip((2, 4, 6), saved, strict=True):
        report = checkpoint.verify(path)
        if not (report.verified and report.sealed and report.step == step):
            raise RuntimeError(f"not sealed as it should be: {report}")
        sealed = json.loads((path / "seal.json").read_text())["files"]
        if "context/io.json" not in [file["name"] for file in sealed]:
            raise RuntimeError(f"the context is not under the seal: {sealed}")
    victim = max((saved[-1] / "weights").glob("*.distcp"), key=lambda one: one.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    chosen = resume.AutoResume(resume_from_path=resume_path(folder)).get_trainer_ckpt_path()
    if chosen != saved[1] / "weights":
        raise RuntimeError(f"chose {chosen}")
    second = trainer(8)
    second.fit(one_layer(pl), data, ckpt_path=str(chosen))
    if second.global_step != 8:
        raise RuntimeError(f"ended at {second.global_step}")
    return "ModelCheckpoint's folders sealed with their context, damaged, AutoResume from the one before"
