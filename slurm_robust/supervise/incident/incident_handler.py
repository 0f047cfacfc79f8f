"""What is done about silence, a dead rank, or an srun that ended badly: evidence, verdict, plan."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from slurm_robust import claim
from slurm_robust.localize.failure import DISK_FULL, disk_path
from slurm_robust.model import Conclusion, Mode, Plan, Road, Signal, SignalKind, Verdict
from slurm_robust.policy.job.decide import decide
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.incident import full_disk, incident_page
from slurm_robust.supervise.incident.investigation import SILENT_AGENT_S, Investigator
from slurm_robust.supervise.incident.situation import Facts, describe, lost_nodes
from slurm_robust.supervise.launch import srun_refusal
from slurm_robust.supervise.watch.suspicion import Assessment, Level

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_GRACE_S = 1.0
"""From the first rank's death to the judgement: the others' last words are on their way."""
_PAUSE_S = 0.1
_EARLY_CAPTURES = 7
"""Looked at often for the first half minute, in which most hangs are told from pauses; then now and then."""
_WITHOUT_THE_DAEMON = (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION, Road.STOP, Road.ALERT_ONLY)
"""What the job does by itself is only reported. The other roads begin with a claim, which the daemon weighs."""


class Handling:
    """The incidents of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._dead: list[str] = []

    def investigator(self, record: incident_page.Record) -> Investigator:
        """Takes and weighs the captures of this incident."""
        s = self._s
        return Investigator(
            s.config.supervise,
            s.agents.tell,
            s.present.fleet,
            folder=s.folder,
            record=record,
            scene=s.present.scene,
        )

    # -- what happened ----------------------------------------------------------------------------------------------

    async def silent(self, found: Assessment) -> int | None:
        """Capture, wait, capture again; act only on a pattern that explains the waiting, or past the limit."""
        s = self._s
        record = s.book.open(time.time() - found.silent_s)
        s.folder.tell("suspected", f"silence suspected: {found.why}", ranks=found.ranks, incident=record.id)
        record.signals.append(Signal(SignalKind.SILENCE, time.time(), "progress", found.why))
        inquiry = self.investigator(record)
        await inquiry.capture()
        said, reported = "", False
        while True:
            early = inquiry.rounds < _EARLY_CAPTURES
            pause_s = s.config.supervise.corroborate_after_s if early else s.config.supervise.recapture_s
            if await self._over(pause_s, found.level):
                self._drop(record)
                return None
            await inquiry.capture()
            await self._look_for_dead_nodes()
            verdict = inquiry.judge()
            found = s.present.assess(s.config.supervise)
            if found.level is Level.QUIET:
                self._drop(record)
                return None
            plan = await self._decide(verdict, inquiry, record, overdue=found.level is Level.OVERDUE, ended=False)
            if plan.road is not Road.ALERT_ONLY:
                return await self._carry_out(record, inquiry, verdict, plan)
            if found.level is Level.OVERDUE and not reported:
                # Nobody may act, and it will not go on: a person has to know.
                reported = True
                record.outcome = "Alert only: nothing was done."
                await s.context.report(record.id, verdict, plan, record.times, s.config.mode)
            s.book.save(record)
            if plan.reason != said:
                said = plan.reason
                s.folder.tell("waiting", plan.reason, incident=record.id)

    async def _over(self, pause_s: float, level: Level) -> bool:
        """Wait; True as soon as the silence is over one way or another.

        The wait also ends where the silence reaches a higher level than this one: what the action limit asks for must
        not wait for the next capture.
        """
        s = self._s
        deadline = time.monotonic() + pause_s
        while time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_S)
            await s.glance()
            gone = s.channel is not None and s.channel.gone.is_set()
            gone = gone or (s.attached is not None and s.attached.over)
            if gone or s.ended is not None or s.present.scene.exits:
                return True
            reached = s.present.assess(s.config.supervise).level
            if reached is Level.QUIET:
                return True
            if reached > level:
                return False
        return False

    def _drop(self, record: incident_page.Record) -> None:
        """The silence ended by itself, or by something worse that is looked at next."""
        s = self._s
        record.outcome = "It went on by itself; nothing was done."
        # The pause is a sample of its own now; the next look at the same pause would tell nothing new.
        s.present.quiet_until_s = time.time() + s.config.supervise.corroborate_after_s
        s.book.save(record)
        if not s.present.scene.exits and s.ended is None:
            s.folder.tell("cleared", "training moves again; nothing was done", incident=record.id)
            s.book.came_to_nothing()
        s.record = None
        s.context.clear()

    async def died(self) -> int | None:
        """A rank died: hear the others' last words, take their stacks, judge."""
        s = self._s
        s.context.suspect()
        await self._gather_exits()
        if s.present.cancelled:
            s.present.scene.exits.clear()  # somebody cancelled the step; srun's end follows
            s.context.clear()
            return None
        first = min(s.present.scene.exits.values(), key=lambda e: e.at_s)
        record = s.book.open(first.at_s)
        how = f"signal {first.signal}" if first.signal else f"exit code {first.exit_code}"
        s.folder.tell("suspected", f"rank {first.rank} on {first.node} ended with {how}", incident=record.id)
        record.signals.append(Signal(SignalKind.RANK_EXITED, first.at_s, "srun", how, first.node, first.rank))
        inquiry = self.investigator(record)
        if s.present.fleet.alive and s.ended is None:
            await inquiry.capture()
        await self._look_for_dead_nodes()
        verdict = inquiry.judge()
        plan = await self._decide(verdict, inquiry, record, overdue=False, ended=True)
        return await self._carry_out(record, inquiry, verdict, plan)

    async def ended(self, code: int) -> int | None:
        """Srun has ended: well, badly, or because somebody wanted it."""
        s = self._s
        if code == 0:
            if s.record is not None:
                await s.resumed(s.record, max(s.present.step, s.start.step))
            step = s.present.step
            s.folder.tell("finished", f"finished at step {step}" if step >= 0 else "finished", step=step)
            s.roads.forget()
            await s.context.say(state=claim.STATE_DONE, step=step, fruitless=0)
            return 0
        if refused := await self._refusal(code):
            s.folder.tell(
                "refused", f"srun did not start the step: {refused}; exit code {code}, nothing is started anew"
            )
            return code
        s.context.suspect()
        fault_at_s = s.present.last_sign_s
        s.present.confirm_exits(ended=True)
        await self._gather_exits()
        if s.present.cancelled:
            s.folder.tell("cancelled", f"the step was cancelled; exit code {code}")
            return code
        if not s.present.scene.exits:
            s.present.whole_exit(code)
        s.present.add_last_lines()
        record = s.book.open(fault_at_s)
        s.folder.tell("suspected", f"the training step ended with exit code {code}", incident=record.id)
        inquiry = self.investigator(record)
        await self._look_for_dead_nodes()
        verdict = inquiry.judge()
        plan = await self._decide(verdict, inquiry, record, overdue=False, ended=True)
        return await self._carry_out(record, inquiry, verdict, plan)

    async def _refusal(self, code: int) -> str:
        """Srun's words, where it has ended because it does not take its own options."""
        s = self._s
        if code != srun_refusal.REFUSED or s.command is None or s.present.fleet.ranks:
            return ""
        return await srun_refusal.refusal(s.command.options, s.environment)

    async def _gather_exits(self) -> None:
        s = self._s
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and len(s.present.scene.exits) < s.present.fleet.world:
            await asyncio.sleep(_PAUSE_S)
            await s.glance()
        s.present.add_last_lines()

    # -- deciding and acting ----------------------------------------------------------------------------------------

    async def proven(
        self, inquiry: Investigator, record: incident_page.Record, *, finished: bool = False
    ) -> int | None:
        """Judge what quiet looks have found, and act where that is enough.

        Args:
            inquiry: With their captures.
            record: The incident.
            finished: Ranks are known to have left with exit code 0; that others wait for them is still to be seen.
        """
        verdict = inquiry.judge()
        ended = finished and verdict.conclusion is Conclusion.USER_CODE
        plan = await self._decide(verdict, inquiry, record, overdue=False, ended=ended)
        return await self._carry_out(record, inquiry, verdict, plan)

    async def _decide(
        self, verdict: Verdict, inquiry: Investigator, record: incident_page.Record, *, overdue: bool, ended: bool
    ) -> Plan:
        s, known = self._s, self._s.roads.so_far.until(self._s.present.step)
        facts = Facts(
            config=s.config,
            job=s.context.job,
            fleet=s.present.fleet,
            command=s.command if s.channel is not None else None,
            environment=s.environment,
            nodes=s.nodes,
            silent_nodes=s.silent_nodes,
            dead_nodes=self._dead,
            failure=inquiry.failure,
            earlier=known.failures,
            older=known.older,
            restarts_in_place=known.restarts_in_place,
            fruitless=s.roads.fruitless_after(s.present.step),
            failed_launches=s.roads.failed_after(s.present.step),
            resumes=s.beginning.resumes(),
            at_stake=s.beginning.at_stake(),
            overdue=overdue,
            ended=ended,
            exit_code=self._own_code(),
            srun_ended=s.ended is not None,
            bad_loss=await s.losses.bad(),
            full_disk=await self._full_disk(inquiry),
        )
        record.plan = decide(describe(verdict, facts))
        return record.plan

    async def _full_disk(self, inquiry: Investigator) -> str:
        """Which disk is full now, where the ranks say that one was; empty where there is room."""
        s = self._s
        if inquiry.failure is None or inquiry.failure.signature != DISK_FULL:
            return ""
        named = disk_path(s.present.scene.exits.values())
        command = s.command.command if s.command is not None else s.attached.words if s.attached is not None else ()
        return await full_disk.full(named, s.start.path, s.checkpoint_dir, command)

    def _own_code(self) -> int | None:
        """The program's own exit code: srun's, or that of the first rank that ended while others still run."""
        if self._s.ended is not None:
            return self._s.ended
        first = min(self._s.present.scene.exits.values(), key=lambda e: e.at_s, default=None)
        if first is None:
            return None
        return 128 + first.signal if first.signal else first.exit_code

    async def _dead_nodes(self) -> list[str]:
        """Nodes of the job that are lost; where Slurm cannot be asked, none."""
        s = self._s
        try:
            nodes = await asyncio.to_thread(s.context.client.nodes)
        except SlurmError as error:
            s.folder.tell("note", f"Slurm could not be asked about the job's nodes: {error}")
            return []
        return lost_nodes(s.nodes, nodes, s.present.fleet.heard_within(time.time(), SILENT_AGENT_S))

    async def _look_for_dead_nodes(self) -> None:
        """A rank that died with its node is the node's: what Slurm knows of the nodes is part of the evidence."""
        scene = self._s.present.scene
        self._dead = await self._dead_nodes()
        # Built anew at each look: a node that is back is no evidence any more.
        told = {x.node: x for x in scene.signals if x.kind is SignalKind.NODE_DOWN}
        scene.signals[:] = [x for x in scene.signals if x.kind is not SignalKind.NODE_DOWN]
        text = "Slurm calls it down or not responding"
        for node in self._dead:
            found = told.get(node) or Signal(SignalKind.NODE_DOWN, time.time(), "slurm", text, node=node)
            scene.signals.append(found)

    async def _carry_out(
        self, record: incident_page.Record, inquiry: Investigator, verdict: Verdict, plan: Plan
    ) -> int | None:
        s = self._s
        told = f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        s.folder.tell("verdict", f"{verdict.conclusion.value}: {told}", incident=record.id)
        for suspect in verdict.suspects:
            ranks = ",".join(map(str, suspect.ranks))
            text = f"suspect: rank {ranks} on {suspect.node}, confidence {suspect.confidence:.2f}"
            if suspect.why not in verdict.reason:
                text += f": {suspect.why}"
            s.folder.tell(
                "suspect",
                text,
                node=suspect.node,
                ranks=suspect.ranks,
                confidence=suspect.confidence,
                why=suspect.why,
                incident=record.id,
            )
        record.stamp("decided")
        if s.attached is not None and s.attached.over:
            # The script owns its srun, and is past it.
            s.folder.tell("note", "its srun has ended: there is no step left to bring back", incident=record.id)
            record.outcome = "The step's srun had ended: nothing was done."
            return self._leave_alone(record, s.config.supervise.action_limit_s)
        if not s.acting:
            record.outcome = "Observe mode: nothing was done."
            s.book.save(record)
            await s.context.report(record.id, verdict, plan, record.times, Mode.OBSERVE)
            s.folder.tell("observed", f"observe mode: would take {plan.road.value}: {plan.reason}", incident=record.id)
            return self._leave_alone(record, s.config.supervise.action_limit_s)
        s.book.save(record)
        s.folder.tell("decided", f"{plan.road.value}: {plan.reason}", road=plan.road.value, evict=plan.evict)
        if plan.road in _WITHOUT_THE_DAEMON:
            await s.context.report(record.id, verdict, plan, record.times, Mode.ACT)
        if plan.road is Road.ALERT_ONLY:
            record.outcome = "Alert only: nothing was done."
            return self._leave_alone(record, s.config.supervise.recapture_s)
        return await s.roads.take(record, verdict, plan, inquiry.failure)

    def _leave_alone(self, record: incident_page.Record, quiet_s: float) -> int | None:
        """Do nothing; what is said of the same silence again would be the same, so not for a while."""
        s = self._s
        s.book.save(record)
        s.book.came_to_nothing()
        s.record = None
        # That something is wrong stays said until training moves again: nobody has done anything about it.
        s.present.scene.exits.clear()
        s.present.quiet_until_s = time.time() + quiet_s
        return s.ended
