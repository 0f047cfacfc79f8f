"""Carries recoveries through: looks at Slurm, takes the step that the policy names, looks again."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

from slurm_robust.claim import STATE_WANTS_REQUEUE, ClaimError, parse, parse_answer
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.journal import CLOSED, OPEN, RUNNING, ActionRow, IncidentRow
from slurm_robust.daemon.store.node_ledger import Quarantine
from slurm_robust.model import Action, ActionKind
from slurm_robust.policy.cluster.node_states import busy_nodes
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.policy.cluster.recovery_step import Do, Finish, GiveUp, Step, View, forgotten, next_step, shown
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError

STEPS_AT_ONCE = 16
LINGER_S = 60.0
"""How long after its end a recovery is looked back at: slurmctld saves its state every few seconds."""
BROKEN_AGAIN_S = 5.0
"""After an error of our own with one recovery, it is tried again after so long; the others go on."""
TRIES = 4
"""A step that Slurm refused this often is given up; one that Slurm could not hear is tried for as long as it takes."""


@dataclass
class Following:
    """A recovery under way; what is not in the journal here is only stop watches."""

    row: IncidentRow
    recovery: Recovery
    completing_since_s: float = 0.0
    alone_since_s: float = 0.0
    ended_at_s: float = 0.0
    pending_since_s: float = 0.0
    pointed_since_s: float = 0.0
    lost_since_s: float = 0.0
    refusals: int = 0
    retry_at_s: float = 0.0
    finished_at_s: float = 0.0
    broken: str = ""
    """The error of our own that was said last."""

    def watch(self, job: Job | None, core: Core) -> None:
        """Start and stop the watches by what Slurm shows."""
        now_s, r = core.now_s(), self.recovery
        completing = job is not None and (job.completing or job.state == "COMPLETING")
        holding = set(job.nodes) if completing and job else set()
        nodes = core.world.nodes
        alone = bool(holding) and all(n in r.bad or "NOT_RESPONDING" in nodes[n].flags for n in holding if n in nodes)
        pending = job is not None and job.state == "PENDING" and not completing
        if (completing or pending) and not self.ended_at_s:
            self.ended_at_s = now_s
        pointed = pending and job is not None and ActionKind.POINT_JOB_AT_SEAT in self.called(core)
        lost = [nodes[n] for n in r.bad if n in nodes]
        all_lost = bool(lost) and all(n.state == "DOWN" for n in lost)
        for name, on in (
            ("completing_since_s", completing),
            ("alone_since_s", alone),
            ("pending_since_s", pending),
            ("pointed_since_s", pointed),
            ("lost_since_s", all_lost),
        ):
            setattr(self, name, (getattr(self, name) or now_s) if on else 0.0)

    def called(self, core: Core) -> frozenset[ActionKind]:
        """Kinds of action that were called at least once, in this life of the daemon or an earlier one."""
        return frozenset(ActionKind(a.kind) for a in core.journal.actions(self.row.key) if a.calls)

    def view(self, job: Job | None, core: Core, *, may_take_out: bool, in_quarantine: frozenset[str]) -> View:
        """What the policy looks at."""
        now_s = core.now_s()

        def since(at_s: float) -> float:
            return now_s - at_s if at_s else 0.0

        try:
            answer = parse_answer(job.admin_comment) if job else None
            told = answer.state if answer and answer.incident == self.row.id else ""
        except ClaimError:
            told = ""  # somebody else's words in AdminComment: we have not told the job anything yet
        try:
            claim = parse(job.comment) if job else None
        except ClaimError:
            claim = None
        asks = claim is not None and claim.state == STATE_WANTS_REQUEUE and claim.incident == self.row.id
        return View(
            job=job,
            reservations=core.world.reservations,
            nodes=core.world.nodes,
            occupied=busy_nodes(core.world.jobs.values(), frozenset((self.row.job_id,))),
            called=self.called(core),
            abort=self.row.abort.partition("|")[2],
            told=told,
            completing_s=since(self.completing_since_s),
            alone_s=since(self.alone_since_s),
            pointed_s=since(self.pointed_since_s),
            lost_s=since(self.lost_since_s),
            age_s=now_s - self.row.opened_at_s,
            # Whole seconds: a credential that is issued in the second of the last one's revocation is refused.
            settled=int(now_s) > int(self.ended_at_s)
            and int(now_s) >= int(self.pending_since_s) + core.credential_pause_s,
            start_timeout_s=core.config.seat.start_timeout_s,
            may_take_out=may_take_out,
            withdrawn=claim is not None and not asks and claim.at_s > float(self.row.verdict.get("at_s", 0.0)),
            in_quarantine=in_quarantine,
            now_s=now_s,
        )


class Recoveries:
    """All recoveries under way."""

    def __init__(self, core: Core, actor: Actor, breaker: Breaker) -> None:
        self.core, self.actor, self.breaker = core, actor, breaker
        self.open: dict[str, Following] = {}
        self._lingering: dict[str, Following] = {}

    def load(self) -> None:
        """Take up again what an earlier life of the daemon left open, or ended just now."""
        taken = {row.job_id for row in self.core.journal.incidents("state = ?", (OPEN,))}
        # Newest first: of a job only the last one is looked back at, since all of its seats have the same name.
        for row in self.core.journal.incidents("state != ? AND opened_at_s > ?", (OPEN, self.core.now_s() - LINGER_S)):
            if row.recovery is not None and row.outcome in ("running", "resumed") and row.job_id not in taken:
                taken.add(row.job_id)
                self._lingering[row.key] = Following(row, row.recovery)
        for row in self.core.journal.incidents("state = ?", (OPEN,)):
            if row.recovery is not None and row.mode == self.core.mode.value:
                self.open[row.key] = Following(row, row.recovery)
                self.core.info("recovery.resumed", f"{row.key}: taken up again after a restart of the daemon")

    def begin_anew(self) -> None:
        """Start every stop watch again; what was decided and done stands in the journal."""
        self.open = {key: Following(f.row, f.recovery) for key, f in self.open.items()}
        self._lingering = {}

    def of_job(self, job_id: int) -> Following | None:
        """The recovery under way for a job."""
        return next((f for f in self.open.values() if f.row.job_id == job_id), None)

    def start(self, row: IncidentRow) -> None:
        """Write the plan down; the next tick begins with it."""
        assert row.recovery is not None
        self.core.journal.add_incident(row)
        self.core.info("plan", f"{row.key}: {row.recovery.reason}; seat {', '.join(row.recovery.seat_nodes)}")
        self.actor.crash.after("plan")
        # An earlier one of this job would take the new seat, which has the same name, for one that it left behind.
        self._lingering = {key: f for key, f in self._lingering.items() if f.row.job_id != row.job_id}
        self.open[row.key] = Following(row, row.recovery)

    def supersede(self, key: str, reason: str) -> None:
        """Close a recovery whose job is taken over by another one, which inherits its seat."""
        self.open.pop(key, None)
        self.core.journal.update_incident(
            key, state=CLOSED, outcome="superseded", reason=reason, closed_at_s=self.core.now_s()
        )

    async def tick(self) -> None:
        """Bring every recovery as far as it gets now."""
        self._look_back()
        for following in list(self.open.values()):
            if self.core.now_s() < following.retry_at_s:
                continue
            try:
                await self._advance(following)
            except SlurmError as error:
                # Not heard, or not understood: nothing is concluded from that, the next look decides.
                following.retry_at_s = max(following.retry_at_s, self.core.now_s() + 0.5)
                self.core.alert("recovery.waits", f"{following.row.key}: {error}", key=following.row.key)
            except sqlite3.OperationalError:
                raise  # a full disk: no step of anybody can be written down
            except Exception as error:  # noqa: BLE001 (one job's recovery must not hold up the others)
                following.retry_at_s = self.core.now_s() + BROKEN_AGAIN_S
                if repr(error) != following.broken:
                    following.broken = repr(error)
                    self.core.broken(error, f"{following.row.key}: not stepped on, tried again")

    def _look_back(self) -> None:
        """A controller killed seconds after the job ran again may have forgotten all of it: then it is done again."""
        core = self.core
        for f in list(self._lingering.values()):
            job = core.world.jobs.get(f.row.job_id)
            if core.now_s() > max(f.row.opened_at_s, f.finished_at_s) + LINGER_S:
                del self._lingering[f.row.key]
                continue
            seat = f.recovery.seat in core.world.reservations and core.world.reservations_at_s > f.finished_at_s
            back = job is not None and core.world.jobs_at_s > f.finished_at_s and forgotten(f.recovery, job)
            if seat or back:
                del self._lingering[f.row.key]
                core.journal.update_incident(f.row.key, state=OPEN, outcome="", reason="", closed_at_s=None)
                self.open[f.row.key] = Following(f.row, f.recovery)
                core.alert("recovery.forgotten", f"{f.row.key}: Slurm is back before the recovery; it is done again")

    async def _advance(self, f: Following) -> None:
        core = self.core
        await core.read_reservations()
        looked_again = False
        for _ in range(STEPS_AT_ONCE):
            job = await core.call(core.client.job, f.recovery.job)
            f.watch(job, core)
            kept_away = frozenset(q.node for q in self.breaker.ledger.quarantines())
            view = f.view(job, core, may_take_out=not self.breaker.why_open, in_quarantine=kept_away)
            self._stamp(f, view)
            step = next_step(f.recovery, view)
            if self._too_much(step):
                continue
            hurts = isinstance(step, Do) and step.action.kind is ActionKind.SET_DOWN
            if (hurts or isinstance(step, GiveUp)) and not looked_again:
                # What could hurt another job, or leave this one: only on what Slurm shows this very moment.
                looked_again = True
                await core.read_nodes()
                await core.read_jobs()
                continue
            if not isinstance(step, Do):
                self._conclude(f, step)
                return
            await self._perform(f, step)
            await self._look_after(f, step)

    def _too_much(self, step: Step) -> bool:
        """True where the breaker says no, and has opened by that: the next look then takes nothing out."""
        takes_out = isinstance(step, Do) and step.action.kind in (ActionKind.DRAIN, ActionKind.SET_DOWN)
        return takes_out and isinstance(step, Do) and not self.breaker.allows(frozenset((step.action.target,)))

    async def _look_after(self, f: Following, step: Do) -> None:
        kind = step.action.kind
        if kind is ActionKind.POINT_JOB_AT_SEAT:
            # All that follows is to wait for it: from now on.
            waits = (a for a in f.recovery.actions if a.kind is ActionKind.WAIT_RUNNING)
            for action in waits:
                self.core.journal.note_call(f.row.key, action, self.core.now_s())
        if kind in (ActionKind.QUARANTINE, ActionKind.CREATE_SEAT, ActionKind.DELETE_SEAT):
            await self.core.read_reservations()
        if kind in (ActionKind.DRAIN, ActionKind.SET_DOWN):
            await self.core.read_nodes()

    async def _perform(self, f: Following, step: Do) -> None:
        ledger, name, now_s = self.breaker.ledger, step.action.target, self.core.now_s()
        survivor = step.action.kind is ActionKind.SET_DOWN and name not in f.recovery.bad
        if survivor:
            # Written down first: the quarantine brings back what we set DOWN, once it answers and has passed its check.
            why = f"set DOWN: {step.action.reason}"
            ledger.quarantine(Quarantine(name, f.row.key, f.row.job_id, f.row.lineage, why, now_s, now_s))
        try:
            await self.actor.perform(f.row.key, step.action)
        except SlurmRefusedError as error:
            if survivor:
                ledger.leave(name)
            f.refusals += 1
            f.retry_at_s = self.core.now_s() + 0.2 * f.refusals
            if f.refusals >= TRIES and not f.row.abort:
                self._give_up(f, GiveUp("aborted", f"{step.action.kind.value} was refused: {error}"))
            elif f.row.abort:
                f.retry_at_s = self.core.now_s() + min(30.0, float(f.refusals))
            raise
        f.refusals = 0

    def _stamp(self, f: Following, view: View) -> None:
        """Mark what Slurm shows done, and the scoreboard's times that only the daemon sees."""
        core, now_s = self.core, self.core.now_s()
        for row, action in ((a, _action(a)) for a in core.journal.actions(f.row.key)):
            waits = row.kind == ActionKind.WAIT_RUNNING.value
            if row.done_at_s is None and (row.calls or waits) and shown(f.recovery, action, view):
                core.journal.note_result(f.row.key, action, now_s)
        job, times = view.job, dict(f.row.times)
        if job is not None and job.restart_count > f.recovery.restart and not job.completing:
            times.setdefault("stopped", now_s)
            if job.state == "RUNNING":
                times.setdefault("running", now_s)
        if times != f.row.times:
            f.row = replace(f.row, times=times)
            core.journal.update_incident(f.row.key, times=times)

    def _conclude(self, f: Following, step: Step) -> None:
        if isinstance(step, GiveUp):
            self._give_up(f, step)
        elif isinstance(step, Finish):
            outcome, _, reason = f.row.abort.partition("|") if f.row.abort else (step.outcome, "", step.reason)
            back = outcome == "running"
            changes: dict[str, Any] = {"state": RUNNING if back else CLOSED, "outcome": outcome, "reason": reason}
            if not back:
                changes["closed_at_s"] = self.core.now_s()
            self.core.journal.update_incident(f.row.key, **changes)
            self.open.pop(f.row.key, None)
            if back:
                f.finished_at_s = self.core.now_s()
                self._lingering[f.row.key] = f
            say = self.core.info if back or outcome in ("ended", "came_back", "went_on") else self.core.alert
            took_s = f.row.times.get("running", 0.0) - f.row.times.get("accepted", 0.0)
            say("recovery." + outcome, f"{f.row.key}: {reason}{f', {took_s:.1f} s after the decision' if back else ''}")

    def _give_up(self, f: Following, step: GiveUp) -> None:
        f.row = replace(f.row, abort=f"{step.outcome}|{step.reason}")
        self.core.journal.update_incident(f.row.key, abort=f.row.abort)
        self.core.alert("recovery.given_up", f"{f.row.key}: {step.reason}")


def _action(row: ActionRow) -> Action:
    return Action(ActionKind(row.kind), row.target, row.reason, row.args)
