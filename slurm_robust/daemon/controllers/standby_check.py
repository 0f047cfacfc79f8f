"""Checks the members of standby pools in full: when they join, after a boot, and when the last time is long ago."""

from __future__ import annotations

from collections.abc import Awaitable

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers import full_check
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.policy.cluster.node_states import busy_nodes, in_reservations
from slurm_robust.policy.cluster.standby_health import StandbyCheck, due
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand

EVERY_S = 1.0
JOB_NAME = "srobust-standby-check"
TRIES = 3
"""Checks that could not tell, before the node counts as fit until the next one is due: unknown is not unhealthy."""
BACKOFF_S = 60.0
LATER_S = 600.0
"""A node that failed and may not be drained (the breaker is open, say) is checked again after so long."""
SETTLES_S = 15.0
"""Slurm may show a node busy this long after its check ended."""
HOUR_S = 3600.0


class StandbyChecks:
    """Says which members are checked (`world.unchecked`) and which are at their check (`world.at_check`)."""

    def __init__(self, core: Core, actor: Actor, breaker: Breaker, ledger: Ledger) -> None:
        self.core, self.actor, self.breaker, self.ledger = core, actor, breaker, ledger
        self.next_at_s = 0.0
        self._looked_for_lost = False

    async def tick(self) -> None:
        """Look at every member; trouble with one does not hold up the others."""
        core, world = self.core, self.core.world
        if not core.acting or core.now_s() < self.next_at_s:
            return
        self.next_at_s = core.now_s() + EVERY_S
        prefix = core.config.standby.prefix + "-"
        pools = {r.name: expand(r.nodes) for r in world.reservations.values() if r.name.startswith(prefix)}
        members = {n for names in pools.values() for n in names}
        self._find_lost(members)
        for row in self.ledger.standby_checks().values():
            await self._guarded(row.node, self._follow(row, member=row.node in members))
        rows = self.ledger.standby_checks()
        seats = in_reservations(world.reservations.values(), core.config.seat.prefix)
        busy, unchecked = busy_nodes(world.jobs.values()) | seats, set[str]()
        for pool, names in pools.items():
            nodes = [world.nodes[n] for n in names if n in world.nodes]
            age_s = core.config.standby.check_max_age_h * HOUR_S
            plan = due(nodes, rows, busy=busy, now_s=core.now_s(), max_age_s=age_s)
            unchecked.update(plan.unchecked)
            for name in plan.begin:
                await self._guarded(name, self._begin(world.nodes[name], pool))
        world.unchecked = frozenset(unchecked)
        rows = self.ledger.standby_checks()
        now_s = core.now_s()
        world.at_check = frozenset(n for n, r in rows.items() if r.job_id or 0 <= now_s - r.ended_at_s < SETTLES_S)

    def _find_lost(self, members: set[str]) -> None:
        """Once a life: checks that an earlier one submitted, and was killed before it could write them down."""
        if self._looked_for_lost:
            return
        self._looked_for_lost = True
        rows = self.ledger.standby_checks()
        for name in members:
            job = full_check.found(self.core, f"{JOB_NAME}-{name}")
            if job is not None and (name not in rows or rows[name].job_id is None):
                self.ledger.standby_check_begun(name, job.ref.job_id, self.core.now_s())

    async def _guarded(self, node: str, step: Awaitable[None]) -> None:
        try:
            await step
        except SlurmError as error:
            self.core.alert("standby.waits", f"{node}: {error}", key=node)

    async def _begin(self, node: Node, pool: str) -> None:
        core, name = self.core, f"{JOB_NAME}-{node.name}"
        ref = await full_check.submit(core, name, node, pool)
        self.ledger.standby_check_begun(node.name, ref.job_id, core.now_s())
        core.info("standby.check", f"{node.name}: job {ref.job_id} checks it in full, in {pool}")

    async def _follow(self, row: StandbyCheck, *, member: bool) -> None:
        core = self.core
        job = core.world.jobs.get(row.job_id) if row.job_id is not None else None
        if row.job_id is None:
            if not member:
                # At work, out of service, or the pool is gone: whoever joins again is checked again.
                self.ledger.standby_left(row.node)
            return
        # By the age of what Slurm showed: a job that was submitted since cannot be in it.
        since_s = core.world.jobs_at_s - row.begun_at_s
        result = full_check.verdict(job, row.job_id, since_s, core.config.quarantine.recheck_timeout_s)
        if result is None:
            if not member and job is not None and job.state == "PENDING":
                await self._cancel(row, job)
            return
        if result.cancel and job is not None:
            await self._cancel(row, job)
        node = core.world.nodes.get(row.node)
        if node is None or result.state == "passed":
            self.ledger.standby_checked(row.node, core.now_s(), "")
            core.info("standby.checked", f"{row.node}: passed its full check")
        elif result.state == "failed":
            await self._failed(row, node, result.word)
        else:
            self._unknown(row, result.word)

    async def _failed(self, row: StandbyCheck, node: Node, sentence: str) -> None:
        core, now_s = self.core, self.core.now_s()
        # Written down first: it is not asked again at once, whatever becomes of the drain.
        self.ledger.standby_not_checked(row.node, now_s, now_s + LATER_S, 0, sentence)
        core.alert("standby.failed", f"{row.node}: {sentence}")
        if node.drained or not self.breaker.allows(frozenset((row.node,))):
            return
        action = Action(ActionKind.DRAIN, row.node, f"{REASON_PREFIX} {sentence}")
        key = f"standby.{row.node}.{row.job_id}"
        await self.actor.perform(key, action)
        await core.read_nodes()
        now = core.world.nodes.get(row.node)
        if now is not None and now.drained:
            core.journal.note_result(key, action, core.now_s())
            self.breaker.look()

    def _unknown(self, row: StandbyCheck, word: str) -> None:
        core, now_s, tries = self.core, self.core.now_s(), row.tries + 1
        core.alert("standby.unknown", f"{row.node}: {word}", key=row.node)
        if tries >= TRIES:
            self.ledger.standby_checked(row.node, now_s, f"{TRIES} checks could not tell, the last: {word}")
        else:
            self.ledger.standby_not_checked(row.node, now_s, now_s + BACKOFF_S * 2**row.tries, tries, word)

    async def _cancel(self, row: StandbyCheck, job: Job) -> None:
        action = Action(ActionKind.CANCEL, job.ref.address, "no check is needed, or it cannot start")
        await self.actor.perform(f"standby.{row.node}.{row.job_id}", action)
