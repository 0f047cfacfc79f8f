"""Checks the members of standby pools in full: when they join, after a boot, and when the last check is too old.

A member that joined or booted is then tested with another one, before it counts as checked.
"""

from __future__ import annotations

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.nodes import full_check
from slurm_robust.daemon.controllers.nodes.pair_tests import PairTests
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.policy.cluster.node_states import in_reservations
from slurm_robust.policy.cluster.pair_partners import pairs_due
from slurm_robust.policy.cluster.standby_health import SUSPECT_S, StandbyCheck, doubted, due
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.values import expand

EVERY_S = 1.0
JOB_NAME = "srobust-standby-check"
TRIES = 3
"""Inconclusive checks before the node counts as fit until the next one is due: unknown is not unhealthy."""
BACKOFF_S = 60.0
LATER_S = 600.0
"""A node that failed but may not be drained (the breaker is open, for example) is checked again after this."""
SETTLES_S = 15.0
"""Slurm may show a node busy this long after its check ended."""
HOUR_S = 3600.0


class StandbyChecks:
    """Keeps which members still need a check (`readings.unchecked`) and which are checked now (`readings.at_check`)."""

    def __init__(
        self, context: DaemonContext, actor: Actor, breaker: Breaker, ledger: NodeLedger, pair_tests: PairTests
    ) -> None:
        self.context, self.actor, self.breaker, self.ledger = context, actor, breaker, ledger
        self.pair_tests = pair_tests
        self._next_at_s = 0.0
        self._adopted = False

    def restart_timers(self) -> None:
        """Check at once, since the clock was set back."""
        self._next_at_s = 0.0

    async def tick(self) -> None:
        """Bring every member's check forward; an error with one does not delay the others."""
        context, readings = self.context, self.context.readings
        if not context.acting or context.now_s() < self._next_at_s:
            return
        self._next_at_s = context.now_s() + EVERY_S
        prefix = context.config.standby.prefix + "-"
        pools = {r.name: expand(r.nodes) for r in readings.reservations.values() if r.name.startswith(prefix)}
        members = {n for names in pools.values() for n in names}
        self._adopt(members)
        self._doubt()
        for row in self.ledger.standby_checks().values():
            with context.guarded("standby.waits", row.node, key=row.node):
                await self._follow(row, member=row.node in members)
        rows = self.ledger.standby_checks()
        seats = in_reservations(readings.reservations.values(), context.config.seat.prefix)
        busy, unchecked = readings.busy | seats | self.pair_tests.taken(), set[str]()
        for pool, names in pools.items():
            nodes = [readings.nodes[n] for n in names if n in readings.nodes]
            age_s = context.config.standby.check_max_age_h * HOUR_S
            plan = due(nodes, rows, busy=busy, now_s=context.now_s(), max_age_s=age_s)
            unchecked.update(plan.unchecked)
            for name in plan.begin:
                with context.guarded("standby.waits", name, key=name):
                    await self._begin(readings.nodes[name], pool)
            if self.pair_tests.wanted:
                unchecked.update(self._pair_up(pool, nodes, busy))
        readings.unchecked = frozenset(unchecked)
        rows = self.ledger.standby_checks()
        now_s = context.now_s()
        # A check that waits does not keep a node in its pool that a job got through a seat.
        checked = {n for n, r in rows.items() if r.job_id and n not in readings.busy_without(r.job_id)}
        at_check = checked | {n for n, r in rows.items() if not r.job_id and 0 <= now_s - r.ended_at_s < SETTLES_S}
        readings.at_check = self.pair_tests.taken() | self.pair_tests.settling() | at_check

    def _pair_up(self, pool: str, nodes: list[Node], busy: frozenset[str]) -> tuple[str, ...]:
        """Begin the pool's next test of two members; return the members that still need a test."""
        context, now_s = self.context, self.context.now_s()
        rows, age_s = self.ledger.standby_checks(), context.config.standby.check_max_age_h * HOUR_S
        failed_with = self.pair_tests.failed_with()
        plan = pairs_due(nodes, rows, failed_with, busy=busy, now_s=now_s, max_age_s=age_s)
        for name, why in plan.alone.items():
            self.ledger.standby_met(name, now_s, why)
            context.info("alone_in_pool", f"{name}, in {pool}: {why}")
        if plan.pair is not None and not self.pair_tests.in_pool(pool):
            self.pair_tests.begin(*plan.pair, key=pool, pool=pool)
        return plan.unmet

    def _adopt(self, members: set[str]) -> None:
        """Adopt, once after the start, checks that the last daemon submitted but did not write down before its end."""
        if self._adopted:
            return
        self._adopted = True
        rows = self.ledger.standby_checks()
        for name in members:
            job = full_check.running_check(self.context, f"{JOB_NAME}-{name}")
            if job is not None and (name not in rows or rows[name].job_id is None):
                self.ledger.standby_check_begun(name, job.ref.job_id, self.context.now_s())

    def _doubt(self) -> None:
        """Have members checked anew that a job has suspected since their last check, and that stayed in service."""
        rows = self.ledger.standby_checks()
        for name in doubted(self.ledger.suspected(self.context.now_s() - SUSPECT_S), rows):
            if name in rows and rows[name].passed_at_s:
                self.ledger.standby_doubted(name)

    async def _begin(self, node: Node, pool: str) -> None:
        context, kind, name = self.context, ActionKind.STANDBY_CHECK, f"{JOB_NAME}-{node.name}"
        own, reason = self.actor.own_jobs, f"checked in full, in {pool}"
        if own.waits(own.partition(node.partitions)):
            return  # it stays unchecked, and a person is told
        action = full_check.check_action(kind, name, node, own, reservation=pool, reason=reason)
        ref = await self.actor.perform(f"standby_check.{node.name}", action)
        assert ref is not None
        context.journal.note_result(f"standby_check.{node.name}", action, context.now_s())
        self.ledger.standby_check_begun(node.name, ref.job_id, context.now_s())

    async def _follow(self, row: StandbyCheck, *, member: bool) -> None:
        context = self.context
        job = context.readings.jobs.get(row.job_id) if row.job_id is not None else None
        if row.job_id is None:
            if not member:
                # It has a job, is out of service, or its pool is gone: a node that joins again is checked again.
                self.ledger.standby_left(row.node)
            return
        # Compared with the time of the reading: a job that was submitted later cannot be in it.
        since_s = context.readings.jobs_at_s - row.begun_at_s
        self.actor.own_jobs.note(job)
        config = context.config.quarantine
        own_command = not config.recheck_command
        result = full_check.result_of(job, row.job_id, since_s, config.recheck_timeout_s, own_command=own_command)
        if result is None:
            if not member and job is not None and job.state == "PENDING":
                await self._cancel(row, job)
            return
        if result.cancel and job is not None:
            await self._cancel(row, job)
        node = context.readings.nodes.get(row.node)
        if node is None or result.state == "passed":
            self.ledger.standby_checked(row.node, context.now_s(), "")
            context.info("standby.checked", f"{row.node}: passed its full check")
        elif result.state == "failed":
            await self._failed(row, node, result.detail)
        else:
            self._unknown(row, result.detail)

    async def _failed(self, row: StandbyCheck, node: Node, sentence: str) -> None:
        context, now_s = self.context, self.context.now_s()
        # Written down first: whether or not the drain succeeds, the node is not checked again at once.
        self.ledger.standby_not_checked(row.node, now_s, now_s + LATER_S, 0, sentence)
        context.alert("standby.failed", f"{row.node}: {sentence}")
        if node.drained or not self.breaker.allows(frozenset((row.node,))):
            return
        await full_check.drain(self.actor, self.breaker, f"standby.{row.node}.{row.job_id}", row.node, sentence)

    def _unknown(self, row: StandbyCheck, word: str) -> None:
        context, now_s, tries = self.context, self.context.now_s(), row.tries + 1
        context.alert("standby.unknown", f"{row.node}: {word}", key=row.node)
        if tries >= TRIES:
            self.ledger.standby_checked(row.node, now_s, f"{TRIES} checks were inconclusive, the last: {word}")
        else:
            self.ledger.standby_not_checked(row.node, now_s, now_s + BACKOFF_S * 2**row.tries, tries, word)

    async def _cancel(self, row: StandbyCheck, job: Job) -> None:
        action = Action(ActionKind.CANCEL, job.ref.address, "no check is needed, or it cannot start")
        await self.actor.perform(f"standby.{row.node}.{row.job_id}", action)
