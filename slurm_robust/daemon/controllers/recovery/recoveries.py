"""Carries recoveries out: reads Slurm, takes the step that `policy.cluster.recovery_step` names, reads again."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.recovery.open_recovery import OpenRecovery
from slurm_robust.daemon.controllers.recovery.seat_caps import SeatCaps
from slurm_robust.daemon.jobs_together import JobsTogether
from slurm_robust.daemon.store.journal import OPEN, RUNNING, ActionRow, IncidentRow
from slurm_robust.daemon.store.node_ledger import Quarantine
from slurm_robust.daemon.store.seat_bars import SeatBars
from slurm_robust.policy.cluster.node_states import Cluster, candidates, in_reservations
from slurm_robust.policy.cluster.recovery_plan import NODE_LOST, Recovery
from slurm_robust.policy.cluster.recovery_step import Do, Finish, GiveUp, Step, next_step, of_another
from slurm_robust.policy.cluster.recovery_view import View, entered, forgotten, missing, shown
from slurm_robust.policy.cluster.standby_health import SUSPECT_S, withheld
from slurm_robust.slurm.client import Job, Reservation
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.slurm.values import expand

STEPS_AT_ONCE = 16
LINGER_S = 60.0
"""The time for which an ended recovery is still compared with Slurm: slurmctld saves its state every few seconds."""
BROKEN_AGAIN_S = 5.0
"""The pause of a recovery after an internal error, or while its job cannot be read; the others go on."""
SEEN_AGE_S = 0.5
"""The time for which a reading of several jobs at once is used."""
TURN_S = 2.0
"""The time after which the claims of other jobs are read before further recoveries are brought forward."""
TRIES = 4
"""A step that Slurm refused this often is given up; while Slurm is away, it is tried without a limit."""


class Recoveries:
    """All open recoveries."""

    def __init__(self, context: DaemonContext, actor: Actor, breaker: Breaker) -> None:
        self.context, self.actor, self.breaker = context, actor, breaker
        self.open: dict[str, OpenRecovery] = {}
        self._lingering: dict[str, OpenRecovery] = {}
        self.bars = SeatBars(context.journal)
        self.caps = SeatCaps(context, self.bars, self._active)
        self._together = JobsTogether(context, SEEN_AGE_S)
        self._began_s = 0.0

    def load(self) -> None:
        """Continue the recoveries that an earlier daemon left open; compare those that it just ended with Slurm."""
        taken = {row.job_id for row in self.context.journal.unfinished() if row.state == OPEN}
        # Newest first: of a job only the last one counts, since all of its seats have the same name.
        for row in self.context.journal.incidents(
            "state != ? AND opened_at_s > ?", (OPEN, self.context.now_s() - LINGER_S)
        ):
            if row.recovery is not None and row.outcome in ("running", "resumed") and row.job_id not in taken:
                taken.add(row.job_id)
                self._lingering[row.key] = OpenRecovery(row, row.recovery)
        for row in self.context.journal.unfinished():
            if row.state == OPEN and row.recovery is not None and row.mode == self.context.mode.value:
                self.open[row.key] = OpenRecovery(row, row.recovery)
                self.context.info("recovery.resumed", f"{row.key}: continued after a restart of the daemon")

    def restart_timers(self) -> None:
        """Begin all timers anew, since the clock was set back. Decisions and actions are in the journal."""
        self.open = {key: OpenRecovery(f.row, f.recovery) for key, f in self.open.items()}
        self._lingering = {}

    def _active(self) -> int:
        return sum(1 for f in self.open.values() if f.recovery.seat and not f.row.abort)

    def cluster_for(self, job: Job) -> Cluster:
        """Return Slurm's state, with the seats of other jobs that were decided just now and are not created yet."""
        cluster, there = self.context.readings.cluster(), self.context.readings.reservations
        others = (f.recovery for f in self.open.values() if f.row.job_id != job.ref.job_id)
        coming = (Reservation(r.seat, ",".join(r.seat_nodes)) for r in others if r.seat and r.seat not in there)
        suspected, not_yet = self._suspects(cluster)
        reservations = (*cluster.reservations, *coming)
        return replace(cluster, reservations=reservations, suspected=suspected, withheld=not_yet)

    def _suspects(self, cluster: Cluster) -> tuple[frozenset[str], frozenset[str]]:
        """Return the nodes that were suspected a while ago, and those of them that no seat takes before their check."""
        config, ledger, now_s = self.context.config, self.breaker.ledger, self.context.now_s()
        suspected = ledger.suspected(now_s - SUSPECT_S)
        if not suspected or not (config.standby.size and config.standby.check_max_age_h):
            return frozenset(suspected), frozenset()
        own = self.actor.own_jobs
        # Where Slurm refuses the daemon's own jobs, no check can come about.
        there = ((cluster.nodes[n], s) for n, s in suspected.items() if n in cluster.nodes)
        able = {node.name: s for node, s in there if not own.waits(own.partition(node.partitions))}
        members = in_reservations(cluster.reservations, config.standby.prefix + "-")
        limit_s, known = config.quarantine.claim_limit_s, ledger.standby_checks()
        return frozenset(suspected), withheld(able, known, members=members, now_s=now_s, limit_s=limit_s)

    def of_job(self, job_id: int) -> OpenRecovery | None:
        """Return the open recovery of a job."""
        return next((f for f in self.open.values() if f.row.job_id == job_id), None)

    def start(self, row: IncidentRow) -> None:
        """Write the plan to the journal; the next tick takes its first step."""
        assert row.recovery is not None
        self.context.journal.add_incident(row)
        self.context.info("plan", f"{row.key}: {row.recovery.reason}; seat {', '.join(row.recovery.seat_nodes)}")
        self.actor.crash.after("plan")
        # An earlier recovery of this job would take the new seat, which has the same name, for its own.
        self._lingering = {key: f for key, f in self._lingering.items() if f.row.job_id != row.job_id}
        self.open[row.key] = OpenRecovery(row, row.recovery)

    def reopen(self, row: IncidentRow, recovery: Recovery) -> None:
        """Carry a recovery out that had ended, as it is now planned."""
        row = replace(row, state=OPEN, outcome="", closed_at_s=None, recovery=recovery, abort=None)
        self.context.journal.reopen(row)
        self._lingering.pop(row.key, None)
        self.open[row.key] = OpenRecovery(row, recovery, reopened_at_s=self.context.now_s())

    @property
    def seats_left(self) -> bool:
        """False if so many seats are active as the site allows."""
        return self._active() < self.context.config.seat.max_active

    def supersede(self, key: str, reason: str) -> None:
        """Close a recovery that another one of the same job replaces; that one takes over its seat."""
        self.open.pop(key, None)
        self.context.journal.close_incident(key, "superseded", reason, self.context.now_s())

    async def tick(self) -> None:
        """Bring every recovery as far as possible now."""
        self._reopen_forgotten()
        self.caps.look_again()
        self._began_s = began_s = self.context.now_s()
        due = [f for f in self.open.values() if began_s >= max(f.retry_at_s, f.look_at_s)]
        if due:
            # Those that are due soon go with them: many jobs are read in the two calls that one job needs.
            due = [f for f in self.open.values() if began_s >= max(f.retry_at_s, f.look_at_s - f.wait_s / 2)]
        due.sort(key=lambda f: f.look_at_s)
        await self._together.read([f.recovery.job for f in due])
        for following in due:
            if self.context.now_s() - began_s >= TURN_S:
                return  # the others come first at the next poll
            try:
                await self._advance(following)
            except SlurmError as error:
                # Slurm was away, or its answer was not understood: nothing follows from that, the next poll decides.
                following.retry_at_s = max(following.retry_at_s, self.context.now_s() + 0.5)
                self.context.alert("recovery.waits", f"{following.row.key}: {error}", key=following.row.key)
            except sqlite3.OperationalError:
                raise  # a full disk: no step of any recovery can be written down
            except Exception as error:  # noqa: BLE001 (one job's recovery must not delay the others)
                following.retry_at_s = self.context.now_s() + BROKEN_AGAIN_S
                if repr(error) != following.broken:
                    following.broken = repr(error)
                    self.context.own_error(error, f"{following.row.key}: no step taken, tried again")

    @property
    def rest_s(self) -> float:
        """The time for which no recovery needs an action."""
        next_s = min((max(f.retry_at_s, f.look_at_s) for f in self.open.values()), default=0.0)
        return max(0.0, next_s - self.context.now_s())

    @property
    def unchanged_s(self) -> float:
        """The time for which no open recovery, and none of their jobs, has changed; 0 if none is open."""
        last_s = max((f.changed_at_s for f in self.open.values()), default=0.0)
        return max(0.0, self.context.now_s() - last_s) if last_s else 0.0

    def _reopen_forgotten(self) -> None:
        """Repeat a recovery that slurmctld has forgotten, because it was killed seconds after the job ran again."""
        context = self.context
        for f in list(self._lingering.values()):
            job = context.readings.jobs.get(f.row.job_id)
            if context.now_s() > max(f.incident.opened_at_s, f.finished_at_s) + LINGER_S:
                del self._lingering[f.row.key]
                continue
            fresh = context.readings.reservations_at_s > f.finished_at_s
            seat = fresh and f.recovery.seat in context.readings.reservations
            back = job is not None and context.readings.jobs_at_s > f.finished_at_s and forgotten(f.recovery, job)
            if seat or back:
                self.reopen(f.row, f.recovery)
                context.alert("recovery.forgotten", f"{f.row.key}: Slurm has forgotten the recovery; it is repeated")

    async def _advance(self, f: OpenRecovery) -> None:
        context, ref = self.context, f.recovery.job
        age_s = min(SEEN_AGE_S, context.now_s() - self._began_s)
        await context.read_reservations(age_s if self._together.has(ref) else 0.0)
        read_again = False
        for turn in range(STEPS_AT_ONCE):
            seen = not turn and self._together.has(ref)
            job = await (self._together.job(ref) if seen else context.call(context.client.job, ref))
            f.note_change(job, context.now_s())
            f.update_timers(job, context)
            kept_away = frozenset(q.node for q in self.breaker.ledger.quarantines())
            view = f.view(job, context, may_take_out=not self.breaker.why_open, in_quarantine=kept_away)
            if missing(f.recovery, job, view.nodes):
                spare, awaited = self._spare(f.recovery, job)
                view = replace(view, spare=spare, awaited=awaited)
                if f.awaits_check and not awaited:  # its time to start begins only with all its nodes
                    f.pointed_since_s, view = context.now_s(), replace(view, pointed_s=0.0)
                f.awaits_check = awaited
            self._stamp(f, view)
            self._bar(f, view)
            step = next_step(f.recovery, view)
            if self._too_much(step):
                continue
            if seen and isinstance(step, Do) and step.action.kind is ActionKind.REQUEUE:
                continue  # in half a second a job can end: Slurm would start it again
            harms = isinstance(step, Do) and (step.action.kind is ActionKind.SET_DOWN or of_another(f.recovery, step))
            if (harms or isinstance(step, GiveUp)) and not read_again:
                # A step that could harm another job, or gives this one up, is taken only on a fresh reading.
                read_again = True
                await context.read_nodes()
                await context.read_jobs()
                continue
            if harms and context.client.unread.get("jobs"):
                f.retry_at_s = context.now_s() + BROKEN_AGAIN_S  # the job that cannot be read may run there
                return
            if not isinstance(step, Do):
                self._conclude(f, step)
                return
            await self._perform(f, step)
            f.changed_at_s = context.now_s()
            await self._read_again(f, step)

    def _spare(self, r: Recovery, job: Job | None) -> tuple[tuple[str, ...], bool]:
        """Return free nodes like the job's nodes, best first, and whether other nodes only await their full check."""
        if job is None:
            return (), False
        until_s, cluster, readings = r.open_until_s or math.inf, self.cluster_for(job), self.context.readings
        every = replace(cluster, withheld=frozenset())
        waits = replace(job, nodes=())  # Slurm still shows the old nodes of a waiting job: they may have come back
        free = candidates(waits, [*r.seat_nodes, *r.bad], every, self.context.config, until_s)
        free = [n for n in free if n not in r.seat_nodes]
        named, nodes = job.partition.split(","), readings.nodes
        here = {n for n in readings.at_check & nodes.keys() if not {*named}.isdisjoint(nodes[n].partitions)}
        awaited = cluster.withheld & ({*free} | here) - {*expand(job.exclude or "")}
        return tuple(n for n in free if n not in cluster.withheld), bool(awaited)

    def _too_much(self, step: Step) -> bool:
        """Return whether the breaker forbids the step, and has opened: the next step then takes no node out."""
        takes_out = isinstance(step, Do) and step.action.kind in (ActionKind.DRAIN, ActionKind.SET_DOWN)
        return takes_out and isinstance(step, Do) and not self.breaker.allows(frozenset((step.action.target,)))

    async def _read_again(self, f: OpenRecovery, step: Do) -> None:
        kind = step.action.kind
        if kind is ActionKind.POINT_JOB_AT_SEAT:
            # From now on the recovery only waits for the job to start.
            for action in (a for a in f.recovery.actions if a.kind is ActionKind.WAIT_RUNNING):
                self.context.journal.note_call(f.row.key, action, self.context.now_s())
        reserve = (ActionKind.QUARANTINE, ActionKind.CREATE_SEAT, ActionKind.POINT_JOB_AT_SEAT, ActionKind.DELETE_SEAT)
        if kind in reserve:
            await self.context.read_reservations()
        again = step.action not in f.recovery.actions or ActionKind.POINT_JOB_AT_SEAT in f.called(self.context)
        if (kind is ActionKind.CREATE_SEAT and again) or "close" in step.action.args or of_another(f.recovery, step):
            await self.context.read_jobs()  # one may have come to a node just before the seat did, or through it
        if kind in (ActionKind.DRAIN, ActionKind.SET_DOWN):
            await self.context.read_nodes()
            # The next recovery of this poll must see it.
            self.breaker.count_drains()

    async def _perform(self, f: OpenRecovery, step: Do) -> None:
        ledger, name, now_s, r = self.breaker.ledger, step.action.target, self.context.now_s(), f.recovery
        cared_for = {q.node for q in ledger.quarantines()} | ({*r.bad} if r.kind == NODE_LOST else set())
        cared_for |= {a.target for a in r.actions if a.kind is ActionKind.DRAIN}
        nobodys = step.action.kind is ActionKind.SET_DOWN and name not in cared_for
        if nobodys:
            # Written down first: the quarantine resumes a node set DOWN, once it responds and has passed its check.
            why = f"set DOWN: {step.action.reason}"
            row = f.row
            ledger.quarantine(Quarantine(name, row.key, row.job_id, row.lineage, why, now_s, now_s, user=row.user))
        try:
            await self.actor.perform(f.row.key, step.action)
        except SlurmRefusedError as error:
            if step.action.kind is ActionKind.DELETE_SEAT:
                await self.context.read_jobs()  # another job has come into it
            if nobodys:
                ledger.leave(name)
            f.refusals += 1
            f.retry_at_s = self.context.now_s() + 0.2 * f.refusals
            if f.refusals >= TRIES and not f.row.abort:
                self._give_up(f, GiveUp("aborted", f"{step.action.kind.value} was refused: {error}"))
            elif f.row.abort:
                f.retry_at_s = self.context.now_s() + min(30.0, float(f.refusals))
            raise
        f.refusals = 0
        if step.action.kind in (ActionKind.LEAVE_SEAT, ActionKind.POINT_JOB_AT_SEAT) and not of_another(r, step):
            f.left = step.action.kind is ActionKind.LEAVE_SEAT

    def _bar(self, f: OpenRecovery, view: View) -> None:
        """Bar a user whose other job has started in a seat from claims for a day."""
        for other in entered(f.recovery, view):
            # Root's jobs may go everywhere.
            if other.user == f.row.user and (told := self.bars.bar(other, f.incident.job, self.context.now_s())):
                self.context.alert("seat.entered", told)

    def _stamp(self, f: OpenRecovery, view: View) -> None:
        """Mark the actions that Slurm shows done, and the times that only the daemon can see."""
        context, now_s = self.context, self.context.now_s()
        for row, action in ((a, _action(a)) for a in context.journal.actions(f.row.key)):
            # Nothing is called for the one, and the requeue may have placed the job already.
            uncalled = action.kind in (ActionKind.WAIT_RUNNING, ActionKind.POINT_JOB_AT_SEAT)
            if row.done_at_s is None and (row.calls or uncalled) and shown(f.recovery, action, view):
                context.journal.note_result(f.row.key, action, now_s)
        job, times = view.job, dict(f.incident.times)
        if f.recovery.kind == NODE_LOST and any(view.nodes[n].drained for n in f.recovery.bad if n in view.nodes):
            times.setdefault("node_out", now_s)  # it may be back before the job is
        if job is not None and job.restart_count > f.recovery.restart and not job.completing:
            times.setdefault("stopped", now_s)
            if job.state == "RUNNING":
                times.setdefault("running", now_s)
        if times != f.incident.times:
            f.row = replace(f.row, incident=replace(f.incident, times=times))
            context.journal.update_incident(f.row.key, times=times)

    def _conclude(self, f: OpenRecovery, step: Step) -> None:
        if isinstance(step, GiveUp):
            self._give_up(f, step)
        elif isinstance(step, Finish):
            end = f.row.abort or step
            outcome, reason, now_s, journal = end.outcome, end.reason, self.context.now_s(), self.context.journal
            back = outcome == "running"
            if back:
                journal.update_incident(f.row.key, state=RUNNING, outcome=outcome, reason=reason)
                f.finished_at_s = now_s
                self._lingering[f.row.key] = f
            else:
                journal.close_incident(f.row.key, outcome, reason, now_s)
            self.open.pop(f.row.key, None)
            well = (back and not step.unplanned) or outcome in ("ended", "came_back", "went_on")
            say = self.context.info if well else self.context.alert
            times = f.incident.times
            took_s = times.get("running", 0.0) - times.get("accepted", 0.0)
            say("recovery." + outcome, f"{f.row.key}: {reason}{f', {took_s:.1f} s after the decision' if back else ''}")

    def _give_up(self, f: OpenRecovery, step: GiveUp) -> None:
        f.row = replace(f.row, abort=step)
        self.context.journal.give_up(f.row.key, step)
        self.context.alert("recovery.given_up", f"{f.row.key}: {step.reason}")


def _action(row: ActionRow) -> Action:
    return Action(ActionKind(row.kind), row.target, row.reason, row.args)
