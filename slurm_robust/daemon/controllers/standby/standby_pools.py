"""Keeps the standby pools: one reservation of checked, idle nodes for each hardware class."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.standby.standby_sizes import StandbySizes
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.policy.cluster.node_picture import NodePicture
from slurm_robust.policy.cluster.node_states import OF_USE_S, OURS, Pool, PoolRules, plan_pools
from slurm_robust.policy.cluster.standby_health import SUSPECT_S, doubted
from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand, fold

EVERY_S = 10.0
DAY_MIN = 24 * 60
LONGEST_MIN = 360 * DAY_MIN
"""Slurm's longest reservation is a year from its start: an older pool is deleted and created again."""


_PlannedFrom = tuple[
    NodePicture, Mapping[str, Reservation], frozenset[str], frozenset[str], frozenset[str], Mapping[str, int], object
]


class StandbyPools:
    """Compares every few seconds the pools that Slurm has with the pools that should be."""

    def __init__(self, context: DaemonContext, actor: Actor, ledger: NodeLedger) -> None:
        self.context, self.actor, self.ledger = context, actor, ledger
        self.sizes = StandbySizes(context, ledger)
        self.pools: list[Pool] = []
        self.short_since_s: dict[str, float] = {}
        """Since when this daemon has seen a pool short, by the pool's name."""
        self._next_at_s = 0.0
        self._planned: _PlannedFrom | None = None
        """The inputs that the pools were planned from."""
        self._out: frozenset[str] = frozenset()

    def size_reason(self, pool: Pool) -> str:
        """Return why a pool has its size; empty if the site chose a number."""
        return self.sizes.reason(pool.kind.slug)

    def restart_timers(self) -> None:
        """Compare at once, since the clock was set back."""
        self._next_at_s = 0.0
        self.short_since_s.clear()
        self.sizes.restart_timers()

    async def tick(self, keep_out: frozenset[str] = frozenset(), lacked: frozenset[str] = frozenset()) -> None:
        """Bring the pools to their planned state, without nodes that an open recovery evicts (`keep_out`).

        A node that a job `lacked` is not added. Nodes in that job's seat stay in place anyway.
        """
        context, readings, config = self.context, self.context.readings, self.context.config.standby
        if not readings.complete or (context.now_s() < self._next_at_s and not self._lost_one()):
            return
        self._next_at_s = context.now_s() + EVERY_S
        out = keep_out | {q.node for q in self.ledger.quarantines()}
        sizes, suspected = self.sizes.now(), self.ledger.suspected(context.now_s() - SUSPECT_S)
        unsure = doubted(suspected, self.ledger.standby_checks())
        suspects = {name: name not in unsure for name in suspected}
        now = (readings.picture, readings.reservations, out, lacked, readings.at_check, sizes, suspects)
        if self._planned is None or now[0] is not self._planned[0] or now[1:] != self._planned[1:]:
            self.pools = plan_pools(
                readings.nodes,
                readings.reservations.values(),
                PoolRules(config, context.config.seat.prefix, sizes, context.now_s() + OF_USE_S, lacked),
                keep_out=out,
                at_check=readings.at_check,
                suspected=suspects,
            )
            self._planned = now
            known, now_s = self.short_since_s, context.now_s()
            self.short_since_s = {p.name: known.get(p.name, now_s) for p in self.pools if p.short}
        if not context.acting:
            return
        wanted = {p.name: p.nodes for p in self.pools}
        present = {name: r for name, r in readings.reservations.items() if name.startswith(config.prefix + "-")}
        performed = []
        for name in sorted({*wanted, *present}):
            for action in self._changes(name, wanted.get(name, ()), present.get(name)):
                with contextlib.suppress(SlurmError):  # the actor has reported it; the other pools go on
                    await self.actor.perform(f"standby.{name}", action)
                    performed.append(action)
        if performed:
            await context.read_reservations()
        for action in performed:
            held = context.readings.reservations.get(action.target)
            if set(expand(held.nodes if held else "")) == set(wanted.get(action.target, ())):
                context.journal.note_result(f"standby.{action.target}", action, context.now_s())

    def _lost_one(self) -> bool:
        """Return whether a member has gone out of service since the last comparison: its place is filled at once."""
        members, nodes = {name for pool in self.pools for name in pool.nodes}, self.context.readings.nodes
        before, self._out = self._out, frozenset(name for name in members if name in nodes and nodes[name].drained)
        return bool(self._out - before)

    def _changes(self, name: str, nodes: tuple[str, ...], there: Reservation | None) -> list[Action]:
        """Return the actions after which this pool holds these nodes for long enough."""
        now_s, minutes = self.context.now_s(), self._minutes(nodes)
        if not nodes:
            return [] if there is None else [_keep(name, "no node to hold: deleted")]
        if there is None:
            held = f"holds {fold(nodes)}"
            return [] if minutes < 1 else [_keep(name, held, create=True, nodes=fold(nodes), minutes=minutes)]
        changes = []
        if set(expand(there.nodes)) != set(nodes):
            changes.append(_keep(name, f"holds {fold(nodes)}, before: {there.nodes}", nodes=fold(nodes)))
        if (there.end_at_s - now_s) / 60 < minutes / 2:
            age_min = int((now_s - there.start_at_s) // 60)
            renewed = {"minutes": age_min + minutes} if age_min + minutes <= LONGEST_MIN else {}
            changes.append(_keep(name, "renewed" if renewed else "too old to be renewed: deleted", **renewed))
        return changes

    def _minutes(self, nodes: tuple[str, ...]) -> int:
        """Return as many minutes as the site wants, but not into a coming reservation of others."""
        minutes, now_s = self.context.config.standby.duration_days * DAY_MIN, self.context.now_s()
        for other in self.context.readings.reservations.values():
            if not other.name.startswith(OURS) and other.start_at_s > now_s and set(expand(other.nodes)) & set(nodes):
                minutes = min(minutes, int((other.start_at_s - now_s) // 60) - 1)
        return minutes


def _keep(name: str, reason: str, **args: object) -> Action:
    return Action(ActionKind.KEEP_STANDBY, name, reason, args)
