"""Notices that the clock was set back, and starts every stop watch anew: one that ends in the future ends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.daemon.service import Daemon

STEP_S = 1.0
"""Less than this is a clock that is being slewed."""


class Timekeeper:
    """Remembers the last time that was seen."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._last_s = 0.0

    def tick(self) -> None:
        """Before each look. Clocks that jump ahead only make waits shorter; they are left as they are."""
        core = self.daemon.core
        now_s, last_s = core.now_s(), self._last_s
        self._last_s = now_s
        if not last_s:
            # It may have been set back while no daemon lived: only the journal can lie in the future then.
            self.daemon.breaker.begin_anew()
            return
        if now_s > last_s - STEP_S:
            return
        core.alert("clock.back", f"the clock was set back by {last_s - now_s:.0f} s; every wait begins anew")
        world = core.world
        world.nodes_at_s = world.jobs_at_s = world.reservations_at_s = 0.0
        daemon = self.daemon
        for part in (
            daemon.breaker,
            daemon.recoveries,
            daemon.quarantine,
            daemon.nodewatch,
            daemon.leave,
            daemon.sweeper,
            daemon.exclusions,
        ):
            part.begin_anew()
        daemon.standby.next_at_s = daemon.standby_checks.next_at_s = 0.0
