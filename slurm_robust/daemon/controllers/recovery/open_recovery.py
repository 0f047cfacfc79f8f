"""Holds an open recovery: its row in the journal, its timers, and the inputs of the policy's decision."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurm_robust.core.model import ActionKind, Incident
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.marks.claim import STATE_WANTS_REQUEUE, ClaimError, answer_to, parse
from slurm_robust.policy.cluster.node_states import in_reservations
from slurm_robust.policy.cluster.recovery_plan import Recovery
from slurm_robust.policy.cluster.recovery_view import View, opened
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand

STILL_SHARE, STILL_MAX_S = 0.05, 3.0
"""A job that has not changed for a while is looked at after this share of that time, at the latest after that."""


@dataclass
class OpenRecovery:
    """An open recovery. Only its timers are not in the journal."""

    row: IncidentRow
    recovery: Recovery
    completing_since_s: float = 0.0
    alone_since_s: float = 0.0
    ended_at_s: float = 0.0
    pending_since_s: float = 0.0
    pointed_since_s: float = 0.0
    lost_since_s: float = 0.0
    awaits_check: bool = False
    """Whether its seat awaits a node that is yet to be checked."""
    left: bool = False
    """Whether its job was taken out of the seat, and was not let in since."""
    refusals: int = 0
    retry_at_s: float = 0.0
    finished_at_s: float = 0.0
    reopened_at_s: float = 0.0
    """When the recovery was taken up again after its end."""
    changed_at_s: float = 0.0
    """When its job or the recovery last changed, as far as the daemon has seen."""
    look_at_s: float = 0.0
    wait_s: float = 0.0
    """The time from its last look to the next one."""
    before: frozenset[tuple[int, int]] = frozenset()
    """Other jobs of its user, each with its restarts, that were there when the seat was last seen closed."""
    job: Job | None = None
    """The job as Slurm showed it last, without the values that change at each reading."""
    broken: str = ""
    """The internal error that was logged last."""

    def note_change(self, job: Job | None, now_s: float) -> None:
        """Look again soon if the job has changed, and later the longer it has not."""
        # What Slurm computes anew while a job waits is no change: its age's priority, and when it might start.
        job = job and replace(job, start_at_s=0, end_at_s=0, priority=min(job.priority, 1))
        if job != self.job or not self.changed_at_s:
            self.job, self.changed_at_s = job, now_s
        self.wait_s = min(STILL_MAX_S, STILL_SHARE * max(0.0, now_s - self.changed_at_s))
        self.look_at_s = now_s + self.wait_s

    def update_timers(self, job: Job | None, context: DaemonContext) -> None:
        """Start and stop the timers by what Slurm shows."""
        now_s, r = context.now_s(), self.recovery
        completing = job is not None and (job.completing or job.state == "COMPLETING")
        holding = set(job.nodes) if completing and job else set()
        nodes = context.readings.nodes
        alone = bool(holding) and all(n in r.bad or "NOT_RESPONDING" in nodes[n].flags for n in holding if n in nodes)
        pending = job is not None and job.state == "PENDING" and not completing
        if (completing or pending) and not self.ended_at_s:
            self.ended_at_s = now_s
        pointed = pending and job is not None and ActionKind.POINT_JOB_AT_SEAT in self.called(context)
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

    @property
    def incident(self) -> Incident:
        """The incident of the recovery."""
        return self.row.incident

    def called(self, context: DaemonContext) -> frozenset[ActionKind]:
        """Kinds of action that were called at least once, by this daemon or an earlier one."""
        return frozenset(ActionKind(a.kind) for a in context.journal.actions(self.row.key) if a.calls)

    def _was_drained(self, context: DaemonContext) -> frozenset[str]:
        rows = context.journal.actions(self.row.key)
        return frozenset(a.target for a in rows if a.kind == ActionKind.DRAIN.value and a.done_at_s is not None)

    def view(
        self, job: Job | None, context: DaemonContext, *, may_take_out: bool, in_quarantine: frozenset[str]
    ) -> View:
        """Return the inputs of the policy's decision."""
        now_s = context.now_s()

        def since(at_s: float) -> float:
            return now_s - at_s if at_s else 0.0

        answer = answer_to(job.admin_comment, self.incident.id) if job else None
        answered = answer.state if answer else ""
        try:
            claim = parse(job.comment) if job else None
        except ClaimError:
            claim = None
        asks = claim is not None and claim.state == STATE_WANTS_REQUEUE and claim.incident == self.incident.id
        return View(
            job=job,
            reservations=context.readings.reservations,
            nodes=context.readings.nodes,
            occupied=context.readings.busy_without(self.row.job_id),
            called=self.called(context),
            abort=self.row.abort.reason if self.row.abort else "",
            answered=answered,
            completing_s=since(self.completing_since_s),
            alone_s=since(self.alone_since_s),
            pointed_s=since(self.pointed_since_s),
            lost_s=since(self.lost_since_s),
            age_s=now_s - max(self.incident.opened_at_s, self.reopened_at_s),
            was_out="node_out" in self.incident.times,
            was_drained=self._was_drained(context),
            # Whole seconds: slurmd refuses a credential issued in the second in which the last one was revoked.
            settled=int(now_s) > int(self.ended_at_s)
            and int(now_s) >= int(self.pending_since_s) + context.credential_pause_s,
            pause_s=context.credential_pause_s,
            start_timeout_s=context.config.seat.start_timeout_s,
            may_take_out=may_take_out,
            withdrawn=claim is not None and not asks and claim.at_s > self.row.claimed_at_s,
            in_quarantine=in_quarantine,
            now_s=now_s,
            others=tuple(o for o in context.readings.jobs_in(self.recovery.seat) if o.ref.job_id != self.row.job_id),
            hidden=self._hidden(context),
            left=self.left,
        )

    def _hidden(self, context: DaemonContext) -> tuple[Job, ...]:
        """Jobs of the user that can only have come through the open seat, though they do not say so any more."""
        r, readings = self.recovery, context.readings
        seat = readings.reservations.get(r.seat)
        if seat is None:
            return ()
        own = [j for j in readings.there_of(r.user) if j.ref.job_id != self.row.job_id]
        if not opened(seat):
            # Ending jobs are left out: if one was requeued, its next start has the same count of restarts already.
            self.before = frozenset((j.ref.job_id, j.restart_count) for j in own if not j.completing)
            return ()
        points = (a for a in context.journal.actions(self.row.key) if a.kind == ActionKind.POINT_JOB_AT_SEAT.value)
        opened_s = max((a.called_at_s or 0.0 for a in points), default=0.0)
        since_s = int(opened_s)
        if since_s >= seat.start_at_s:
            # Not in the second in which it was made; the jobs are read again after it was made anew.
            since_s = max(seat.start_at_s + 1, since_s)
        late = [j for j in own if j.start_at_s >= since_s and (j.ref.job_id, j.restart_count) not in self.before]
        return tuple(j for j in late if {*expand(seat.nodes)}.intersection(j.nodes) - _by_another_way(j, context))


def _by_another_way(job: Job, context: DaemonContext) -> frozenset[str]:
    """Nodes to which its own reservation or a recovery of its own led it: jobs that share nodes keep the same ones.

    A job that runs can name any reservation of its user's. With one that is FLEX and may lie over others, Slurm may
    start it anywhere; FLEX alone leads to no node of another reservation (22.05).
    """
    named = [context.readings.reservations.get(name) for name in job.reservation.split(",") if name]
    known = [r for r in named if r is not None and not ("FLEX" in r.flags and {"OVERLAP", "MAINT"} & r.flags)]
    if len(known) < len(named):
        return frozenset(job.nodes)
    plans = (r for _, r in context.journal.recoveries(job.ref.job_id, job.user) if r.restart + 1 == job.restart_count)
    return in_reservations(known).union(*(plan.seat_nodes for plan in plans))
