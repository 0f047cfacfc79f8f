"""The roads of a plan, gone: the attempt is ended, then stopped for good, started anew, or requeued."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_robust import claim
from slurm_robust.model import EXIT_STOPPED_FOR_GOOD, Failure, Plan, Road, Verdict
from slurm_robust.policy.job.decide import with_dirty
from slurm_robust.supervise.incident import incident_page
from slurm_robust.supervise.launch import attempt_settings
from slurm_robust.supervise.launch.srun_command import relaunch
from slurm_robust.supervise.recover import lineage, step_control
from slurm_robust.text import shortened

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_FOLLOW_S = 5.0
_POLL_S = 0.1


class Roads:
    """What one supervisor does; what to do was decided before."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        context = supervisor.context
        self._key = _key(supervisor)
        memory = lineage.load(supervisor.folder)
        self.lineage = memory.of(self._key, context.claim, context.previous)
        said = lineage.Tally(context.claim.failed_since_s, context.claim.failed, context.claim.step)
        now_s = time.time()
        # Each of the two may be missing: on a full disk, or where the Comment could not be written.
        self._tally = max(memory.tally.at(now_s), said.at(now_s), key=lambda tally: tally.count)
        self._keep(memory.runs.get(self._key))
        context.claim = self._claimed(incident=self.lineage.incident)

    def _claimed(self, **changes: object) -> claim.Claim:
        mine = self.lineage
        said = replace(self._s.context.claim, lineage=mine.id, step=mine.reached, fruitless=mine.fruitless)
        said = replace(said, failed=self._tally.count, failed_since_s=round(self._tally.since_s, 3))
        return replace(said, **changes)  # type: ignore[arg-type]

    def forget(self) -> None:
        """The training is over, well or badly: another one in this place begins anew."""
        self._keep(None)

    def _keep(self, mine: lineage.Lineage | None) -> None:
        # Who only watches a job beside its own supervisor writes neither its Comment nor its memory.
        if self._s.context.can_claim:
            lineage.save(self._s.folder, self._key, mine, self._tally)

    def fruitless_after(self, step: int) -> int:
        """Attempts in a row without a new step, this one included, where it came as far as `step`."""
        return 0 if step > self.so_far.reached else self.lineage.fruitless + 1

    def failed_after(self, step: int) -> int:
        """Launches of the job within the hour that came to nothing, this one included if `step` is no new one."""
        return self._tally.after(self.so_far, step, time.time()).count

    @property
    def so_far(self) -> lineage.Lineage:
        """What is remembered, as it compares with the numbers that the attempt which runs now has told."""
        return self._s.beginning.remembered(self.lineage)

    def refusal(self) -> str:
        """Why nothing is launched any more; empty where it is. A person at a terminal may try as often as they like."""
        s = self._s
        tally, limit = self._tally.at(time.time()), s.config.supervise.fruitless_launches_per_hour
        if tally.count < limit or not s.acting or sys.stderr.isatty():
            return ""
        until = time.strftime("%H:%M", time.localtime(tally.since_s + lineage.TALLY_S))
        return (
            f"not launched, exit code {EXIT_STOPPED_FOR_GOOD}: {tally.count} launches of this job ended badly without "
            f"a new step within an hour (limit {limit}, supervise.fruitless_launches_per_hour). None follows before "
            f"{until}: end the loop in the batch script, or the job: scancel {s.context.name}"
        )

    def began(self, first: int) -> bool:
        """Remember how this attempt began; True where the program started again from the beginning."""
        s = self._s
        self.lineage, again = self.lineage.began(first, s.start.step, relaunched=s.launches > 1)
        self._keep(self.lineage)
        return again

    async def take(
        self, record: incident_page.Record, verdict: Verdict, plan: Plan, failure: Failure | None
    ) -> int | None:
        """End the attempt, and go the plan's road; an exit code where that is the end."""
        s = self._s
        in_place = plan.road is Road.RESTART_IN_PLACE
        before = replace(self.so_far, incident=record.id)
        self._tally = self._tally.after(before, s.present.step, time.time())
        self.lineage = before.after(s.present.step, s.start.step, failure, in_place=in_place)
        self._keep(self.lineage)
        demotion = self._demotion()
        if s.channel is None and plan.road is Road.STOP and s.present.scene.exits:
            await self._end_by_itself()
        if s.channel is not None or (plan.road is Road.STOP and s.ended is None):
            await step_control.end_step(
                s.context, s.channel, s.agents, s.present.fleet, folder=s.folder, config=s.config.supervise
            )
        # Somebody else's srun would end with its step, the script's next lines run, and the job be over before it is
        # requeued: there the requeue itself ends the step.
        record.stamp("stopped")
        if demotion:
            s.folder.tell("checkpoint", attempt_settings.demote(s.start, demotion))
        if plan.roll_back:
            text, back_to = await s.losses.go_back()
            s.folder.tell("checkpoint", text, incident=record.id)
            if back_to is not None:
                # Wanted: what comes after that checkpoint is new again.
                self.lineage = replace(self.lineage, reached=min(self.lineage.reached, back_to))
                self._keep(self.lineage)
        s.context.claim = self._claimed(resume_step=s.start.step)
        if plan.road is Road.STOP:
            return await self._stop(record, plan)
        if plan.road in (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION) and s.channel is not None:
            return await self._relaunch(record, verdict, plan)
        return await self._requeue(record, verdict, plan)

    async def _end_by_itself(self) -> None:
        """Wait a moment for the other ranks, which follow the dead one: a kill of ours would be srun's exit code."""
        s = self._s
        deadline = time.monotonic() + _FOLLOW_S
        while s.ended is None and not (s.attached is not None and s.attached.over) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)

    def _demotion(self) -> str:
        """Why the checkpoint of this attempt is not to be used again; empty where it is."""
        s, failed = self._s, self.lineage.failed_starts
        if s.start.path is None or failed < s.config.checkpoint.demote_after_failed_starts:
            return ""
        return f"{failed} attempts died before their first step from it"

    async def _stop(self, record: incident_page.Record, plan: Plan) -> int:
        s = self._s
        self.forget()
        code = plan.exit_code if plan.exit_code is not None else s.ended if s.ended is not None else 1
        told = f"stopped, exit code {code}"
        if s.attached is not None and s.ended is not None:
            # Somebody else's srun: it waits for us, and keeps its own exit code.
            code, told = s.ended, f"nothing is brought back; srun ends with its own exit code {s.ended}"
        record.outcome = f"Stopped for good, exit code {code}."
        s.folder.tell("stopped", f"{told}: {plan.reason}", incident=record.id)
        s.book.save(record)
        await s.context.say(state=claim.STATE_DONE, incident=record.id, why=plan.reason, times=dict(record.times))
        return code

    async def _requeue(self, record: incident_page.Record, verdict: Verdict, plan: Plan) -> int:
        s = self._s
        s.book.save(record)
        if s.attached is not None:
            s.attached.stay()
        return await step_control.requeue(
            s.context, s.channel, s.agents, s.folder, s.config, record=record, verdict=verdict, plan=plan
        )

    async def _relaunch(self, record: incident_page.Record, verdict: Verdict, plan: Plan) -> int | None:
        s = self._s
        assert s.command is not None
        used = s.present.fleet.step_nodes or len({r.node for r in s.present.fleet.ranks.values()})
        reachable = [n for n in s.nodes if n not in s.silent_nodes and n not in plan.evict]
        dirty = await step_control.clean(s.agents, s.present.fleet, reachable, s.config.supervise)
        leave = with_dirty(plan.evict, dirty, len(s.nodes))
        kind = "note" if leave is None else "suspect"
        for node, why in dirty.items():
            s.folder.tell(kind, f"{kind}: {node} did not get clean: {why}", node=node, incident=record.id)
        if leave is None:
            told = shortened(", ".join(sorted(dirty)), 60)
            reason = f"{plan.reason}; {len(dirty)} nodes did not get clean ({told}): a cause that they share"
            return await self._requeue(record, verdict, replace(plan, road=Road.SEAT, reason=reason))
        s.evicted |= set(leave)
        if len(s.nodes) < used:
            reason = f"{plan.reason}; no spare node is left in the allocation"
            return await self._requeue(record, verdict, replace(plan, road=Road.SEAT, evict=leave, reason=reason))
        extra = attempt_settings.fresh_rendezvous(s.environment, s.attempt_name(s.launches + 1), s.nodes)
        s.launch(relaunch(s.command, s.evicted, used or None), extra)
        record.stamp("running")
        number = f"{used} of " if used and used < len(s.nodes) else ""
        text = f"srun was started anew for the training step; it may use {number}{','.join(s.nodes)}"
        s.folder.tell("relaunched", text, incident=record.id, evicted=sorted(s.evicted))
        s.book.save(record)
        await s.context.say(incident=record.id, times=dict(record.times))
        return None


def _key(supervisor: Supervisor) -> str:
    """What tells this training from others of its script, in each attempt of the job."""
    if supervisor.command is not None:
        # The launcher started us: its place is ours, whichever of its supervisors we are.
        number = lineage.place(supervisor.folder, supervisor.context.job.restart_count, os.getppid())
        return f"run {number}"
    # Slurm numbers the steps of a script alike in each attempt.
    return supervisor.attached.attempt if supervisor.attached is not None else ""
