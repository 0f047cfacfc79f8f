"""Where can training resume?

    from slurm_robust import checkpoint

    found = checkpoint.resume_from_env("ckpt")
    if found.path is not None:
        state = checkpoint.load(found.path)
    ...
    checkpoint.save("ckpt", step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

A checkpoint is a folder (or a single file) with a *seal*: a manifest of names, sizes and digests, written last and
atomically, after the files were read back. A folder without a seal is never chosen. Choosing reads only seals, sizes
and times of change; only `save`, `load` and `Checkpointer` import torch.

The folders, in the order in which data passes:

* `saving` has `Checkpointer`, which copies the state of any parallel layout in the step, and writes it outside of the
  step.
* `store` keeps the files and their seal: `store/seals.py` writes and reads the seal, `store/find.py` chooses a
  checkpoint.
* `formats` recognises other frameworks' checkpoints by their files, to check them without a seal.
* `health` says which checkpoints were saved before a loss went bad.
* `integrations` has one-line calls for Lightning, the HF Trainer, Megatron-LM and DeepSpeed.
* `base` says which files a checkpoint consists of, and records rollbacks; `store`, `formats` and `health` use it.

The modules: `resume` chooses the checkpoint from which all ranks start. `pruning` removes old checkpoints. `replay`
tells whether this process replays steps as a test, and must not save. `errors` has the error of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slurm_robust.checkpoint.base.rollback_log import Skipped, skipped_batches
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health.health_log import HealthLog, latest_healthy
from slurm_robust.checkpoint.pruning import Pruned, prune
from slurm_robust.checkpoint.resume import resume_from_env
from slurm_robust.checkpoint.store.demotion import demote
from slurm_robust.checkpoint.store.find import Entry, Found, entries, latest
from slurm_robust.checkpoint.store.reader import load
from slurm_robust.checkpoint.store.seal_folder import Swept, seal_all
from slurm_robust.checkpoint.store.seals import FileSeal, Seal, seal
from slurm_robust.checkpoint.store.trackers import Tracker, pin, trackers
from slurm_robust.checkpoint.store.verification import Problem, VerificationReport, verify
from slurm_robust.checkpoint.store.writer import SaveGroup, save

Report = VerificationReport
"""Deprecated alias, kept for one version."""

if TYPE_CHECKING:
    from slurm_robust.checkpoint.saving.checkpointer import Checkpointer
    from slurm_robust.checkpoint.saving.rank.training_state import PerRank
    from slurm_robust.checkpoint.saving.shared.options import BackupOptions, CopyOptions, TierOptions

__all__ = [
    "BackupOptions",
    "CheckpointError",
    "Checkpointer",
    "CopyOptions",
    "Entry",
    "FileSeal",
    "Found",
    "HealthLog",
    "PerRank",
    "Problem",
    "Pruned",
    "Report",
    "SaveGroup",
    "Seal",
    "Skipped",
    "Swept",
    "TierOptions",
    "Tracker",
    "VerificationReport",
    "demote",
    "entries",
    "latest",
    "latest_healthy",
    "load",
    "pin",
    "prune",
    "resume_from_env",
    "save",
    "seal",
    "seal_all",
    "skipped_batches",
    "trackers",
    "verify",
]


_LAZY = {
    "Checkpointer": "saving.checkpointer",
    "PerRank": "saving.rank.training_state",
    "BackupOptions": "saving.shared.options",
    "CopyOptions": "saving.shared.options",
    "TierOptions": "saving.shared.options",
}
"""Imported when they are first used: most of them import torch, which the lookup at a restart must not pay for."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
