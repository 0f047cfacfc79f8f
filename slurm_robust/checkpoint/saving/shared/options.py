"""Options of `Checkpointer`, in three groups. Imports no torch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from slurm_robust.checkpoint.saving.shared.image import MOST_BACKUPS


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """The content of a save, and the time of its copy.

    Attributes:
        overlap: The choice of a save while both buffers are still being written: `wait` for one, or `skip` the save.
        until_update: Copy parameters, and the optimizers' state for the parameters, while the next step computes: a
            save returns before the copy has ended, and an optimizer of `state` waits for it when its `step()` is
            called. This is only for programs that do not change parameters in another way, such as by replaying an
            optimizer as a CUDA graph.
        rng: Save the random generators' states of each rank, too.
    """

    overlap: Literal["wait", "skip"] = "wait"
    until_update: bool = False
    rng: bool = True

    def __post_init__(self) -> None:
        if self.overlap not in ("wait", "skip"):
            raise ValueError(f"overlap is {self.overlap!r}: say 'wait' or 'skip'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackupOptions:
    """Copies in the memory of other nodes.

    Attributes:
        copies: The number of other nodes that keep each rank's copies, in memory of the same size: 0, 1 or 2. None: if
            that memory outlives the training (under `srobust run`), two on three nodes or more if all nodes have the
            memory, else one.
        layout: Sizes of the parallel groups, groups of neighbouring ranks first: `{"tp": 8, "dp": 4, "pp": 2}`. A
            backup is kept on a node without a rank of its rank's groups. None: the sizes are read from the tensors'
            meshes.
        bytes_per_s: The most that a node sends for backups; 0 for no limit.
    """

    copies: int | None = None
    layout: Mapping[str, int] | None = None
    bytes_per_s: float = 1 << 30

    def __post_init__(self) -> None:
        if self.copies not in (None, *range(MOST_BACKUPS + 1)):
            raise ValueError(f"backups is {self.copies!r}: 0, 1 or 2 of each rank, or None: as many as fit")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TierOptions:
    """The places of saves beside memory, and how often to save there.

    Attributes:
        local: A folder on each node's own disk to save to, too; None for none.
        keep_local: Saves to keep there (and two more while other ranks may still be writing); 0 for all.
        every: Steps between two saves to `memory`, `local` and `shared`, 1 for a tier that is not named. Call `save`
            after each step then; it does nothing if no tier is due.
    """

    local: str | Path | None = None
    keep_local: int = 2
    every: Mapping[str, int] | None = None


_MOVED = {
    "overlap": (CopyOptions, "overlap"),
    "until_update": (CopyOptions, "until_update"),
    "rng": (CopyOptions, "rng"),
    "layout": (BackupOptions, "layout"),
    "backup_bytes_per_s": (BackupOptions, "bytes_per_s"),
    "local": (TierOptions, "local"),
    "keep_local": (TierOptions, "keep_local"),
    "every": (TierOptions, "every"),
}
"""Deprecated keyword → its group and its name there; they work for one version."""


def grouped(
    given: tuple[CopyOptions | None, BackupOptions | int | None, TierOptions | None], deprecated: Mapping[str, Any]
) -> tuple[CopyOptions, BackupOptions, TierOptions]:
    """Return the three groups; deprecated keywords are moved into them, with a warning.

    Raises:
        TypeError: an unknown keyword.
        ValueError: an invalid value.
    """
    copying, backups, tiers = given
    if not isinstance(backups, BackupOptions):
        backups = BackupOptions(copies=backups)
    groups: dict[type, Any] = {
        CopyOptions: copying or CopyOptions(), BackupOptions: backups, TierOptions: tiers or TierOptions()
    }  # fmt: skip
    for name, value in deprecated.items():
        if name not in _MOVED:
            raise TypeError(f"Checkpointer() got an unexpected keyword argument {name!r}")
        group, field = _MOVED[name]
        message = f"Checkpointer({name}=...) is deprecated: use {group.__name__}({field}=...)"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        groups[group] = dataclasses.replace(groups[group], **{field: value})
    return groups[CopyOptions], groups[BackupOptions], groups[TierOptions]
