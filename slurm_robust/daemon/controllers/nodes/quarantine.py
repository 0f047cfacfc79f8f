"""Keeps a suspect in quarantine: free of jobs, checked in full and tested with a proven node.

Then it is returned with a strike, or drained.
"""

from __future__ import annotations

import math
import time

from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.nodes import full_check, gpu_reset
from slurm_robust.daemon.controllers.nodes.full_check import CheckResult
from slurm_robust.daemon.controllers.nodes.pair_tests import PairTests
from slurm_robust.daemon.controllers.nodes.proof import Proof
from slurm_robust.daemon.own_jobs import NAMES
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.marks.remedy import remedy_of, tagged, untagged
from slurm_robust.policy.cluster.node_states import SILENT, SLURMS_OWN_REASONS, drained_by_us, foreign, quarantine_name
from slurm_robust.policy.cluster.recovery_plan import RECHECK_REASON
from slurm_robust.policy.cluster.recovery_step import ENDED
from slurm_robust.policy.cluster.repair import REASON_MAX_CHARS
from slurm_robust.policy.cluster.strikes import counted, drain_reason, held_back
from slurm_robust.policy.cluster.tested_pairs import OutOfService
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError

TRIES = 5
"""Inconclusive rechecks before the node is returned, with a strike: unknown is not unhealthy."""
BACKOFF_S = 15.0
SURE_AFTER_S = 2.0
"""A node in quarantine that is DOWN and does not respond this long has failed while the daemon watched."""
RESUME_AFTER_S = 5.0
"""A node that the daemon set DOWN and that responds is resumed, into its quarantine, after this time."""
BREAKER_WAIT_S = 600.0
"""The time after which, with the breaker open, draining a failed node is tried again, unless it is reset before."""
RELEASE_AGAIN_S = 5.0
"""The time between two tries to delete a reservation that still has a job."""
SOAK_PAUSE_S = 60.0
"""The pause between two rounds of a node that soaks."""
FOR_NODES = ("Resources", "Priority")
"""Slurm's reasons of jobs that start as soon as there are nodes."""
OWN_JOBS = "srobust-"
RECHECK_NAME = f"{OWN_JOBS}recheck"


