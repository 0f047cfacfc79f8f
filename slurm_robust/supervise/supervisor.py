"""The supervisor of one job: watches, suspects, captures, decides, and carries the plan out.

It runs beside the training, as another process than the launcher that started the user's srun. What it knows of an
attempt (phases, timers, captures) dies with the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_robust import claim
from slurm_robust.config import Config
from slurm_robust.localize.evidence import RankExit
from slurm_robust.model import Conclusion, Mode, Plan, Road, Signal, SignalKind, Verdict
from slurm_robust.policy.decide import decide
from slurm_robust.supervise import attempts, incident, recovery
from slurm_robust.supervise.agents import Agents
from slurm_robust.supervise.channel import Channel
from slurm_robust.supervise.fleet import Fleet
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.investigate import SILENT_AGENT_S, Investigator, Scene
from slurm_robust.supervise.job import JobContext
from slurm_robust.supervise.output import OutputFile
from slurm_robust.supervise.situation import Facts, describe
from slurm_robust.supervise.srunargs import SrunCommand, first_launch, relaunch
from slurm_robust.supervise.suspicion import Assessment, Level, RankProgress, assess

_LOOK_S = 0.2
_GRACE_S = 1.0
"""From the first rank's death to the judgement: the others' last words are on their way."""
_START_MARKS = ("imports_done", "process_groups_ready", "checkpoint_loaded")


class Supervisor:
    """Supervises one job until its training ends, or until the job is requeued under it.

    Args:
        context: The job.
        config: The site's choices.
        folder: The incident folder.
        channel: To the launcher; None where the training step is not ours (`srobust attach`).
        command: The user's command line; None as above.
        checkpoint_dir: Where checkpoints are looked up, empty for nowhere.
        layout: Parallel sizes that the user gave.
    """

    def __init__(
        self,
        context: JobContext,
        config: Config,
        folder: Folder,
        *,
        channel: Channel | None = None,
        command: SrunCommand | None = None,
        checkpoint_dir: str = "",
        output_files: tuple[Path, ...] = (),
        layout: Mapping[str, int] | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.folder = folder
        self.channel = channel
        self.command = command
        self.checkpoint_dir = checkpoint_dir
        self.layout = dict(layout or {})
        self.agents = Agents(context.ref.job_id, config.supervise.tick_s, self._heard, self._note)
        self.launches = 0
        self.start = attempts.Start()
        self.evicted: set[str] = set()
        self.silent_nodes: list[str] = []
        self.restarts_in_place = 0
        self.failures: list[tuple[str, tuple[str, ...]]] = []
        self._pattern = re.compile(config.supervise.log_pattern) if config.supervise.log_pattern else None
        self._paths = output_files
        self._reset("")
        self.record: incident.Record | None = None
        self._reached = context.claim.step
        self._said_training = False
        self._looked_after_at = 0.0

    # -- one attempt's state ----------------------------------------------------------------------------------------

    def _reset(self, attempt: str) -> None:
        """Forget the last attempt."""
        self.fleet = Fleet(attempt)
        self.scene = Scene(self.context.job.nodes, self.layout)
        self.outputs = [OutputFile(path, self._pattern) for path in self._paths]
        self._log_step: tuple[int, float] | None = None
        self._quiet_until = 0.0
        self._observed_only = False
        self._step_seen = False
        self._cancelled = False

    def _heard(self, message: Mapping[str, object]) -> None:
        self.fleet.feed(message, time.time())

    def _note(self, text: str) -> None:
        self.folder.tell("note", text)

    @property
    def acting(self) -> bool:
        """Whether plans are carried out."""
        return self.config.mode is Mode.ACT

    # -- living -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Supervise; returns the exit code for the script."""
        resumed = self.context.resumed and self.context.claim.incident
        if resumed:
            self._reopen(self.context.claim.incident)
        self._launch_first()
        await self.agents.start(self.context.job.nodes, self.fleet.attempt)
        await self.context.say(resume_step=self.start.step)
        code: int | None = None
        try:
            while code is None:
                code = await self._look()
        finally:
            await self.agents.stop()
        return code

    async def _look(self) -> int | None:
        """One round; an exit code where it is over."""
        await asyncio.sleep(_LOOK_S)
        self._read_outputs()
        await self._look_after_agents()
        if self.channel is not None and self.channel.gone.is_set():
            return 0  # the launcher is gone, and srun with it or an orphan: nothing to be asked for any more
        self._note_progress()
        if self.channel is not None and self.channel.ended is not None:
            return await self._ended(self.channel.ended)
        if self.channel is None and await self._job_is_over():
            return 0
        if self.scene.exits:
            return await self._died()
        found = self._assess()
        if found.level is not Level.QUIET and time.time() >= self._quiet_until:
            return await self._silent(found)
        return None

    async def _job_is_over(self) -> bool:
        """For `attach`: has the job ended? Asked only when no rank is left."""
        if self.fleet.alive or not self.fleet.ranks:
            return False
        with contextlib.suppress(Exception):
            job = await asyncio.to_thread(self.context.client.job, self.context.ref)
            return job is None or job.state != "RUNNING"
        return False

    async def _look_after_agents(self) -> None:
        now = time.monotonic()
        if now - self._looked_after_at >= 1.0:
            self._looked_after_at = now
            nodes = [n for n in self.context.job.nodes if n not in self.evicted]
            self.silent_nodes = await self.agents.look_after(nodes, self.fleet.heard_at_s, SILENT_AGENT_S)

    # -- launching --------------------------------------------------------------------------------------------------

    def _next_attempt(self) -> str:
        self.launches += 1
        ref = self.context.ref.address.replace("+", "_")
        return f"{ref}.{self.context.job.restart_count}.{self.launches}"

    def _launch_first(self) -> None:
        if self.channel is None or self.command is None:
            self._reset("")
            return
        if self.channel.running_attempt:
            # We are a second supervisor, after the first was killed: the training runs, go on watching it.
            self._reset(self.channel.running_attempt)
            self.launches = int(self.channel.running_attempt.rpartition(".")[2] or 1)
            self.folder.tell("note", "the supervisor was started anew; the training went on")
            return
        self._launch(first_launch(self.command), {})

    def _launch(self, argv: list[str], extra: Mapping[str, str]) -> None:
        assert self.channel is not None
        name = self._next_attempt()
        self.start = attempts.look_up(self.checkpoint_dir)
        for note in self.start.notes:
            self.folder.tell("checkpoint", note)
        if self.start.path is not None:
            self.folder.tell(
                "checkpoint", f"starting from step {self.start.step}, verified checkpoint {self.start.path}"
            )
        self._reset(name)
        env = attempts.environment(os.environ, name, self.context.claim.lineage, self.start, self.folder.path / "fr")
        self.channel.launch(argv, {**env, **extra}, [], name)
        self.agents.watch_attempt(name)

    # -- looking ----------------------------------------------------------------------------------------------------

    def _read_outputs(self) -> None:
        now = time.time()
        for output in self.outputs:
            found = output.poll()
            if found.step is not None and (self._log_step is None or found.step != self._log_step[0]):
                self._log_step = (found.step, now)
                if not self._has_progress:
                    self.fleet.steps.saw(-1, found.step, now)
            self._cancelled = self._cancelled or found.cancelled
            for oom in found.oom:
                self.scene.signals.append(Signal(SignalKind.OOM_KILL, now, str(output.path), oom.strip()[:200]))
            for gone in found.exits:
                node = self._node_of(gone.task, gone.host)
                self.scene.exits.setdefault(
                    gone.task,
                    RankExit(
                        rank=gone.task,
                        node=node,
                        at_s=now + len(self.scene.exits) * 1e-6,  # keeps the order of the lines
                        exit_code=gone.code,
                        signal=gone.signal,
                        oom_killed=bool(found.oom),
                    ),
                )

    def _node_of(self, task: int, host: str) -> str:
        """A task's node: srun's host name is the machine's, which several nodes may share."""
        known = self.fleet.ranks.get(task)
        return known.node if known is not None else host

    @property
    def _has_progress(self) -> bool:
        return any(r.progress is not None for r in self.fleet.ranks.values())

    def _assess(self) -> Assessment:
        ranks = [r.progress for r in self.fleet.alive if r.progress is not None]
        if not ranks and self._log_step is not None:
            ranks = [RankProgress(-1, self._log_step[0], "train", self._log_step[1])]
        return assess(ranks, self.fleet.steps, time.time(), self.config.supervise)

    def _note_progress(self) -> None:
        step = self.fleet.step if self._has_progress else (self._log_step[0] if self._log_step else -1)
        if step < 0:
            return
        if not self._said_training:
            self._said_training = True
            nodes = sorted({r.node for r in self.fleet.ranks.values()})
            self.folder.tell("training", f"training at step {step}, {len(self.fleet.ranks)} ranks on {','.join(nodes)}")
        if not self._step_seen and step > self.start.step:
            self._step_seen = True
            if self.record is not None:
                asyncio.get_running_loop().create_task(self._resumed(step))

    async def _resumed(self, step: int) -> None:
        """The first new step of an attempt that follows an incident: the incident closes."""
        record = self.record
        assert record is not None
        self.record = None
        for name in _START_MARKS:
            if self.fleet.mark(name):
                record.stamp(name, self.fleet.mark(name))
        # The time of the rank's own step, not of our noticing it.
        record.stamp("first_new_step", self.fleet.last_sign_s or time.time())
        where = f"step {self.start.step} (verified checkpoint)" if self.start.step >= 0 else "the beginning"
        record.outcome = f"Training went on from {where}; first new step {step}."
        took = record.times["first_new_step"] - record.times.get("fault", record.opened_at_s)
        self.folder.tell(
            "resumed", f"resumed from {where}, first new step {step}, {took:.1f} s after the fault", incident=record.id
        )
        self._save(record)
        await self.context.say(state=claim.STATE_WATCHING, incident=record.id, times=dict(record.times), step=step)

    # -- incidents --------------------------------------------------------------------------------------------------

    def _open(self, fault_at_s: float) -> incident.Record:
        if self.record is not None:
            # A fault before the first new step: the incident before goes on, and this one is told in it.
            self.record.notes.append("The attempt that followed failed before its first new step.")
            self._save(self.record)
        now = time.time()
        name = f"{self.context.name}-{self.context.job.restart_count}-{int(now)}"
        self.record = incident.Record(name, self.context.name, self.fleet.attempt or self.context.attempt_id.key, now)
        self.record.stamp("fault", fault_at_s)
        self.record.stamp("suspected", now)
        return self.record

    def _reopen(self, name: str) -> None:
        path = self.folder.path / name / "incident.json"
        with contextlib.suppress(OSError):
            self.record = incident.load(path.read_bytes())
        if self.record is not None:
            self.record.stamp("running")

    def _save(self, record: incident.Record) -> None:
        self.folder.write(f"{record.id}/incident.json", record.to_json())
        self.folder.write(f"{record.id}/report.md", record.page())

    def _investigator(self, record: incident.Record) -> Investigator:
        return Investigator(
            self.config.supervise, self.agents.tell, self.fleet, folder=self.folder, record=record, scene=self.scene
        )

    async def _silent(self, found: Assessment) -> int | None:
        """Suspicion: capture, wait, capture again; act only on a pattern that explains the waiting, or past the limit."""
        last_sign = time.time() - found.silent_s
        record = self._open(last_sign)
        self.folder.tell("suspected", f"silence suspected: {found.why}", ranks=found.ranks, incident=record.id)
        record.signals.append(Signal(SignalKind.SILENCE, time.time(), "progress", found.why))
        inquiry = self._investigator(record)
        await inquiry.capture()
        verdict = inquiry.judge()
        said = ""
        while True:
            pause = self.config.supervise.corroborate_after_s
            if len(inquiry.captures) > 1:
                pause = self.config.supervise.recapture_s
            if await self._interrupted(pause):
                return self._drop(record)
            await inquiry.capture()
            verdict = inquiry.judge()
            found = self._assess()
            if found.level is Level.QUIET:
                return self._drop(record)
            plan = self._decide(verdict, found, record)
            if plan.road is not Road.ALERT_ONLY:
                return await self._carry_out(record, verdict, plan, exit_code=None)
            if plan.reason != said:
                said = plan.reason
                self.folder.tell("waiting", plan.reason, incident=record.id)
            self._save(record)

    async def _interrupted(self, pause_s: float) -> bool:
        """Wait; True as soon as the silence is over one way or another."""
        deadline = time.monotonic() + pause_s
        while time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            self._read_outputs()
            await self._look_after_agents()
            over = self.channel is not None and (self.channel.ended is not None or self.channel.gone.is_set())
            if over or self.scene.exits or self._assess().level is Level.QUIET:
                return True
        return False

    def _drop(self, record: incident.Record) -> None:
        """The silence ended by itself, or by something worse that is looked at next."""
        record.outcome = "It went on by itself; nothing was done."
        if not self.scene.exits and (self.channel is None or self.channel.ended is None):
            self.folder.tell("cleared", "training moves again; nothing was done", incident=record.id)
        self._save(record)
        self.record = None

    async def _died(self) -> int | None:
        """A rank died: hear the others' last words, take their stacks, judge."""
        record = self._open(min(e.at_s for e in self.scene.exits.values()))
        await self._gather_exits()
        if self._cancelled:
            return None  # somebody cancelled the step; srun's end follows
        first = min(self.scene.exits.values(), key=lambda e: e.at_s)
        how = f"signal {first.signal}" if first.signal else f"exit code {first.exit_code}"
        self.folder.tell("suspected", f"rank {first.rank} on {first.node} ended with {how}", incident=record.id)
        record.signals.append(Signal(SignalKind.RANK_EXITED, first.at_s, "srun", how, first.node, first.rank))
        inquiry = self._investigator(record)
        if self.fleet.alive and (self.channel is None or self.channel.ended is None):
            await inquiry.capture()
        return await self._after_death(record, inquiry, exit_code=None)

    async def _gather_exits(self) -> None:
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and len(self.scene.exits) < self.fleet.world:
            await asyncio.sleep(0.05)
            self._read_outputs()
        lines = tuple(line for output in self.outputs for line in output.lines)[-120:]
        self.scene.exits = {rank: replace(e, last_lines=lines) for rank, e in self.scene.exits.items()}

    async def _after_death(self, record: incident.Record, inquiry: Investigator, exit_code: int | None) -> int | None:
        verdict = inquiry.judge()
        plan = self._decide(verdict, Assessment(Level.OVERDUE), record, exit_code)
        return await self._carry_out(record, verdict, plan, exit_code)

    async def _ended(self, code: int) -> int | None:
        """Srun has ended: well, badly, or because somebody wanted it."""
        if code == 0:
            if self.record is not None:
                await self._resumed(max(self.fleet.step, self.start.step))
            step = self.fleet.step if self._has_progress else (self._log_step or (-1, 0.0))[0]
            self.folder.tell("finished", f"finished at step {step}" if step >= 0 else "finished")
            await self.context.say(state=claim.STATE_DONE, step=step)
            return await self._exit(0)
        record = self._open(self.fleet.last_sign_s or time.time())
        await self._gather_exits()
        if self._cancelled:
            self.folder.tell("cancelled", f"the step was cancelled; exit code {code}")
            self.record = None
            return await self._exit(code)
        if not self.scene.exits:
            lines = tuple(line for output in self.outputs for line in output.lines)[-120:]
            signal = code - 128 if code > 128 else 0
            self.scene.exits[-1] = RankExit(-1, "", time.time(), None if signal else code, signal, lines)
        self.folder.tell("suspected", f"the training step ended with exit code {code}", incident=record.id)
        return await self._after_death(record, self._investigator(record), code)

    # -- deciding and acting ----------------------------------------------------------------------------------------

    def _decide(
        self, verdict: Verdict, found: Assessment, record: incident.Record, exit_code: int | None = None
    ) -> Plan:
        facts = Facts(
            config=self.config,
            context=self.context,
            fleet=self.fleet,
            command=self.command,
            can_relaunch=self.channel is not None and self.command is not None,
            evicted=frozenset(self.evicted),
            silent_nodes=tuple(self.silent_nodes),
            restarts_in_place=self.restarts_in_place,
            failures=tuple(self.failures),
            fruitless=self._fruitless(),
            overdue=found.level is Level.OVERDUE,
            exit_code=exit_code,
        )
        plan = decide(describe(verdict, facts))
        record.plan = plan
        return plan

    def _fruitless(self) -> int:
        """Attempts in a row without a new step, this one included."""
        return 0 if self.fleet.step > self._reached else self.context.claim.fruitless + 1

    async def _carry_out(
        self, record: incident.Record, verdict: Verdict, plan: Plan, exit_code: int | None
    ) -> int | None:
        self.folder.tell("verdict", f"{verdict.conclusion.value}: {verdict.reason}", incident=record.id)
        for s in verdict.suspects:
            ranks = ",".join(map(str, s.ranks))
            self.folder.tell("suspect", f"suspect: rank {ranks} on {s.node} ({s.confidence:.2f}): {s.why}", node=s.node)
        record.stamp("decided")
        if not self.acting:
            self.folder.tell("observed", f"observe mode: would take {plan.road.value}: {plan.reason}")
            record.outcome = "Observe mode: nothing was done."
            self._save(record)
            self.record = None
            if self.channel is not None and self.channel.ended is not None:
                return await self._exit(self.channel.ended)
            # Whatever is said next about the same silence would be the same.
            self._quiet_until = time.time() + self.config.supervise.action_limit_s
            self.scene.exits.clear()
            return None
        self.folder.tell("decided", f"{plan.road.value}: {plan.reason}", road=plan.road.value, evict=plan.evict)
        self._save(record)
        return await self._act(record, verdict, plan, exit_code)

    async def _act(self, record: incident.Record, verdict: Verdict, plan: Plan, exit_code: int | None) -> int | None:
        if plan.road is Road.ALERT_ONLY:
            self.scene.exits.clear()
            self._quiet_until = time.time() + self.config.supervise.recapture_s
            ended = self.channel.ended if self.channel is not None else None
            return None if ended is None else await self._exit(ended)
        fruitless = self._fruitless()
        demoted = self._demotion()
        self._reached = max(self._reached, self.fleet.step)
        self.failures.append((_signature(verdict), plan.evict))
        await recovery.end_step(self.context, self.channel, self.fleet, self.folder, self.config.supervise)
        record.stamp("stopped")
        if demoted:
            self.folder.tell("checkpoint", attempts.demote(self.start, demoted))
        self.context.claim = replace(
            self.context.claim, fruitless=fruitless, step=self._reached, resume_step=self.start.step
        )
        if plan.road is Road.STOP:
            return await self._stop(record, plan, exit_code)
        if plan.road in (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION) and self.channel is not None:
            return await self._relaunch(record, verdict, plan)
        self._save(record)
        code = await recovery.requeue(
            self.context, self.folder, self.config.supervise, record=record, verdict=verdict, plan=plan
        )
        return await self._exit(code)

    def _demotion(self) -> str:
        """Why the checkpoint of this attempt is not to be used again; empty where it is."""
        before = self.context.claim
        limit = self.config.checkpoint.demote_after_failed_starts
        if self.start.path is None or self.fleet.step > self.start.step or self._log_step is not None:
            return ""
        failed = before.fruitless + 1 if before.resume_step == self.start.step else 1
        return f"{failed} attempts died before their first step from it" if failed >= limit else ""

    async def _stop(self, record: incident.Record, plan: Plan, exit_code: int | None) -> int:
        ended = self.channel.ended if self.channel is not None else None
        code = plan.exit_code if plan.exit_code is not None else exit_code if exit_code is not None else ended
        record.outcome = f"Stopped for good, exit code {code}."
        self.folder.tell("stopped", f"stopped: {plan.reason}", incident=record.id)
        self._save(record)
        self.record = None
        await self.context.say(state=claim.STATE_DONE, incident=record.id, why=plan.reason, times=dict(record.times))
        return await self._exit(code if code is not None else 1)

    async def _relaunch(self, record: incident.Record, verdict: Verdict, plan: Plan) -> int | None:
        assert self.command is not None
        nodes = [n for n in self.context.job.nodes if n not in self.evicted]
        used = len({r.node for r in self.fleet.ranks.values()}) or len(nodes)
        reachable = [n for n in nodes if n not in self.silent_nodes and n not in plan.evict]
        dirty = await recovery.clean(self.agents, self.fleet, reachable, self.config.supervise)
        for node, why in dirty.items():
            self.folder.tell("suspect", f"suspect: {node} did not get clean: {why}", node=node)
        self.evicted |= set(plan.evict) | set(dirty)
        left = [n for n in nodes if n not in self.evicted]
        if len(left) < used:
            worse = replace(
                plan,
                road=Road.SEAT,
                evict=tuple(sorted({*plan.evict, *dirty})),
                reason=f"{plan.reason}; no spare is left",
            )
            code = await recovery.requeue(
                self.context, self.folder, self.config.supervise, record=record, verdict=verdict, plan=worse
            )
            return await self._exit(code)
        if plan.road is Road.RESTART_IN_PLACE:
            self.restarts_in_place += 1
        name = f"{self.context.ref.address}.{self.context.job.restart_count}.{self.launches + 1}"
        extra = attempts.fresh_rendezvous(os.environ, name, left)
        self._said_training = False
        self._launch(relaunch(self.command, self.evicted, used), extra)
        record.stamp("running")
        self.folder.tell("relaunched", f"training step started anew on {used} of {','.join(left)}", incident=record.id)
        self._save(record)
        await self.context.say(incident=record.id, fruitless=self.context.claim.fruitless)
        return None

    async def _exit(self, code: int) -> int:
        if self.channel is not None:
            await self.agents.stop()
            await self.channel.exit(code)
        return code


def _signature(verdict: Verdict) -> str:
    """Two failures with the same signature are the same failure."""
    if verdict.conclusion is Conclusion.USER_CODE:
        return f"user_code: {verdict.reason[:120]}"
    return (
        verdict.conclusion.value + ":" + ";".join(sorted({re.sub(r"\d+", "N", s.why)[:80] for s in verdict.suspects}))
    )
