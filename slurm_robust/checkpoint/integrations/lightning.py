"""Lightning, and NeMo on top of it: a callback that seals whatever the trainer saves."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.integrations.sealing import Sealer


class SealOnSave:
    """What the callback does: it stands around `trainer.save_checkpoint`, which every way of saving goes through.

    That call returns when all ranks have written. With an asynchronous checkpoint plugin it does not: what was saved
    is then sealed before the next save and at the end, if it is whole by then.
    """

    def __init__(self, sealer: Sealer | None = None) -> None:
        self.sealer = sealer or Sealer()
        self._late: list[Path] = []

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Wrap the trainer's save, once."""
        save = trainer.save_checkpoint
        if getattr(save, "srobust_seals", False):
            return

        @functools.wraps(save)
        def sealing(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            self._seal_late()
            self.sealer.begin(filepath)
            done = save(filepath, *args, **kwargs)
            if "Async" not in type(getattr(trainer.strategy, "checkpoint_io", None)).__name__:
                self.sealer.saved(filepath)
            elif trainer.is_global_zero:
                self._late.append(Path(filepath))
            return done

        sealing.srobust_seals = True  # type: ignore[attr-defined]
        trainer.save_checkpoint = sealing

    def teardown(self, *_: Any, **__: Any) -> None:
        """Seal what was late, and wait for what is being sealed."""
        self._seal_late()
        self.sealer.wait()

    def _seal_late(self) -> None:
        late, self._late = self._late, []
        for path in late:
            self.sealer.seal(path)


def lightning_callback(sealer: Sealer | None = None) -> Any:
    """For `Trainer(callbacks=[…])`, of the package that the program imported: `lightning` or `pytorch_lightning`.

    Raises:
        ImportError: neither is there.
    """
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    try:
        base = importlib.import_module(name).Callback
    except ImportError:
        base = importlib.import_module("pytorch_lightning").Callback
    return type("SealOnSave", (SealOnSave, base), {})(sealer)