class Quarantines:
    """Brings every quarantine forward at each poll."""

    def __init__(
        self,
        context: DaemonContext,
        actor: Actor,
        breaker: Breaker,
        ledger: NodeLedger,
        repairs: RepairLedger,
        *,
        pair_tests: PairTests,
    ) -> None:
        self.context, self.actor, self.breaker, self.ledger = context, actor, breaker, ledger
        self.repairs, self.pair_tests = repairs, pair_tests
        self.proof = Proof(context, pair_tests, ledger)
        self._down_since_s: dict[str, float] = {}
        self._release_at_s: dict[str, float] = {}
        """By node: the earliest time at which a refused release is tried again."""

    @property
    def busy(self) -> bool:
        """True while a node is in quarantine."""
        return bool(self.ledger.quarantines())

    async def tick(self) -> None:
        """Bring every node in quarantine forward; an error with one does not delay the others."""
        if not self.context.acting:
            return
        await self._drain_again()
        for q in self.ledger.quarantines():
            node = self.context.readings.nodes.get(q.node)
            if node is None:
                self._leave(q, "the node is not in Slurm any more")
                continue
            with self.context.guarded("quarantine.waits", q.node, key=q.node):
                await self._advance(q, node)

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._down_since_s.clear()
        self._release_at_s.clear()

    async def _drain_again(self) -> None:
        """Drain again what slurmctld forgot when it was killed."""
        while self.breaker.lost:
            node, reason = self.breaker.lost.popitem()
            action = Action(ActionKind.DRAIN, node, reason)
            text = f"{node}: slurmctld forgot its drain, which is done again: {reason}"
            self.context.alert("drain.forgotten", text, key=node)
            try:
                await self.actor.perform(f"drain.{node}", action)
            except SlurmError:
                self.breaker.lost[node] = reason
                return

    async def _advance(self, q: Quarantine, node: Node) -> None:
        context = self.context
        if foreign(node):
            await self._end(q, f"somebody else drained the node: {node.reason}")
            return
        recheck = context.readings.jobs.get(q.recheck_job) if q.recheck_job else None
        if node.state != "DOWN":
            self._down_since_s.pop(q.node, None)
        if node.state == "DOWN" and "DRAIN" not in node.flags:
            await self._while_down(q, node)
            return
        if drained_by_us(node):
            # By the recheck's own prolog, by the health check, or because of strikes: nothing is left to check.
            await self._end(q, f"drained: {node.reason}")
            return
        if await self._reserved(q):
            return
        if q.checked_at_s is not None:
            await self._prove(q, node)
        elif q.recheck_job is not None:
            since_s = context.now_s() - (q.recheck_at_s or context.now_s())
            limit_s = context.config.quarantine.recheck_timeout_s
            self.actor.own_jobs.note(recheck)
            result = full_check.result_of(
                recheck, q.recheck_job, since_s, limit_s, own_command=not context.config.quarantine.recheck_command
            )
            if result is not None:
                await self._result(q, node, result)
        elif q.soaked and not self._soaks(q, node):
            await self._passed(q, f"passed {q.soaked} rounds of checks")
        elif self._claimed_for_long(q, node):
            await self._passed(q, f"could not be checked within {context.config.quarantine.claim_limit_s / 60:.0f} min")
        elif context.now_s() >= q.next_try_at_s:
            await self._begin(q, node)

    def _claimed_for_long(self, q: Quarantine, node: Node) -> bool:
        """Return whether a claim alone keeps a node that works from everyone, and its check does not come about.

        A node that does not respond, or does not end a job, is in trouble by itself: it stays.
        """
        context = self.context
        ending = any(job.completing and q.node in job.nodes for job in context.readings.jobs.values())
        late = context.now_s() - q.since_s > context.config.quarantine.claim_limit_s
        return (
            q.of_claim
            and late
            and not q.soaked
            and not ending
            and "NOT_RESPONDING" not in node.flags
            and node.state != "DOWN"
        )

    async def _reserved(self, q: Quarantine) -> bool:
        """Create and renew the reservation; True if something was done, and Slurm must be read again first."""
        context, name = self.context, quarantine_name(q.node)
        there = context.readings.reservations.get(name)
        if there is not None and there.end_at_s - context.now_s() >= context.config.seat.duration_min * 30:
            return False
        reason = f"{REASON_PREFIX} {f'suspect of {q.incident}' if there is None else 'still suspected'}"
        await self.actor.perform(q.incident, Action(ActionKind.QUARANTINE, q.node, reason, {"reservation": name}))
        await context.read_reservations()
        return True

    async def _begin(self, q: Quarantine, node: Node) -> None:
        context = self.context
        if node.name in context.readings.busy or "NOT_RESPONDING" in node.flags or not node.usable:
            return  # its old job ends first; a node that does not respond is checked once it does
        name = f"{RECHECK_NAME}-{q.node}"
        repair = self.repairs.under_way(q.node)
        # The preparation of a repair's first check is not done twice: that check counts even if it has ended.
        since_s = float(int(q.since_s)) if repair is not None and not q.tries else math.inf
        if (ours := full_check.running_check(context, name, since_s)) is not None:
            self.ledger.rechecking(q.node, ours.ref.job_id, context.now_s(), "recheck of an earlier daemon")
            return
        own, reservation = self.actor.own_jobs, quarantine_name(q.node)
        if why := own.waits(own.partition(node.partitions)):
            if q.word != (word := f"Slurm refuses the recheck: {why}"):
                self.ledger.waits_for(q.node, word)
            return
        kind, why = ActionKind.RECHECK, RECHECK_REASON
        check = full_check.check_action(kind, name, node, own, reservation=reservation, reason=why)
        if repair is not None:
            check = full_check.after(gpu_reset.prelude(repair, context.config.repair), check)
        try:
            ref = await self.actor.perform(q.incident, check)
        except SlurmRefusedError as error:
            # That says nothing of the node.
            await self._unknown(q, f"Slurm refused the recheck: {error.text or error.what}")
            return
        assert ref is not None
        self.ledger.rechecking(q.node, ref.job_id, context.now_s(), "recheck submitted")
        context.info("recheck", f"{q.node}: job {ref.job_id} checks it in full")

    async def _result(self, q: Quarantine, node: Node, result: CheckResult) -> None:
        context = self.context
        if result.cancel:
            await self._cancel(q)
        if result.state == "unknown":
            await self._unknown(q, result.detail)
            return
        context.journal.note_result(q.incident, _recheck(q), context.now_s())
        if result.state == "failed":
            await self._failed(q, result.detail)
        elif self.pair_tests.wanted and self.repairs.under_way(q.node) is None:
            self.ledger.checked(q.node, context.now_s(), "passed its full check")
        elif not self._soak(q, node):
            await self._passed(q, "passed its recheck")

    async def _prove(self, q: Quarantine, node: Node) -> None:
        """Continue after a passed full check: a test with another node comes next, if there is one to test with."""
        if self.context.now_s() < q.next_try_at_s:
            return
        outcome = self.proof.outcome(q, node)
        if isinstance(outcome, OutOfService):
            await self._failed(q, outcome.why)
        elif outcome is not None and (outcome.failed_test or not self._soak(q, node)):
            if outcome.unproven and not self.ledger.announced(f"unproven.{q.node}", f"{q.incident}: {outcome.why}"):
                text = f"{q.node} goes back into service unproven, with a strike: {outcome.why}"
                self.context.alert("suspect.unproven", text)
            await self._passed(q, outcome.why, outcome.failed_test)

    def _soak(self, q: Quarantine, node: Node) -> bool:
        """Begin another round of checks if the site wants that; return False if the node goes back."""
        if not self._soaks(q, node):
            return False
        until_s = q.since_s + 3600 * self.context.config.quarantine.soak_h
        until = time.strftime("%H:%M", time.localtime(until_s))
        word = f"soaks until {until} or until a job waits for nodes: passed {q.soaked + 1} rounds of checks"
        self.ledger.soak(q, self.context.now_s() + SOAK_PAUSE_S, word)
        return True

    def _soaks(self, q: Quarantine, node: Node) -> bool:
        context = self.context
        if self.repairs.under_way(q.node) is not None:
            return False
        if not 0 <= context.now_s() - q.since_s < 3600 * context.config.quarantine.soak_h:
            return False  # or the clock was set back
        jobs = (j for j in context.readings.jobs.values() if j.state == "PENDING" and j.reason in FOR_NODES)
        # Checks of other nodes wait, too, for nodes of their own.
        waiting = (j for j in jobs if not j.name.startswith(NAMES))
        return not any({*j.partition.split(",")} & {*node.partitions} for j in waiting)

    async def _passed(self, q: Quarantine, why: str, failed_test: str = "") -> None:
        context, config = self.context, self.context.config.quarantine
        if self.repairs.under_way(q.node) is not None:
            await self._end(q, why)
            return
        self.ledger.strike(q, context.now_s(), why, failed_test)
        strikes = self.ledger.strikes(q.node, context.now_s() - config.strike_window_days * DAY_S)
        needed = config.strikes_to_drain
        if reason := drain_reason(strikes, needed, config.strike_window_days):
            await self._failed(q, reason)
            return
        if not self.ledger.announced(f"held_back.{q.node}", text := held_back(strikes, needed)) and text:
            context.alert("strikes.one_user", f"{q.node}: {text}")
        context.info("quarantine.passed", f"{q.node} {why}: back in service with a strike ({counted(strikes)})")
        await self._end(q, f"{why}; strike {counted(strikes)} of {needed}")

    async def _failed(self, q: Quarantine, sentence: str) -> None:
        await self.context.read_nodes()
        node = self.context.readings.nodes.get(q.node)
        if node is not None and foreign(node):
            await self._end(q, f"somebody else drained it ({node.reason}); would drain: {sentence}")
            return
        if (repair := self.repairs.under_way(q.node)) is not None:
            # It was out of service before: the breaker has counted it.
            tried = f"{untagged(sentence)}{repair.tried(self.context.config.repair)}"
            sentence = tagged(tried, remedy_of(sentence), REASON_MAX_CHARS - len(REASON_PREFIX) - 1)
        elif not self.breaker.allows(frozenset((q.node,))):
            # With an open breaker the node is not drained: it stays in quarantine as long as the daemon runs.
            self.ledger.wait(q, self.context.now_s() + BREAKER_WAIT_S, f"breaker open; would drain: {sentence}")
            return
        if await full_check.drain(self.actor, self.breaker, q.incident, q.node, sentence):
            await self._end(q, f"drained: {sentence}")

    async def _unknown(self, q: Quarantine, word: str) -> None:
        context = self.context
        self.context.journal.note_result(q.incident, _recheck(q), context.now_s(), word)
        if q.tries + 1 >= TRIES:
            context.alert("quarantine.unknown", f"{q.node}: {TRIES} rechecks were inconclusive, the last: {word}")
            if self.repairs.under_way(q.node) is not None:
                # It had a fault: a check that cannot tell whether it is gone does not bring it back.
                await self._failed(q, f"could not be checked: {word}")
                return
            await self._passed(q, "could not be checked", q.accused)
            return
        self.ledger.wait(q, context.now_s() + BACKOFF_S * 2**q.tries, word, tried=True)
        context.alert("recheck.unknown", f"{q.node}: {word}; tried again later", key=q.node)

    async def _while_down(self, q: Quarantine, node: Node) -> None:
        """Handle a quarantined node that is DOWN: drain it if it does not respond, else resume and check it.

        A node that the daemon set DOWN, to end a job that it held up, stays DOWN on most sites until it is resumed.
        """
        now_s = self.context.now_s()
        since_s = now_s - self._down_since_s.setdefault(q.node, now_s)
        if "NOT_RESPONDING" in node.flags or not drained_by_us(node):
            refused = self.breaker.why_open and now_s < q.next_try_at_s
            if since_s > SURE_AFTER_S and not refused:
                why = node.reason.removeprefix(REASON_PREFIX).strip()
                own = not why or why in SLURMS_OWN_REASONS
                await self._failed(q, SILENT if own else why if SILENT in why else f"{why}, and {SILENT}")
        elif since_s > RESUME_AFTER_S:
            del self._down_since_s[q.node]
            await self.actor.perform(q.incident, Action(ActionKind.RESUME, q.node, "its job has ended: it is checked"))
            await self.context.read_nodes()

    async def _end(self, q: Quarantine, why: str) -> None:
        """End the quarantine: cancel the recheck, delete the reservation, then the row; each step can be repeated."""
        context, name = self.context, quarantine_name(q.node)
        if (test := self.pair_tests.of(q.node)) is not None:
            # Its reservation is gone first; the quarantine ends once that is so.
            self.pair_tests.end(test)
            return
        recheck = context.readings.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and not full_check.over(recheck):
            # Slurm does not delete a reservation that has a job, and a node needs some time to end one.
            self.context.info("quarantine.ending", f"{q.node}: {why}; once its recheck has ended", key=q.node)
            await self._cancel(q)
            await context.read_jobs()
            return
        if name in context.readings.reservations:
            if context.now_s() < self._release_at_s.get(q.node, 0.0):
                return
            self._release_at_s[q.node] = context.now_s() + RELEASE_AGAIN_S
            await self.actor.perform(q.incident, Action(ActionKind.RELEASE_QUARANTINE, name, why))
            await context.read_reservations()
        if name not in context.readings.reservations:
            context.journal.note_result(q.incident, Action(ActionKind.RELEASE_QUARANTINE, name, why), context.now_s())
            self._leave(q, why)

    def _leave(self, q: Quarantine, why: str) -> None:
        self._release_at_s.pop(q.node, None)
        self.ledger.leave(q.node)
        self.ledger.no_recheck(q.node, why)
        self.context.info("quarantine.left", f"{q.node}: {why}")

    async def _cancel(self, q: Quarantine) -> None:
        recheck = self.context.readings.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and recheck.state not in ENDED and not recheck.completing:
            await self.actor.perform(q.incident, Action(ActionKind.CANCEL, recheck.ref.address, "no recheck is needed"))


def _recheck(q: Quarantine) -> Action:
    return Action(ActionKind.RECHECK, q.node, RECHECK_REASON)
