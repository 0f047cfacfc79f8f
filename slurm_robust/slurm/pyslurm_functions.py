"""Calls what pyslurm 22.5.x has in its older API only: reservations, by functions on dicts."""

from __future__ import annotations

import time
from typing import Any

from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.pyslurm_messages import Unable
from slurm_robust.slurm.pyslurm_objects import NEEDS, Objects
from slurm_robust.slurm.pyslurm_records import each
from slurm_robust.slurm.values import clamped_s

_SHORT = {"IGNORE_JOBS": "IGN_JOBS", "NO_HOLD_JOBS_AFTER_END": "NO_HOLD_JOBS"}
"""Slurm's name of a flag → the end of pyslurm's name of its bit, if the two names differ."""


class Functions(Objects):
    """The calls, by name."""

    needs = NEEDS | {
        "reservations": ("reservation",),
        "create_reservation": ("slurm_create_reservation",),
        "update_reservation": ("slurm_update_reservation",),
        "delete_reservation": ("slurm_delete_reservation",),
    }

    def reservations(self) -> list[Reservation]:
        """Return all reservations."""
        now_s = time.time()
        return each(lambda item: _reservation(item[0], item[1], now_s), self._slurm.reservation().get().items())

    def create_reservation(self, name: str, nodes: str, users: str, duration_min: int, flags: list[str]) -> None:
        """Create a reservation that starts now."""
        bits = 0
        for flag in flags:
            bits |= self._bit(flag)
        fields = {"name": name, "node_list": nodes, "users": users, "duration": duration_min, "flags": bits}
        self._slurm.slurm_create_reservation(fields | {"start_time": int(time.time())})

    def _bit(self, flag: str) -> int:
        bit = int(getattr(self._slurm, f"RESERVE_FLAG_{_SHORT.get(flag, flag)}", 0))
        if not 0 < bit < 2**31:  # pyslurm passes flags through a C int
            raise Unable(f"pyslurm has no flag {flag}")
        return bit

    def update_reservation(self, name: str, nodes: str | None, duration_min: int | None) -> None:
        """Change a reservation."""
        fields: dict[str, Any] = {"name": name, "start_time": -1}
        if nodes is not None:
            fields["node_list"] = nodes.encode("ascii")
        if duration_min is not None:
            fields["duration"] = duration_min
        self._slurm.slurm_update_reservation(fields)

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""
        self._slurm.slurm_delete_reservation(name)


def _reservation(name: str, fields: dict[str, Any], now_s: float) -> Reservation:
    return Reservation(
        name=name,
        nodes=fields["node_list"] or "",
        users=tuple(fields["users"] or ()),
        flags=frozenset((fields["flags"] or "").split(",")) - {""},
        start_at_s=clamped_s(fields["start_time"]),
        end_at_s=clamped_s(fields["end_time"]),
        state="ACTIVE" if fields["start_time"] <= now_s < fields["end_time"] else "INACTIVE",
    )
