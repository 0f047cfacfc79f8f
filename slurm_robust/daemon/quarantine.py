"""The quarantine: suspects kept away from everyone, checked in full once empty, then back with a strike or drained."""

from __future__ import annotations

import math
import shlex
import sys

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.breaker import Breaker
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.journal import OPEN
from slurm_robust.daemon.ledger import Ledger, Quarantine
from slurm_robust.model import REASON_PREFIX, Action, ActionKind, JobRef
from slurm_robust.policy.follow import ENDED
from slurm_robust.policy.rooms import busy_nodes, drained_by_us, foreign, quarantine_name
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import expand, fold
from slurm_robust.words import shortened

DAY_S = 86400.0
TRIES = 5
"""Rechecks that could not tell before the node is given back, with a strike: unknown is not unhealthy."""
BACKOFF_S = 15.0
SURE_AFTER_S = 2.0
"""A node in quarantine that is DOWN and silent this long has failed before our eyes."""
RESUME_AFTER_S = 5.0
"""A node that we set DOWN and that answers is brought back, into its quarantine, after so long."""
RELEASE_AGAIN_S = 5.0
"""Between two tries to delete a reservation in which something still stands."""
RECHECK_NAME = "srobust-recheck"
HELD = frozenset(("RESV_DEL_HOLD", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED"))
"""States of a recheck that nobody but us would end: its reservation was deleted under it, for example."""


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
        self.ledger.wait_at_most(self.core.now_s())

    async def _drain_again(self) -> None:
        """What slurmctld forgot when it was killed."""
        while self.breaker.lost:
            node, reason = self.breaker.lost.popitem()
            action = Action(ActionKind.DRAIN, node, reason)
            self.core.alert("drain.forgotten", f"{node}: slurmctld forgot its drain, done again: {reason}")
            try:
                await self.actor.perform(f"drain.{node}", action)
            except SlurmError:
                self.breaker.lost[node] = reason
                return

    async def _look(self, q: Quarantine, node: Node) -> None:
        core = self.core
        if node.drained and foreign(node):
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
        if recheck is not None and _over(recheck):
            await self._result(q, recheck)
        elif q.recheck_job is not None:
            await self._while_running(q, recheck)
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
        ours = [
            j for j in core.world.jobs.values() if j.name == name and j.user == core.account and j.state not in ENDED
        ]
        if ours:
            # Submitted by a life of the daemon that was killed before it could write that down.
            self.ledger.rechecking(q.node, ours[0].ref.job_id, core.now_s(), "recheck found again")
            return
        core.journal.note_call(q.incident, _recheck(q), core.now_s())
        minutes = max(1, math.ceil(core.config.quarantine.recheck_timeout_s / 60))
        args = [f"--job-name={name}", f"--reservation={quarantine_name(q.node)}", f"--nodelist={q.node}", "--nodes=1"]
        args += ["--exclusive", "--no-requeue", f"--time={minutes}", "--output=/dev/null", "--chdir=/"]
        # Without a daemon to cancel it, a recheck that cannot start would stay in the queue for ever.
        args.append(f"--deadline=now+{2 * minutes + 1}minutes")
        if node.partitions:
            args.append(f"--partition={node.partitions[0]}")
        command = core.config.quarantine.recheck_command or (
            *(sys.executable, "-m", "slurm_robust.cli.main"),
            *("check", "--stage", "full", "--tell-slurm"),
        )
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        ref = await core.call(core.client.submit, args, script)
        self.ledger.rechecking(q.node, ref.job_id, core.now_s(), "recheck submitted")
        core.info("recheck", f"{q.node}: job {ref.job_id} checks it in full")
        self.actor.crash.after(ActionKind.RECHECK.value)

    async def _while_running(self, q: Quarantine, recheck: Job | None) -> None:
        core = self.core
        since_s = core.now_s() - (q.recheck_at_s or core.now_s())
        limit_s = core.config.quarantine.recheck_timeout_s
        if recheck is None and since_s > 5:
            await self._unknown(q, f"recheck job {q.recheck_job} is gone")
        elif recheck is not None and recheck.state in HELD:
            await self._cancel(q)
            await self._unknown(q, f"Slurm holds the recheck ({recheck.state}: {recheck.reason})")
        elif recheck is not None and recheck.state != "RUNNING" and not recheck.completing and since_s > limit_s:
            await self._cancel(q)
            await self._unknown(q, f"the recheck did not start in {limit_s:.0f} s; Slurm says: {recheck.reason}")

    async def _result(self, q: Quarantine, recheck: Job) -> None:
        core = self.core
        sentence = recheck.comment.partition("srobust-check:")[2].strip()
        sentence = shortened("".join(c for c in sentence if c.isprintable()), 160)
        if recheck.state == "COMPLETED":
            core.journal.note_result(q.incident, _recheck(q), core.now_s())
            await self._passed(q, "passed its recheck")
        elif recheck.state == "FAILED" and recheck.exit_code.startswith("1:"):
            core.journal.note_result(q.incident, _recheck(q), core.now_s())
            await self._failed(q, sentence.removeprefix("unfit:").strip() or "failed its recheck")
        else:
            await self._unknown(q, f"the recheck ended {recheck.state} {recheck.exit_code} {sentence}".strip())

    async def _passed(self, q: Quarantine, why: str) -> None:
        core, config = self.core, self.core.config.quarantine
        self.ledger.strike(q, core.now_s(), why)
        strikes = self.ledger.strikes(q.node, core.now_s() - config.strike_window_days * DAY_S)
        if strikes >= config.strikes_to_drain:
            await self._failed(q, f"{strikes} strikes in {config.strike_window_days:g} days, from different jobs")
            return
        core.info("quarantine.passed", f"{q.node} {why}: back in service with a strike ({strikes})")
        await self._end(q, f"{why}; strike {strikes} of {config.strikes_to_drain}")
        await self._lift(q)

    async def _failed(self, q: Quarantine, sentence: str) -> None:
        reason = f"{REASON_PREFIX} {sentence}"
        if not self.breaker.allows(frozenset((q.node,))):
            # Past the breaker only alerts: the node stays in quarantine as long as the daemon keeps it there.
            self.ledger.could_not_tell(q.node, self.core.now_s() + 600, f"breaker open; would drain: {sentence}")
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
            if since_s > SURE_AFTER_S:
                await self._failed(q, (node.reason.removeprefix(REASON_PREFIX).strip() + ", and does not respond"))
        elif since_s > RESUME_AFTER_S:
            del self._down_since_s[q.node]
            await self.actor.perform(q.incident, Action(ActionKind.RESUME, q.node, "it let go: checked like any other"))
            await self.core.read_nodes()

    async def _end(self, q: Quarantine, why: str) -> None:
        """Out of the quarantine: no recheck, no reservation, no row, in this order, each possible again."""
        core, name = self.core, quarantine_name(q.node)
        recheck = core.world.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and not _over(recheck):
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
        self.core.info("quarantine.left", f"{q.node}: {why}")

    async def _cancel(self, q: Quarantine) -> None:
        recheck = self.core.world.jobs.get(q.recheck_job) if q.recheck_job else None
        if recheck is not None and recheck.state not in ENDED and not recheck.completing:
            await self.actor.perform(q.incident, Action(ActionKind.CANCEL, recheck.ref.address, "no recheck is needed"))

    async def _lift(self, q: Quarantine) -> None:
        """A job that still waits because of this node may use it again: otherwise it could wait for ever."""
        core = self.core
        row = core.journal.incident(q.incident)
        if row is None or row.recovery is None:
            return
        job = await core.call(core.client.job, JobRef.parse(row.job))
        if job is None or job.state != "PENDING" or job.restart_count <= row.recovery.restart:
            return
        own, now = set(expand(row.recovery.own_exclude)), set(expand(job.exclude or ""))
        missing = not row.recovery.standby and row.state == OPEN
        if q.node in now - own and (missing or row.state != OPEN):
            action = Action(
                ActionKind.LIFT_EXCLUDE, row.job, f"{q.node} passed its recheck", {"exclude": fold(now - {q.node})}
            )
            await self.actor.perform(q.incident, action)


def _over(job: Job) -> bool:
    """True where the job has ended and its nodes have let go."""
    return job.state in ENDED and not job.completing


def _recheck(q: Quarantine) -> Action:
    return Action(ActionKind.RECHECK, q.node, "a claim is a claim: check the node in full")
