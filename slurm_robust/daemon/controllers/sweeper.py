"""Deletes seats and quarantines that nobody answers for: after a lost journal, or a slurmctld that forgot their end."""

from __future__ import annotations

from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.policy.cluster.node_states import QUARANTINE_PREFIX, quarantine_name
from slurm_robust.slurm.errors import SlurmError

ORPHAN_AFTER_S = 20.0


class Sweeper:
    """Looks at the reservations of ours; they end by themselves within minutes, this only makes it sooner."""

    def __init__(self, core: Core, ledger: Ledger, recoveries: Recoveries) -> None:
        self.core, self.ledger, self.recoveries = core, ledger, recoveries
        self._since_s: dict[str, float] = {}

    def begin_anew(self) -> None:
        """Start every wait again: the clock was set back."""
        self._since_s.clear()

    async def tick(self) -> None:
        """After each reading of the reservations."""
        core = self.core
        if not core.acting:
            return
        known = {f.recovery.seat for f in self.recoveries.open.values()}
        known |= {quarantine_name(q.node) for q in self.ledger.quarantines()}
        prefixes = (f"{core.config.seat.prefix}-", f"{QUARANTINE_PREFIX}-")
        orphans = [r for r in core.world.reservations if r.startswith(prefixes) and r not in known]
        self._since_s = {name: self._since_s.get(name, core.now_s()) for name in orphans}
        for name, since_s in list(self._since_s.items()):
            if core.now_s() - since_s < ORPHAN_AFTER_S:
                continue
            self._since_s[name] = core.now_s()
            core.alert("reservation.orphan", f"{name}: nobody answers for it, deleted", key=name)
            try:
                await core.call(core.client.delete_reservation, name)
            except SlurmError as error:
                core.alert("reservation.orphan", f"{name}: {error}; it ends by itself", key=name)
