"""Deletes seats and quarantines that no recovery needs: after a lost journal, or a slurmctld that forgot their end."""

from __future__ import annotations

import contextlib

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.store.pair_ledger import PairLedger
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.policy.cluster.node_states import PAIR_PREFIX, QUARANTINE_PREFIX, quarantine_name
from slurm_robust.slurm.errors import SlurmError

ORPHAN_AFTER_S = 20.0


class Sweeper:
    """Checks the daemon's reservations. They end by themselves within minutes; this only makes it sooner."""

    def __init__(
        self, context: DaemonContext, actor: Actor, ledger: NodeLedger, recoveries: Recoveries, repairs: RepairLedger
    ) -> None:
        self.context, self.actor, self.ledger, self.recoveries = context, actor, ledger, recoveries
        self.repairs, self.pairs = repairs, PairLedger(context.journal)
        self._since_s: dict[str, float] = {}

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._since_s.clear()

    async def tick(self) -> None:
        """Delete reservations without a use, after each reading of the reservations."""
        context = self.context
        if not context.acting:
            return
        known = {f.recovery.seat for f in self.recoveries.open.values()}
        known |= {quarantine_name(q.node) for q in self.ledger.quarantines()}
        known |= {quarantine_name(t.node) for t in self.repairs.open()}
        known |= {t.reservation for t in self.pairs.open()}
        prefixes = (f"{context.config.seat.prefix}-", f"{QUARANTINE_PREFIX}-", f"{PAIR_PREFIX}-")
        orphans = [r for r in context.readings.reservations if r.startswith(prefixes) and r not in known]
        self._since_s = {name: self._since_s.get(name, context.now_s()) for name in orphans}
        for name, since_s in list(self._since_s.items()):
            if context.now_s() - since_s < ORPHAN_AFTER_S:
                continue
            self._since_s[name] = context.now_s()
            context.alert("reservation.orphan", f"{name}: no recovery and no quarantine needs it", key=name)
            with contextlib.suppress(SlurmError):  # the actor has reported it; the reservation ends by itself
                await self.actor.perform(f"orphan.{name}", Action(ActionKind.DELETE_ORPHAN, name, "nobody needs it"))
