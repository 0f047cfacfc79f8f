"""The quarantine: suspects kept away from everyone, checked in full once empty, then back with a strike or drained."""

from __future__ import annotations

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers import full_check
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.full_check import Verdict
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger, Quarantine
from slurm_robust.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.policy.cluster.node_states import busy_nodes, drained_by_us, foreign, quarantine_name
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError

DAY_S = 86400.0
TRIES = 5
"""Rechecks that could not tell before the node is given back, with a strike: unknown is not unhealthy."""
BACKOFF_S = 15.0
SURE_AFTER_S = 2.0
"""A node in quarantine that is DOWN and silent this long has failed before our eyes."""
RESUME_AFTER_S = 5.0
"""A node that we set DOWN and that answers is brought back, into its quarantine, after so long."""
BREAKER_WAIT_S = 600.0
"""While the breaker is open, a node that failed is looked at again after so long, or when the breaker is reset."""
RELEASE_AGAIN_S = 5.0
"""Between two tries to delete a reservation in which something still stands."""
RECHECK_NAME = "srobust-recheck"


class QuarantineKeeper:
    """Brings every quarantine as far as it gets, at each look."""

    def __init__(self, core: Core, actor: Actor, breaker: Breaker, ledger: Ledger) -> None:
        self.core, self.actor, self.breaker, self.ledger = core, actor, breaker, ledger
        self._down_since_s: dict[str, float] = {}
        self._release_at_s: dict[str, float] = {}
        """Not before this is a refused release tried again."""

    @property
    def busy(self) -> bool:
        """True while a node is in quarantine."""
        return bool(self.ledger.quarantines())

    async def tick(self) -> None:
        """Look at every node in quarantine; a failure with one does not hold up the others."""
        if not self.core.acting:
            return
        await self._drain_again()
        for q in self.ledger.quarantines():
            node = self.core.world.nodes.get(q.node)
            if node is None:
                self._leave(q, "the node is not in Slurm any more")
                continue
            try:
                await self._look(q, node)
            except SlurmError as error:
                self.core.alert("quarantine.waits", f"{q.node}: {error}", key=q.node)

    def begin_anew(self) -> None:
        """Start every wait again: the clock was set back, and what was to come soon lies hours ahead."""
        self._down_since_s.clear()
        self._release_at_s.clear()

    async def _drain_again(self) -> None:
        """What slurmctld forgot when it was killed."""
        while self.breaker.lost:
            node, reason = self.breaker.lost.popitem()
            action = Action(ActionKind.DRAIN, node, reason)
            words = f"{node}: slurmctld forgot its drain, done again: {reason}"
            self.core.alert("drain.forgotten", words, key=node)
            try:
                await self.actor.perform(f"drain.{node}", action)
            except SlurmError:
                self.breaker.lost[node] = reason
                return

    async def _look(self, q: Quarantine, node: Node) -> None:
        core = self.core
        if foreign(node):
            await self._end(q, f"somebody else took the node over: {node.reason}")
            return
        recheck = core.world.jobs.get(q.recheck_job) if q.recheck_job else None
        if node.state != "DOWN":
            self._down_since_s.pop(q.node, None)
        if node.state == "DOWN" and "DRAIN" not in node.flags:
            await self._while_down(q, node)
            return
        if drained_by_us(node):
            # By the recheck's own prolog, the health check, or a claim with strikes: the verdict is there.
            await self._end(q, f"drained: {node.reason}")
            return
        if await self._reserved(q):
            return
        if q.recheck_job is not None:
            since_s, limit_s = core.now_s() - (q.recheck_at_s or core.now_s()), core.config.quarantine.recheck_timeout_s
            result = full_check.verdict(recheck, q.recheck_job, since_s, limit_s)
            if result is not None:
                await self._result(q, result)
        elif core.now_s() >= q.next_try_at_s:
            await self._begin(q, node)

    async def _reserved(self, q: Quarantine) -> bool:
        """Make and renew the reservation; True where something was done, so that Slurm is read again first."""
        core, name = self.core, quarantine_name(q.node)
        there = core.world.reservations.get(name)
        minutes = core.config.seat.duration_min
        if there is None:
            reason = f"{REASON_PREFIX} suspect of {q.incident}"
            await self.actor.perform(q.incident, Action(ActionKind.QUARANTINE, q.node, reason, {"reservation": name}))
        elif there.end_at_s - core.now_s() < minutes * 30:
            reason = f"{REASON_PREFIX} still suspected"
            await self.actor.perform(q.incident, Action(ActionKind.QUARANTINE, q.node, reason, {"reservation": name}))
        else:
            return False
        await core.read_reservations()
        return True

    async def _begin(self, q: Quarantine, node: Node) -> None:
        core = self.core
        if node.name in busy_nodes(core.world.jobs.values()) or "NOT_RESPONDING" in node.flags or not node.usable:
            return  # the suspect's old job ends first; a silent node is looked at again when it answers
        name = f"{RECHECK_NAME}-{q.node}"
        if (ours := full_check.found(core, name)) is not None:
            self.ledger.rechecking(q.node, ours.ref.job_id, core.now_s(), "recheck found again")
            return
        core.journal.note_call(q.incident, _recheck(q), core.now_s())
        ref = await full_check.submit(core, name, node, quarantine_name(q.node))
        self.ledger.rechecking(q.node, ref.job_id, core.now_s(), "recheck submitted")
        core.info("recheck", f"{q.node}: job {ref.job_id} checks it in full")
        self.actor.crash.after(ActionKind.RECHECK.value)

    async def _result(self, q: Quarantine, result: Verdict) -> None:
        core = self.core
        if result.cancel:
            await self._cancel(q)
        if result.state == "unknown":
            await self._unknown(q, result.word)
            return
        core.journal.note_result(q.incident, _recheck(q), core.now_s())
        if result.state == "passed":
            await self._passed(q, "passed its recheck")
        else:
            await self._failed(q, result.word)

    async def _passed(self, q: Quarantine, why: str) -> None:
        core, config = self.core, self.core.config.quarantine
        self.ledger.strike(q, core.now_s(), why)
        strikes = self.ledger.strikes(q.node, core.now_s() - config.strike_window_days * DAY_S)
        if strikes >= config.strikes_to_drain:
            await self._failed(q, f"{strikes} strikes in {config.strike_window_days:g} days, from different jobs")
            return
        core.info("quarantine.passed", f"{q.node} {why}: back in service with a strike ({strikes})")
        await self._end(q, f"{why}; strike {strikes} of {config.strikes_to_drain}")

    async def _failed(self, q: Quarantine, sentence: str) -> None:
        reason = f"{REASON_PREFIX} {sentence}"
        await self.core.read_nodes()
        node = self.core.world.nodes.get(q.node)
        if node is not None and foreign(node):
            await self._end(q, f"somebody else's reason stands on it ({node.reason}); would drain: {sentence}")
            return
        if not self.breaker.allows(frozenset((q.node,))):
            # Past the breaker only alerts: the node stays in quarantine as long as the daemon keeps it there.
            self.ledger.wait(q.node, self.core.now_s() + BREAKER_WAIT_S, f"breaker open; would drain: {sentence}")
            return
        await self.actor.perform(q.incident, Action(ActionKind.DRAIN, q.node, reason))
        await self.core.read_nodes()
        node = self.core.world.nodes.get(q.node)
        if node is not None and node.drained:
            self.core.journal.note_result(q.incident, Action(ActionKind.DRAIN, q.node, reason), self.core.now_s())
            self.breaker.look()
            await self._end(q, f"drained: {sentence}")

    async def _unknown(self, q: Quarantine, word: str) -> None:
        core = self.core
        self.core.journal.note_result(q.incident, _recheck(q), core.now_s(), word)
        if q.tries + 1 >= TRIES:
            core.alert("quarantine.unknown", f"{q.node}: {TRIES} rechecks could not tell, the last: {word}")
            await self._passed(q, "could not be checked")
            return
        self.ledger.could_not_tell(q.node, core.now_s() + BACKOFF_S * 2**q.tries, word)
        core.alert("recheck.unknown", f"{q.node}: {word}; tried again later", key=q.node)

    async def _while_down(self, q: Quarantine, node: Node) -> None:
        """A node in quarantine that is DOWN: silent, it has failed before our eyes; answering, it is checked.

        DOWN by us it stays, on most sites, until it is resumed: it was only done to end a job that it held up.
        """
        now_s = self.core.now_s()
        since_s = now_s - self._down_since_s.setdefault(q.node, now_s)
        if "NOT_RESPONDING" in node.flags or not drained_by_us(node):
            refused = self.breaker.why_open and now_s < q.next_try_at_s
            if since_s > SURE_AFTER_S and not refused:
                await self._failed(q, (node.reason.removeprefix(REASON_PREFIX).strip() + ", and does not respond"))
        elif since_s > RESUME_AFTER_S:
            del self._down_since_s[q.node]
            await self.actor.perform(q.incident, Action(ActionKind.RESUME, q.node, "it let go: checked like any other"))
            await self.core.read_nodes()

    async def _end(self, q: Quarantine, why: str) -> None:
        """Out of the quarantine: no recheck, no reservation, no row, in this order, each possible again."""
        core, name = self.core, quarantine_name(q.node)
        recheck = core.world.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and not full_check.over(recheck):
            # Slurm deletes no reservation that a job stands in, and a node takes its time to end one.
            self.core.info("quarantine.ending", f"{q.node}: {why}; once its recheck has let go", key=q.node)
            await self._cancel(q)
            await core.read_jobs()
            return
        if name in core.world.reservations:
            if core.now_s() < self._release_at_s.get(q.node, 0.0):
                return
            self._release_at_s[q.node] = core.now_s() + RELEASE_AGAIN_S
            await self.actor.perform(q.incident, Action(ActionKind.RELEASE_QUARANTINE, name, why))
            await core.read_reservations()
        if name not in core.world.reservations:
            core.journal.note_result(q.incident, Action(ActionKind.RELEASE_QUARANTINE, name, why), core.now_s())
            self._leave(q, why)

    def _leave(self, q: Quarantine, why: str) -> None:
        self._release_at_s.pop(q.node, None)
        self.ledger.leave(q.node)
        self.ledger.no_recheck(q.node, why)
        self.core.info("quarantine.left", f"{q.node}: {why}")

    async def _cancel(self, q: Quarantine) -> None:
        recheck = self.core.world.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and recheck.state not in ENDED and not recheck.completing:
            await self.actor.perform(q.incident, Action(ActionKind.CANCEL, recheck.ref.address, "no recheck is needed"))


def _recheck(q: Quarantine) -> Action:
    return Action(ActionKind.RECHECK, q.node, "only suspected so far: a full check decides")
