"""Seals each checkpoint of transformers' Trainer by a callback, which records loss and gradient norm, too."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.health.health_log import HealthLog
from slurm_robust.checkpoint.integrations import group
from slurm_robust.checkpoint.integrations.sealing import Sealer


class SealOnSave:
    """The callback; the Trainer calls `on_save` on every rank, after each has written its files."""

    def __init__(self, sealer: Sealer | None = None) -> None:
        self.sealer = sealer or Sealer()
        self.health: HealthLog | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Record loss and gradient norm, which the Trainer logs as numbers, in the health log."""
        if group.rank() != 0 or not isinstance(logs, dict) or not {"loss", "grad_norm"} & logs.keys():
            return
        if self.health is None:
            self.health = HealthLog(args.output_dir)
        self.health.observe(state.global_step, loss=logs.get("loss"), grad_norm=logs.get("grad_norm"))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Seal `output_dir/checkpoint-N`, once all ranks have arrived here."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.sealer.begin(path)
        group.wait_for_all()
        self.sealer.saved(path)
        return control


def trainer_callback(sealer: Sealer | None = None) -> Any:
    """Return a callback for `Trainer(callbacks=[…])`. Raises ImportError if transformers is not installed."""
    base = importlib.import_module("transformers").TrainerCallback
    return type("SealOnSave", (SealOnSave, base), {})(sealer)
