"""Carries out a plan: ends the attempt, then stops for good, relaunches in the allocation, or requeues."""

from __future__ import annotations

import signal
from dataclasses import replace

from slurm_robust.core.model import Plan, Road
from slurm_robust.core.text import shortened
from slurm_robust.marks import claim
from slurm_robust.policy.job.eviction import with_dirty
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.launch import resume_points
from slurm_robust.supervise.launch.srun_command import relaunch
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.outcome import ExecutePlan, Exit, Relaunch
from slurm_robust.supervise.recover import step_control
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.versions.code_keeper import CodeKeeper
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use
from slurm_robust.supervise.watch.losses import Losses

_FOLLOW_S = 5.0
_SRUN_GIVES_UP_S = 45.0
"""Once it was told to end, srun waits for its step for KillWait and two seconds, by default 32 s."""
_POLL_S = 0.1


class PlanExecutor:
    """Carries out the plan of the current incident. A relaunch is returned to the supervisor, which launches it."""

    def __init__(
        self, session: Session, store: LineageStore, log: IncidentLog, losses: Losses, code: CodeKeeper
    ) -> None:
        self._session = session
        self._store = store
        self._log = log
        self._losses = losses
        self._code = code

    async def execute(self, order: ExecutePlan, attempt: AttemptState, start: AttemptStart) -> Exit | Relaunch:
        """End the attempt, and take the plan's road. If the road is a requeue, wait for it."""
        session, store, plan = self._session, self._store, order.plan
        folder, resume_point = session.folder, attempt.resume_point
        before = replace(start.remembered(), incident=self._log.incident.id)
        store.attempt_ended(before, attempt.step, resume_point.step, order)
        self._remember_moves(plan, attempt)
        store.climbed(order)
        demotion = self._demotion(attempt)
        await self.end_attempt(plan, attempt)
        if demotion:
            folder.log_event("checkpoint", resume_points.demote(resume_point, demotion))
        if plan.roll_back:
            text, back_to = await self._losses.go_back()
            folder.log_event("checkpoint", text, incident=self._log.incident.id)
            if back_to is not None:
                store.went_back(back_to)
        await self._code.attempt_over(plan, order.failure)
        store.update_claim(resume_step=resume_point.step)
        if plan.road is Road.STOP:
            return await self._stop(plan)
        await self._pause(plan)
        if plan.road in (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION) and session.channel is not None:
            return await self._prepare_relaunch(plan, attempt)
        return await self._requeue(plan)

    def _remember_moves(self, plan: Plan, attempt: AttemptState) -> None:
        session, nodes = self._session, self._session.allocation.nodes
        used = nodes_in_use(session, attempt)
        if moves := session.node_faults.moves(plan.evict, nodes, used, session.clock.now_s()):
            session.node_faults.moved(moves)

    async def end_attempt(self, plan: Plan, attempt: AttemptState) -> None:
        """End the training step, as far as the plan's road allows, unless it has already ended."""
        session = self._session
        if session.channel is None and plan.road is Road.STOP and attempt.exits:
            await self._wait_for_srun()
        # Without a channel srun is not ours. It would end with its step, the script's next lines would run, and the
        # job would be over before it is requeued: there the requeue itself ends the step.
        if session.channel is not None or (plan.road is Road.STOP and session.srun_exit_code is None):
            await step_control.end_step(session, attempt.fleet)
            await self._end_attached_srun()
        self._log.set_time("stopped")

    async def _pause(self, plan: Plan) -> None:
        """Wait in the allocation, as the plan says."""
        session, clock = self._session, self._session.clock
        if plan.pause_s <= 0:
            return
        if session.attached is not None:
            session.attached.keep_waiting()
        text = f"waiting {plan.pause_s:g} s before the next attempt"
        session.folder.log_event("waiting", text, incident=self._log.incident.id)
        self._log.save()
        deadline = clock.monotonic_s() + plan.pause_s
        while clock.monotonic_s() < deadline and not (session.launcher_gone or session.attached_srun_gone):
            await clock.sleep(_POLL_S)

    async def _end_attached_srun(self) -> None:
        """Have srun end with its step: it would wait for ever for a task whose slurmstepd is gone, and the job, too.

        srun is told to end before it is killed, so that it ends with the exit code of the tasks that it knows.
        """
        attached = self._session.attached
        if attached is None or not attached.launcher:
            return
        await self._wait_for_srun()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._session.srun_exit_code is None and not attached.over:
                attached.kill(number)
                await self._wait_for_srun(_SRUN_GIVES_UP_S)

    async def _wait_for_srun(self, within_s: float = _FOLLOW_S) -> None:
        """Wait a moment for the other ranks to follow the dead one: else our own kill would become srun's exit code."""
        session, clock = self._session, self._session.clock
        deadline = clock.monotonic_s() + within_s
        while session.srun_exit_code is None and not session.attached_srun_gone and clock.monotonic_s() < deadline:
            await clock.sleep(_POLL_S)

    def _demotion(self, attempt: AttemptState) -> str:
        """Return why the checkpoint of this attempt is not used again; empty if it is."""
        lineage, start = self._store.lineage, attempt.resume_point
        failed = lineage.failed_starts if lineage.start_step == start.step else 0
        limit = self._session.config.checkpoint.demote_after_failed_starts
        if start.path is None or failed < limit:
            return ""
        return f"{failed} attempts died before their first step from it"

    async def _stop(self, plan: Plan) -> Exit:
        session, ended = self._session, self._session.srun_exit_code
        self._store.forget()
        code = plan.exit_code if plan.exit_code is not None else ended if ended is not None else 1
        text = f"stopped, exit code {code}"
        if session.attached is not None and ended is not None:
            # The srun is somebody else's: it waits for us, and keeps its own exit code.
            code, text = ended, f"no attempt follows; srun ends with its own exit code {ended}"
        self._log.update(outcome=f"Stopped for good, exit code {code}.")
        incident = self._log.incident
        session.folder.log_event("stopped", f"{text}: {plan.reason}", incident=incident.id)
        self._log.save()
        await session.job.write_claim(
            state=claim.STATE_DONE, incident=incident.id, why=plan.reason, times=dict(incident.times)
        )
        return Exit(code)

    async def _requeue(self, plan: Plan) -> Exit:
        self._log.save()
        if self._session.attached is not None:
            self._session.attached.keep_waiting()
        return Exit(await step_control.requeue(self._session, self._log.incident, plan))

    async def _prepare_relaunch(self, plan: Plan, attempt: AttemptState) -> Exit | Relaunch:
        session, allocation, fleet = self._session, self._session.allocation, attempt.fleet
        assert session.command is not None
        used = fleet.step_nodes or len({r.node for r in fleet.ranks.values()})
        reachable = [n for n in allocation.without(plan.evict) if n not in allocation.silent_nodes]
        dirty = await step_control.clear_nodes(session, fleet, reachable)
        evict = with_dirty(plan.evict, dirty, len(allocation.nodes))
        kind = "note" if evict is None else "suspect"
        for node, why in dirty.items():
            text = f"{kind}: {node} still has processes after SIGKILL: {why}"
            session.folder.log_event(kind, text, node=node, incident=self._log.incident.id)
        if evict is None:
            names = shortened(", ".join(sorted(dirty)), 60)
            reason = f"{plan.reason}; {len(dirty)} nodes still have processes ({names}): a cause that they share"
            return await self._requeue(replace(plan, road=Road.SEAT, reason=reason))
        if len(allocation.without(evict)) < used:
            reason = f"{plan.reason}; no spare node is left in the allocation"
            return await self._requeue(replace(plan, road=Road.SEAT, evict=evict, reason=reason))
        argv = relaunch(session.launched(session.command), allocation.evicted.union(evict), used or None)
        return Relaunch(tuple(argv), frozenset(evict), used)
