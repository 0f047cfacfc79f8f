"""What is done about silence, a dead rank, or an srun that ended badly: evidence, verdict, plan, act."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_robust import claim
from slurm_robust.model import Conclusion, Plan, Road, Signal, SignalKind, Verdict
from slurm_robust.policy.decide import decide
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise import attempts, incident, lineage, recovery
from slurm_robust.supervise.investigate import Investigator
from slurm_robust.supervise.situation import Facts, describe
from slurm_robust.supervise.srunargs import relaunch
from slurm_robust.supervise.suspicion import Assessment, Level

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_GRACE_S = 1.0
"""From the first rank's death to the judgement: the others' last words are on their way."""
_PAUSE_S = 0.1
_EARLY_CAPTURES = 7
"""Looked at often for the first half minute, in which most hangs are told from pauses; then now and then."""


class Handling:
    """The incidents of one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._quiet: Investigator | None = None
        self._dead: list[str] = []
        self._lineage = lineage.load(supervisor.folder, supervisor.context.claim.lineage)

    # -- the book ---------------------------------------------------------------------------------------------------

    def _open(self, fault_at_s: float) -> incident.Record:
        s = self._s
        if s.record is not None:
            s.record.notes.append("The attempt that followed failed before its first new step.")
            self.save(s.record)
        now = time.time()
        name = f"{s.context.name.replace('+', '_')}-r{s.context.job.restart_count}-{int(now)}"
        s.record = incident.Record(name, s.context.name, s.present.fleet.attempt or s.context.attempt_id.key, now)
        s.record.stamp("fault", fault_at_s)
        s.record.stamp("suspected", now)
        return s.record

    def reopen(self, name: str) -> incident.Record | None:
        """Go on with the incident that the attempt before this one left open."""
        record = None
        with contextlib.suppress(OSError):
            record = incident.load((self._s.folder.path / name / "incident.json").read_bytes())
        if record is None or "first_new_step" in record.times:
            return None
        record.stamp("running")
        return record

    def save(self, record: incident.Record) -> None:
        """Write the incident's page and its twin for tools."""
        self._s.folder.write(f"{record.id}/incident.json", record.to_json())
        self._s.folder.write(f"{record.id}/report.md", record.page())

    def _investigator(self, record: incident.Record) -> Investigator:
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
        record = self._open(time.time() - found.silent_s)
        s.folder.tell("suspected", f"silence suspected: {found.why}", ranks=found.ranks, incident=record.id)
        record.signals.append(Signal(SignalKind.SILENCE, time.time(), "progress", found.why))
        inquiry = self._investigator(record)
        await inquiry.capture()
        said = ""
        while True:
            early = inquiry.rounds < _EARLY_CAPTURES
            if await self._over(s.config.supervise.corroborate_after_s if early else s.config.supervise.recapture_s):
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
            if plan.reason != said:
                said = plan.reason
                s.folder.tell("waiting", plan.reason, incident=record.id)
            self.save(record)

    async def unreported(self) -> int | None:
        """A job that tells no progress at all: look at its stacks now and then, and act only on what they prove.

        The looks are quiet; nothing is told unless ranks stand still in a way that explains the waiting of the others.
        """
        s = self._s
        if self._quiet is None:
            self._quiet = self._investigator(incident.Record("", s.context.name, s.present.fleet.attempt, time.time()))
        await self._quiet.capture(keep=False)
        verdict = self._quiet.judge()
        if not (verdict.conclusion is Conclusion.CULPRIT and verdict.corroborated) or s.present.reports:
            return None
        still_since_s = self._quiet.captures[0].at_s
        record = self._open(still_since_s)
        why = "the job tells no progress, and its stacks do not move"
        s.folder.tell("suspected", f"silence suspected: {why}", incident=record.id)
        record.signals.append(Signal(SignalKind.SILENCE, time.time(), "stacks", why))
        inquiry = self._investigator(record)
        inquiry.captures = list(self._quiet.captures)
        self._quiet = None
        await inquiry.capture()
        verdict = inquiry.judge()
        plan = await self._decide(verdict, inquiry, record, overdue=False, ended=False)
        return await self._carry_out(record, inquiry, verdict, plan)

    def forget_looks(self) -> None:
        """A new attempt: what the last one's stacks showed is of no use."""
        self._quiet = None

    async def _over(self, pause_s: float) -> bool:
        """Wait; True as soon as the silence is over one way or another."""
        s = self._s
        deadline = time.monotonic() + pause_s
        while time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_S)
            await s.glance()
            gone = s.channel is not None and s.channel.gone.is_set()
            if gone or s.ended is not None or s.present.scene.exits:
                return True
            if s.present.assess(s.config.supervise).level is Level.QUIET:
                return True
        return False

    def _drop(self, record: incident.Record) -> None:
        """The silence ended by itself, or by something worse that is looked at next."""
        s = self._s
        record.outcome = "It went on by itself; nothing was done."
        # The pause is a sample of its own now; the next look at the same pause would tell nothing new.
        s.present.quiet_until_s = time.time() + s.config.supervise.corroborate_after_s
        if not s.present.scene.exits and s.ended is None:
            s.folder.tell("cleared", "training moves again; nothing was done", incident=record.id)
        self.save(record)
        s.record = None

    async def died(self) -> int | None:
        """A rank died: hear the others' last words, take their stacks, judge."""
        s = self._s
        await self._gather_exits()
        if s.present.cancelled:
            s.present.scene.exits.clear()  # somebody cancelled the step; srun's end follows
            return None
        first = min(s.present.scene.exits.values(), key=lambda e: e.at_s)
        record = self._open(first.at_s)
        how = f"signal {first.signal}" if first.signal else f"exit code {first.exit_code}"
        s.folder.tell("suspected", f"rank {first.rank} on {first.node} ended with {how}", incident=record.id)
        record.signals.append(Signal(SignalKind.RANK_EXITED, first.at_s, "srun", how, first.node, first.rank))
        inquiry = self._investigator(record)
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
            await s.context.say(state=claim.STATE_DONE, step=step, fruitless=0)
            return 0
        fault_at_s = s.present.last_sign_s
        s.present.confirm_exits(ended=True)
        await self._gather_exits()
        if s.present.cancelled:
            s.folder.tell("cancelled", f"the step was cancelled; exit code {code}")
            return code
        if not s.present.scene.exits:
            s.present.whole_exit(code)
        s.present.add_last_lines()
        record = self._open(fault_at_s)
        s.folder.tell("suspected", f"the training step ended with exit code {code}", incident=record.id)
        inquiry = self._investigator(record)
        await self._look_for_dead_nodes()
        verdict = inquiry.judge()
        plan = await self._decide(verdict, inquiry, record, overdue=False, ended=True)
        return await self._carry_out(record, inquiry, verdict, plan)

    async def _gather_exits(self) -> None:
        s = self._s
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and len(s.present.scene.exits) < s.present.fleet.world:
            await asyncio.sleep(_PAUSE_S)
            await s.glance()
        s.present.add_last_lines()

    # -- deciding and acting ----------------------------------------------------------------------------------------

    def fruitless_after(self, step: int) -> int:
        """Attempts in a row without a new step, this one included, where it came as far as `step`."""
        return 0 if step > self._s.reached else self._s.context.claim.fruitless + 1

    async def _decide(
        self, verdict: Verdict, inquiry: Investigator, record: incident.Record, *, overdue: bool, ended: bool
    ) -> Plan:
        s = self._s
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
            earlier=self._lineage.failures if s.present.step <= s.reached else (),
            restarts_in_place=self._lineage.restarts_in_place if s.present.step <= s.reached else 0,
            fruitless=self.fruitless_after(s.present.step),
            overdue=overdue,
            ended=ended,
            exit_code=self._own_code(),
        )
        record.plan = decide(describe(verdict, facts))
        return record.plan

    def _own_code(self) -> int | None:
        """The program's own exit code: srun's, or that of the first rank that ended while others still run."""
        if self._s.ended is not None:
            return self._s.ended
        first = min(self._s.present.scene.exits.values(), key=lambda e: e.at_s, default=None)
        if first is None:
            return None
        return 128 + first.signal if first.signal else first.exit_code

    async def _dead_nodes(self) -> list[str]:
        """Nodes of the job that Slurm has lost; where it cannot be asked, none."""
        s = self._s
        try:
            nodes = await asyncio.to_thread(s.context.client.nodes)
        except SlurmError as error:
            s.folder.tell("note", f"Slurm could not be asked about the job's nodes: {error}")
            return []
        lost = {n.name for n in nodes if n.state == "DOWN" or "NOT_RESPONDING" in n.flags}
        return [n for n in s.nodes if n in lost]

    async def _look_for_dead_nodes(self) -> None:
        """A rank that died with its node is the node's: what Slurm knows of the nodes is part of the evidence."""
        scene = self._s.present.scene
        self._dead = await self._dead_nodes()
        told = {x.node for x in scene.signals if x.kind is SignalKind.NODE_DOWN}
        scene.signals += [
            Signal(SignalKind.NODE_DOWN, time.time(), "slurm", "Slurm calls it down or not responding", node=node)
            for node in self._dead
            if node not in told
        ]

    async def _carry_out(
        self, record: incident.Record, inquiry: Investigator, verdict: Verdict, plan: Plan
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
        if not s.acting:
            s.folder.tell("observed", f"observe mode: would take {plan.road.value}: {plan.reason}", incident=record.id)
            record.outcome = "Observe mode: nothing was done."
            return self._leave_alone(record, s.config.supervise.action_limit_s)
        s.folder.tell("decided", f"{plan.road.value}: {plan.reason}", road=plan.road.value, evict=plan.evict)
        self.save(record)
        if plan.road is Road.ALERT_ONLY:
            record.outcome = "Alert only: nothing was done."
            return self._leave_alone(record, s.config.supervise.recapture_s)
        return await self._act(record, inquiry, verdict, plan)

    def _leave_alone(self, record: incident.Record, quiet_s: float) -> int | None:
        """Do nothing; what is said of the same silence again would be the same, so not for a while."""
        s = self._s
        self.save(record)
        s.record = None
        s.present.scene.exits.clear()
        s.present.quiet_until_s = time.time() + quiet_s
        return s.ended

    async def _act(self, record: incident.Record, inquiry: Investigator, verdict: Verdict, plan: Plan) -> int | None:
        s = self._s
        fruitless, demotion = self.fruitless_after(s.present.step), self._demotion()
        if s.present.step > s.reached:
            s.reached = s.present.step
            self._lineage = lineage.Lineage(self._lineage.id)
        self._lineage = self._lineage.after(inquiry.failure, in_place=plan.road is Road.RESTART_IN_PLACE)
        lineage.save(s.folder, self._lineage)
        await recovery.end_step(
            s.context, s.channel, s.agents, s.present.fleet, folder=s.folder, config=s.config.supervise
        )
        record.stamp("stopped")
        if demotion:
            s.folder.tell("checkpoint", attempts.demote(s.start, demotion))
        s.context.claim = replace(s.context.claim, fruitless=fruitless, step=s.reached, resume_step=s.start.step)
        if plan.road is Road.STOP:
            return await self._stop(record, plan)
        if plan.road in (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION) and s.channel is not None:
            return await self._relaunch(record, verdict, plan)
        return await self._requeue(record, verdict, plan)

    def _demotion(self) -> str:
        """Why the checkpoint of this attempt is not to be used again; empty where it is."""
        s = self._s
        if s.start.path is None or s.present.step > s.start.step:
            return ""
        before = s.context.claim
        failed = before.fruitless + 1 if before.resume_step == s.start.step else 1
        if failed < s.config.checkpoint.demote_after_failed_starts:
            return ""
        return f"{failed} attempts died before their first step from it"

    async def _stop(self, record: incident.Record, plan: Plan) -> int:
        s = self._s
        code = plan.exit_code if plan.exit_code is not None else s.ended if s.ended is not None else 1
        record.outcome = f"Stopped for good, exit code {code}."
        s.folder.tell("stopped", f"stopped, exit code {code}: {plan.reason}", incident=record.id)
        self.save(record)
        await s.context.say(state=claim.STATE_DONE, incident=record.id, why=plan.reason, times=dict(record.times))
        return code

    async def _requeue(self, record: incident.Record, verdict: Verdict, plan: Plan) -> int:
        s = self._s
        self.save(record)
        return await recovery.requeue(
            s.context, s.agents, s.folder, s.config.supervise, record=record, verdict=verdict, plan=plan
        )

    async def _relaunch(self, record: incident.Record, verdict: Verdict, plan: Plan) -> int | None:
        s = self._s
        assert s.command is not None
        used = s.present.fleet.step_nodes or len({r.node for r in s.present.fleet.ranks.values()})
        reachable = [n for n in s.nodes if n not in s.silent_nodes and n not in plan.evict]
        dirty = await recovery.clean(s.agents, s.present.fleet, reachable, s.config.supervise)
        for node, why in dirty.items():
            s.folder.tell("suspect", f"suspect: {node} did not get clean: {why}", node=node, incident=record.id)
        s.evicted |= {*plan.evict, *dirty}
        if len(s.nodes) < used:
            evict = tuple(sorted({*plan.evict, *dirty}))
            reason = f"{plan.reason}; no spare node is left in the allocation"
            return await self._requeue(record, verdict, replace(plan, road=Road.SEAT, evict=evict, reason=reason))
        extra = attempts.fresh_rendezvous(s.environment, s.attempt_name(s.launches + 1), s.nodes)
        s.launch(relaunch(s.command, s.evicted, used or None), extra)
        record.stamp("running")
        text = f"training step started anew on {used or 'as many as before'} of {','.join(s.nodes)}"
        s.folder.tell("relaunched", text, incident=record.id, evicted=sorted(s.evicted))
        self.save(record)
        await s.context.say(incident=record.id)
        return None
