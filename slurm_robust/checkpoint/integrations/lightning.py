"""Seals every checkpoint of Lightning's trainer by a callback; NeMo, which is built on Lightning, can use it, too."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.integrations.sealing import Sealer


class SealOnSave:
    """The callback: it wraps `trainer.save_checkpoint`, which all saves call.

    That call returns when all ranks have written. With an asynchronous checkpoint plugin it returns earlier: then the
    checkpoint is sealed before the next save and at the end, if it is complete by then. NeMo passes the name of a file
    that becomes a folder without `.ckpt`, and adds to that folder afterwards: it is sealed when the next batch begins.
    """

    def __init__(self, sealer: Sealer | None = None) -> None:
        self.sealer = sealer or Sealer()
        self._late: list[Path] = []
        self._soon: list[Path] = []

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Wrap the trainer's save, once."""
        save = trainer.save_checkpoint
        if getattr(save, "srobust_seals", False):
            return

        @functools.wraps(save)
        def sealing(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            self._seal_soon()
            self._seal_late()
            for path in (Path(filepath), _folder(Path(filepath))):
                self.sealer.begin(path)
            done = save(filepath, *args, **kwargs)
            path = Path(filepath)
            if "Async" in type(getattr(trainer.strategy, "checkpoint_io", None)).__name__:
                self._late += [path] if trainer.is_global_zero else []
            elif _place(path) == path:
                self.sealer.saved(path)
            else:
                self._soon.append(_place(path))
            return done

        sealing.srobust_seals = True  # type: ignore[attr-defined]
        trainer.save_checkpoint = sealing

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Seal folders that NeMo has completed by now."""
        self._seal_soon()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Seal checkpoints that are still unsealed, and wait for all seals."""
        self._seal_soon()
        self._seal_late()
        self.sealer.wait()

    def _seal_soon(self) -> None:
        soon, self._soon = self._soon, []
        for path in soon:
            self.sealer.saved(path)

    def _seal_late(self) -> None:
        late, self._late = self._late, []
        for path in late:
            if Path(f"{_folder(path)}-unfinished").exists():  # NeMo's own marker
                self._late.append(path)
            else:
                self.sealer.seal(_place(path))


def _folder(path: Path) -> Path:
    """Return the folder that NeMo writes for this file name."""
    return path.with_name(path.name.removesuffix(".ckpt"))


def _place(path: Path) -> Path:
    """Return where the checkpoint was saved."""
    return path if path.exists() or not _folder(path).is_dir() else _folder(path)


def lightning_callback(sealer: Sealer | None = None) -> Any:
    """Return a callback for `Trainer(callbacks=[…])` of the imported package: `lightning` or `pytorch_lightning`.

    Raises:
        ImportError: neither package is installed.
    """
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    try:
        base = importlib.import_module(name).Callback
    except ImportError:
        base = importlib.import_module("pytorch_lightning").Callback
    return type("SealOnSave", (SealOnSave, base), {})(sealer)
