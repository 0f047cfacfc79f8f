"""The supervisor of one job: launches, looks, and hands what is wrong to `handling`.

It runs beside the training, as another process than the launcher that started the user's srun.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_robust import claim
from slurm_robust.config import Config
from slurm_robust.localize.ranks import name
from slurm_robust.model import EXIT_STOPPED_FOR_GOOD, Mode
from slurm_robust.supervise.incident import incident_page
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_handler import Handling
from slurm_robust.supervise.incident.incident_log import Book
from slurm_robust.supervise.incident.investigation import SILENT_AGENT_S
from slurm_robust.supervise.job import JobContext, batch_script
from slurm_robust.supervise.launch import attempt_settings, other_restarters
from slurm_robust.supervise.launch.attached_step import Attached, End
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.srun_command import SrunCommand, first_launch, labels_lines
from slurm_robust.supervise.launch.supervisor_lock import Sole
from slurm_robust.supervise.recover import step_control
from slurm_robust.supervise.recover.attempt_start import Beginning
from slurm_robust.supervise.recover.plan_executor import Roads
from slurm_robust.supervise.recover.requeue_wait import Phase
from slurm_robust.supervise.watch.agents import Agents
from slurm_robust.supervise.watch.attempt_state import Present
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.quiet_captures import Looks
from slurm_robust.supervise.watch.slowness import Slowness
from slurm_robust.supervise.watch.suspicion import Level

LOOK_S = 0.2
_REFUSAL_S = 5.0
"""A loop in the script that is refused at each turn must not keep slurmctld busy."""
_AGENTS_S = 1.0
_UNNAMED_S = 10.0
"""After this long "training at step N" is told with the ranks that were found so far."""
_START_MARKS = ("imports_done", "process_groups_ready", "checkpoint_loaded")


class Supervisor:
    """Supervises one job until its training ends, or until the job is requeued under it.

    Args:
        context: The job.
        config: The site's choices.
        folder: The incident folder.
        channel: To the launcher; None where the training step is not ours (`srobust attach`).
        command: The user's command line; None as above.
        attached: The one step that is watched, where it is not ours; None for all of the job.
        checkpoint_dir: Where checkpoints are looked up, empty for nowhere.
        output_files: The job's output, for progress lines and last words.
        layout: Parallel sizes that the user gave.
        layout_order: And the order in which they count ranks, empty for Megatron's.
        sole: Tells whether another run of the job is supervised, too.
    """

    def __init__(
        self,
        context: JobContext,
        config: Config,
        folder: Folder,
        *,
        channel: Channel | None = None,
        command: SrunCommand | None = None,
        attached: Attached | None = None,
        checkpoint_dir: str = "",
        output_files: tuple[Path, ...] = (),
        layout: Mapping[str, int] | None = None,
        layout_order: str = "",
        sole: Sole | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.folder = folder
        self.channel = channel
        self.command = command
        self.attached = attached
        self.record: incident_page.Record | None = None
        self.start = attempt_settings.Start()
        self.launches = 0
        self.environment = dict(os.environ)
        self.evicted: set[str] = set()
        self.silent_nodes: list[str] = []
        self.checkpoint_dir = checkpoint_dir
        self._layout, self._layout_order = dict(layout or {}), layout_order
        self._sole = sole
        self._paths = output_files
        self._looked_after_at = 0.0
        self._said_training = False
        self._step_seen = False
        self.roads = Roads(self)
        self.present = self._new_present(attached.attempt if attached is not None else "")
        self.beginning = Beginning(self, seen=attached is None or bool(attached.launcher))
        self.agents = Agents(
            context.ref.job_id,
            config.supervise.tick_s,
            lambda message: self.present.fleet.feed(message, time.time()),
            lambda text: folder.tell("note", text),
        )
        self.book = Book(self)
        self.losses = Losses(self)
        self.handling = Handling(self)
        self._theirs = End(self)
        self.looks = Looks(self, time.time())
        self.slowness = Slowness(self, time.monotonic())

    def _new_present(self, attempt: str) -> Present:
        return Present(
            attempt,
            self.context.job.nodes,
            job_id=self.context.ref.job_id,
            layout=self._layout,
            layout_order=self._layout_order,
            paths=self._paths,
            log_pattern=self.config.supervise.log_pattern,
            labelled=self.command is not None and labels_lines(self.command, self.environment),
        )

    @property
    def acting(self) -> bool:
        """Whether plans are carried out."""
        return self.config.mode is Mode.ACT and not (self._sole is not None and self._sole.shared)

    @property
    def nodes(self) -> list[str]:
        """Nodes of the allocation that were not evicted."""
        return [n for n in self.context.job.nodes if n not in self.evicted]

    @property
    def ended(self) -> int | None:
        """Srun's exit code, once it has ended, or has ended its step and waits for us."""
        if self.channel is not None:
            return self.channel.ended
        return self.attached.ended if self.attached is not None else None

    # -- living -----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Supervise; returns the exit code for the script."""
        if self.context.claim.incident:
            self.record = self.book.reopen(self.context.claim.incident)
        if self.attached is not None and not (self.context.can_claim and self.context.job.requeueable):
            self.attached.let_go()  # nothing that is decided could bring the step back: srun need not wait for it
        self._tell_of_rivals()
        if self.channel is not None and not self.channel.running_attempt and (why := self.roads.refusal()):
            return await self._refuse(why)
        self._launch_first()
        if self.channel is not None and self.context.asked and self.ended is not None:
            # The supervisor before this one was killed when nothing but the requeue was left to wait for.
            return await self._await_requeue()
        await self.agents.start(self.nodes, self.present.fleet.attempt)
        await self.context.say(resume_step=self.start.step)
        code: int | None = None
        try:
            while code is None:
                await asyncio.sleep(LOOK_S)
                code = await self._look()
        finally:
            if self.attached is not None:
                self.attached.let_go()
            await self.agents.stop()
        if self.channel is not None:
            await self.channel.exit(code)
        return code

    async def _await_requeue(self) -> int:
        """Go on waiting for the requeue that this attempt has asked for; the claim stays as it is."""
        said = self.context.previous
        assert self.channel is not None
        assert said is not None
        self.folder.tell("note", "the supervisor was started anew; the requeue that was asked for is waited for")
        code = await step_control.wait_for_requeue(
            self.context, self.channel, self.folder, self.config, said=said, phase=Phase.ASKED
        )
        await self.channel.exit(code)
        return code

    async def _refuse(self, why: str) -> int:
        """Launch nothing: the script begins again and again what comes to nothing."""
        assert self.channel is not None
        self.folder.tell("refused", why)
        await self.context.say(state=claim.STATE_DONE, why=why)
        await asyncio.sleep(_REFUSAL_S)
        await self.channel.exit(EXIT_STOPPED_FOR_GOOD)
        return EXIT_STOPPED_FOR_GOOD

    async def _look(self) -> int | None:
        """One round; an exit code where it is over."""
        await self.glance()
        launcher_gone = self.channel is not None and self.channel.gone.is_set()
        if launcher_gone or (self.channel is None and await self._theirs.come()):
            await self._theirs.tell()
            return 0  # there is nobody to give an exit code to
        await self._note_progress()
        if self.ended is not None:
            return await self.handling.ended(self.ended)
        if self.present.scene.exits:
            return await self.handling.died()
        found = self.present.assess(self.config.supervise)
        suspect = found.level is Level.OVERDUE or (found.level is Level.SUSPECT and not self.book.full)
        if suspect and time.time() >= self.present.quiet_until_s:
            return await self.handling.silent(found)
        if found.level is Level.QUIET and self.present.reports and self.record is None:
            self.context.clear()
        self.losses.take()
        self.slowness.due(time.monotonic())
        return await self.looks.due()

    async def glance(self) -> None:
        """Take in what is new; decides nothing."""
        self.present.read_outputs()
        self.present.confirm_exits(ended=self.ended is not None)
        self.present.note_vanished()
        if anew := self.present.restarted_inside():
            text = f"{name(anew)} started anew inside the step, by what stands above (torchrun?): the attempt goes on"
            self.folder.tell("note", text, ranks=anew)
        now = time.monotonic()
        if now - self._looked_after_at >= _AGENTS_S:
            self._looked_after_at = now
            heard = self.present.fleet.heard_at_s
            self.silent_nodes = await self.agents.look_after(self.nodes, heard, SILENT_AGENT_S)

    def _tell_of_rivals(self) -> None:
        """Who else restarts this job; said once, in its first run."""
        if self.command is not None and not self.context.job.restart_count:
            for text in other_restarters.found(self.command.command, self.environment, batch_script()):
                self.folder.tell("note", f"another restarter: {text}")

    # -- launching --------------------------------------------------------------------------------------------------

    def attempt_name(self, launch: int) -> str:
        """Name of the nth launch of this run of the job."""
        # The launcher's pid tells the runs of one script apart; a supervisor that is started anew has the same parent.
        return f"{self.context.name.replace('+', '_')}.{self.context.job.restart_count}.{os.getppid()}.{launch}"

    def _launch_first(self) -> None:
        if self.channel is None or self.command is None:
            self.start = attempt_settings.look_up(self.checkpoint_dir)
            return
        running = self.channel.running_attempt
        self.evicted = set(self.channel.evicted)
        if running:
            # The supervisor before this one was killed; the training runs, and is watched on.
            self.present = self._new_present(running)
            self.beginning = Beginning(self, seen=False)
            last = running.rpartition(".")[2]
            self.launches = int(last) if last.isdecimal() else 1
            self.folder.tell("note", "the supervisor was started anew; the training was not touched")
            return
        self.launch(first_launch(self.command, keep_evidence=self.acting), {})

    def launch(self, argv: list[str], extra: Mapping[str, str]) -> None:
        """Have srun started, from the newest verified checkpoint."""
        assert self.channel is not None
        self.launches += 1
        attempt = self.attempt_name(self.launches)
        self.start = attempt_settings.look_up(self.checkpoint_dir)
        for note in self.start.notes:
            self.folder.tell("checkpoint", note)
        if self.start.path is not None:
            self.folder.tell(
                "checkpoint", f"step {self.start.step} is verified: {self.start.path}", step=self.start.step
            )
        heard = self.present.fleet.heard_at_s
        self.present = self._new_present(attempt)
        self.present.fleet.heard_at_s.update(heard)  # the agents are the same; only what they watch is new
        self._said_training = self._step_seen = False
        self.beginning = Beginning(self)
        self.looks = Looks(self, time.time())
        self.slowness = Slowness(self, time.monotonic())
        dumps = self.folder.folder("fr")  # PyTorch makes none, and writes no dump without it
        env = attempt_settings.environment(
            self.environment, attempt, self.context.claim.lineage, self.start, dumps, command=self.command
        )
        self.channel.launch(argv, {**env, **extra}, [], attempt, sorted(self.evicted))
        self.agents.watch_attempt(attempt)

    # -- progress ---------------------------------------------------------------------------------------------------

    async def _note_progress(self) -> None:
        step, fleet = self.present.step, self.present.fleet
        if step < 0:
            return
        self.beginning.look()
        # The job's output is often read before the agents have found the ranks, which they find one after the other.
        named = fleet.complete or time.time() - self.present.began_at_s > _UNNAMED_S
        if named and not self._said_training and (step > self.start.step or self.start.step < 0):
            self._said_training = True
            where = ",".join(sorted({r.node for r in fleet.ranks.values()})) or "unknown nodes"
            count = f"{len(fleet.ranks)} ranks" if fleet.complete else f"{len(fleet.ranks)} of {fleet.world} ranks"
            self.folder.tell("training", f"training at step {step}, {count} on {where}", step=step)
        if not self._step_seen and step > self.beginning.behind and not self.beginning.unsure:
            self._step_seen = True
            if self.record is not None:
                await self.resumed(self.record, step)

    async def resumed(self, record: incident_page.Record, step: int) -> None:
        """The first new step of an attempt that follows an incident: the incident closes."""
        self.record = None
        for mark in _START_MARKS:
            if self.present.fleet.mark(mark):
                record.stamp(mark, self.present.fleet.mark(mark))
        # Looked at a few times a second: by now training may be some steps further.
        began, over = self.beginning.first, self.beginning.started_over
        told = self.present.fleet.first_step(self.start.step) if over < 0 else None
        first, at_s = told or (step, self.present.last_sign_s)
        record.stamp("first_new_step", at_s)
        where = f"resumed from {whence(self.start.step, first if told else began)}"
        if over >= 0:
            where = f"step {min(step, self.roads.lineage.reached)} is reached again, after a start from step {over}"
        took_s = record.times["first_new_step"] - record.times.get("fault", record.opened_at_s)
        text = f"{where}, first new step {first}, {took_s:.1f} s after the fault"
        record.outcome = f"{text[0].upper()}{text[1:]}."
        self.book.save(record)
        nodes = sorted({r.node for r in self.present.fleet.alive})
        seen = f", {len(self.present.fleet.alive)} ranks on {','.join(nodes)}" if nodes else ""
        self.folder.tell(
            "resumed", f"{text}{seen}", incident=record.id, step=first, resume_step=self.start.step, nodes=nodes
        )
        reached = self.roads.so_far.reached
        if step > reached:
            self.context.claim = replace(self.context.claim, fruitless=0)
        # What was reached never falls: nothing else may be left to know it by.
        words = {"times": dict(record.times), "step": max(step, reached)}
        await self.context.say(state=claim.STATE_WATCHING, incident=record.id, **words)


def whence(offered: int, first: int) -> str:
    """What an attempt went on from, for people.

    Args:
        offered: The step of the verified checkpoint that it was given; -1 where there was none.
        first: Its first new step; -1 where that is not known to a step.
    """
    if offered < 0 and first < 0:
        return "a step that was not seen"
    if offered < 0:
        # A Checkpointer has found it, in memory or in what nobody had sealed yet.
        return "the beginning" if first <= 1 else "what the program found by itself"
    return f"step {offered} (verified checkpoint{'' if first <= offered + 1 else ', or something newer'})"
