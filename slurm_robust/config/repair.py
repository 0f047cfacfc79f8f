"""The site's choices for repairs of drained nodes: a section of `config`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class RepairConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Drained nodes of ours that are repaired without a person; off by default."""

    enabled: bool = False
    remedies: tuple[Literal["gpu_reset", "reboot"], ...] = ("gpu_reset", "reboot")
    command: tuple[str, ...] = ()
    """The site's own command on the daemon's machine, which carries each remedy out instead of us."""
    max_tries: Annotated[int, msgspec.Meta(ge=1)] = 2
    """The number of repairs of one node within `window_days`; after them a person has to look."""
    window_days: _Positive = 7.0
    max_at_once: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Nodes under repair at the same time."""
    wait_s: _NonNegative = 120.0
    """A node is repaired when it has been drained, or drained again, for this long."""
    timeout_s: _Positive = 1800.0
    """A reboot or the command that takes longer has failed."""
    stop_services: tuple[str, ...] = ("srobust-nodewatch", "nvidia-persistenced", "nvidia-dcgm")
    """systemd units that hold the GPUs. Those that run are stopped before a GPU reset and started again after it."""
