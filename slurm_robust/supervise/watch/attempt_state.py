"""Holds what is known of the current attempt. Each attempt gets a new state."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.localize.evidence import RaisedException, RankExit
from slurm_robust.policy.job.consequences import FIRST_STEP, PATIENT_PHASES, Pauses, learnt_limit_s
from slurm_robust.supervise.agent.ranks import STEP_MARK
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.reported.fleet import Fleet, RankInfo
from slurm_robust.supervise.reported.suspicion import (
    Assessment,
    LogLines,
    StepTimes,
    assess,
    own_limit_s,
)
from slurm_robust.supervise.watch.last_words import LastWords
from slurm_robust.supervise.watch.log_steps import Counters
from slurm_robust.supervise.watch.output import OutputFile
from slurm_robust.supervise.watch.task_exits import TaskExits
from slurm_robust.supervise.watch.unreported_ends import awaited, unreported

SILENT_AGENT_S = 7.0
"""Three heartbeats: after this long without one, an agent counts as silent."""
_LAST_LINES = 120
_LAST_WORDS_S = 30.0
"""Lines from this long before the first exit count too: a thousand ranks print many last lines."""
_FOUND_WITHIN_S = 10.0
"""From the first rank that agents find to the last, with room for a busy node."""
_LIVES_ON_S = 30.0
"""If a rank lives so long after srun reported its task's end, the report was about another task."""
_ABORT_S = 120.0
"""Time from srun's message that its step is ended to the last task's end: Slurm's KillWait, and more."""
_SETTLE_S = 1.2
"""A little more than an agent's poll: a rank that is restarted in its place (an exec, torchrun) is back by then."""


@dataclass(frozen=True)
class AttemptSources:
    """The sources of an attempt's state.

    Attributes:
        job_id: The job's raw id, as Slurm's messages name it.
        paths: The job's output files, read from their present end on.
        read_from: File → where the attempt's output begins in it, for an attempt that began earlier.
        layout: Parallel sizes that the user gave.
        layout_order: The order in which these sizes count ranks, empty for Megatron's.
        log_pattern: The site's pattern of progress lines, empty for none.
        labelled: `srun --label` puts each task's number before its lines.
    """

    job_id: int
    nodes: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    layout: Mapping[str, int] = field(default_factory=dict)
    layout_order: str = ""
    log_pattern: str = ""
    labelled: bool = False
    read_from: Mapping[str, int] = field(default_factory=dict)


class AttemptState:
    """One attempt, as its agents and its output files show it.

    Attributes:
        name: Its name, empty for a job that was not started by us.
        resume_point: The checkpoint that it was given.
        exits: Rank → its end, for ranks that are known to have ended badly.
        vanished: Ranks that are gone while srun runs and does not report their end: finished, or dead. If no rank lives
            any more, ranks that went with their slurmstepd, so that their end will never be reported.
        awaits_reports: No rank lives any more, and some rank's end may be reported at any moment.
        signals: Other facts that were observed.
        quiet_until_s: A silence is not acted on before this time.
        left_alone_at_s: When a silence was left alone; 0 once training has moved again.
        pauses: The longest healthy pauses of this attempt.
    """

    def __init__(self, name: str, sources: AttemptSources, clock: Clock) -> None:
        own = re.compile(sources.log_pattern) if sources.log_pattern else None
        self.name = name
        self.sources = sources
        self.fleet = Fleet(name)
        self.resume_point = ResumePoint()
        self.exits: dict[int, RankExit] = {}
        self.vanished: dict[int, RankExit] = {}
        self.awaits_reports = False
        self.signals: list[Signal] = []
        self.quiet_until_s = self.left_alone_at_s = 0.0
        self.began_at_s = clock.now_s()
        self.counters = Counters()
        self._clock = clock
        self._last_words = LastWords(self.fleet, sources.job_id, labelled=sources.labelled)
        self._cancelled: set[str] = set()
        self._aborted_at_s = -math.inf
        self._task_exits = TaskExits()
        self._outputs = [
            OutputFile(path, own, self.counters, sources.read_from.get(str(path))) for path in sources.paths
        ]
        self.pauses = Pauses()
        self.seen_resting = (0.0, 0.0)
        """When, and for how long, captures have shown all ranks except stopped ones at rest in a collective."""
        self._pause: tuple[float, str] = (self.began_at_s, FIRST_STEP)
        """The present pause: when it began, and its kind."""
        self._trained = False
        """Whether a pause between two steps has ended."""
        self._log_step: tuple[int, float] | None = None
        """The step in the last line with progress, and when the line was read."""
        self._line_times = StepTimes()
        self._log_signs = 0

    @property
    def layout(self) -> Mapping[str, int]:
        """The parallel sizes, from the user or from a rank; empty if they are not known."""
        return self.sources.layout or next((r.layout for r in self.fleet.ranks.values() if r.layout), {})

    def read_outputs(self) -> None:
        """Read the new lines of the job's output files."""
        now = self._clock.now_s()
        for output in self._outputs:
            found = output.poll(now)
            if found.step is not None:
                before = self._log_step
                if before is not None and before[1] <= self.fleet.last_sign_s:
                    self._line_times.pause(-1)
                elif before is not None and before[0] >= 0 and found.step >= 0:
                    # A pause counts as a step time once training has gone on after it: the one line that ended it may
                    # be a stray line of a hung job, and must not raise the limit of its own silence.
                    # The bar of a data set or of files is a sign of life, but its times are not times of steps.
                    self._line_times.saw(-1, self._log_signs, before[1])
                self._log_step = (found.step, now)
                self._log_signs += 1
            self._cancelled.update(found.cancelled)
            self._aborted_at_s = now if found.aborted else self._aborted_at_s
            for oom in found.oom:
                self.signals.append(Signal(SignalKind.OOM_KILL, now, str(output.path), oom.strip()[:200]))
                self._last_words.killed_for_memory(oom)
            for gone in found.exits:
                # Slurm reports an OOM kill for the step: its tasks that ended with SIGKILL were killed for memory.
                self._task_exits.add_from_srun(gone, now, oom_killed=bool(found.oom) and gone.signal == signal.SIGKILL)

    def confirm_exits(self, *, ended: bool = False) -> None:
        """Accept a task's reported end as true once none of its ranks lives.

        Several steps may write into one output file: `task 0` of another step is not our rank 0, which lives.
        """
        now = self._clock.now_s()
        self._task_exits.add_from_agents(self.fleet, now)
        deaths = self._task_exits.due(math.inf if ended else now)
        tasks: dict[int, list[RankInfo]] = {}
        for info in self.fleet.ranks.values() if deaths else ():
            tasks.setdefault(info.task, []).append(info)
        for task, death in deaths.items():
            ranks = tasks.get(task, [])
            if self._of_others(task, ranks, death.at_s):
                self._task_exits.drop(task)
                continue
            if not ended and (any(not r.gone_at_s for r in ranks) or self._may_be_found(ranks, death.at_s)):
                continue
            self._task_exits.drop(task)
            gone, at_s, oom_killed = death.task, death.at_s, death.oom_killed
            node = ranks[0].node if ranks else gone.host if gone.host in self.sources.nodes else ""
            number = min((r.rank for r in ranks), default=task)
            self.exits.setdefault(number, RankExit(number, node, at_s, gone.code, gone.signal, (), oom_killed))

    def _of_others(self, task: int, ranks: Sequence[RankInfo], reported_at_s: float) -> bool:
        """Return whether the report is not about our tasks: another step has written it, or a program printed it.

        It is so if all ranks are known and no rank has that task, or if one of its ranks lives long after the report.
        """
        fleet, now_s = self.fleet, self._clock.now_s()
        if not ranks:
            return fleet.complete or 0 < fleet.world <= task
        living = {r.node for r in ranks if not r.gone_at_s}
        return now_s - reported_at_s > _LIVES_ON_S and bool(living & fleet.heard_within(now_s, SILENT_AGENT_S))

    def _may_be_found(self, ranks: Sequence[RankInfo], reported_at_s: float) -> bool:
        """Return whether the task may still be found alive: agents find ranks one by one, once the step begins."""
        early = not self.fleet.ranks or self._clock.now_s() - reported_at_s < _FOUND_WITHIN_S
        return not ranks and not self.fleet.complete and early

    def note_vanished(self, *, ended: bool = False) -> None:
        """Note the ranks that the agents no longer find while other ranks live, or while srun has not `ended`."""
        now_s = self._clock.now_s()
        missing = self.fleet.missing(now_s, _SETTLE_S)
        lost = [] if ended else unreported(self.fleet, self.exits, self.last_sign_s)
        self.awaits_reports = bool(lost) and awaited(self.fleet, now_s)
        self.vanished = {
            r.rank: RankExit(r.rank, r.node, r.last_seen_s or r.missed_at_s, 0 if self._finished(r) else None)
            for r in (missing or ([] if self.awaits_reports else lost))
        }

    def _finished(self, rank: RankInfo) -> bool:
        end = self.fleet.ends.get((rank.step_id, rank.task))
        return end is not None and not end.code and not end.signal

    def restarted_inside(self) -> list[int]:
        """Return ranks that something inside the step (torchrun) has restarted; each restart is returned once.

        Such a restart is not a failure of the attempt; the output of the earlier ranks is dropped.
        """
        restarted = self.fleet.restarted
        if not restarted or self._clock.now_s() - max(restarted.values()) < _SETTLE_S:
            return []
        self.fleet.restarted = {}
        for output in self._outputs:
            output.lines.clear()
        self._last_words.forget()
        return sorted(restarted)

    @property
    def cancelled(self) -> bool:
        """Whether this step or its job was ended from outside: by a person, a time limit, a preemption."""
        # An attached step has its number in its name, before an agent has found a rank of it.
        watched = [self.fleet.attempt.removeprefix(STEP_MARK)] if self.fleet.attempt.startswith(STEP_MARK) else []
        ours = {f"{self.sources.job_id}.{step}" for step in (*self.fleet.step_ids, *watched)} | {
            str(self.sources.job_id)
        }
        if self.sources.read_from and not self.fleet.ranks and self._killed:
            # The step began and ended before agents could learn its number, and it was the first: we have killed no
            # step.
            ours |= {step for step in self._cancelled if step.startswith(f"{self.sources.job_id}.")}
        # On a busy machine slurmstepd's line with the step's number may be lost; srun's own line has no number.
        aborted = self._clock.now_s() - self._aborted_at_s <= _ABORT_S
        return bool(self._cancelled & ours) or (aborted and bool(self.exits) and self._killed)

    @property
    def _killed(self) -> bool:
        """Whether all ranks that have ended were ended as those of a cancelled step are."""
        return {e.signal for e in self.exits.values()} <= {signal.SIGKILL, signal.SIGTERM}

    def add_step_exit(self, code: int) -> None:
        """Record that srun ended without naming single tasks: one exit of an unknown rank, for the whole step."""
        number = code - 128 if 128 < code < 128 + signal.NSIG else 0
        self.exits[-1] = RankExit(-1, "", self._clock.now_s(), None if number else code, number)

    def add_last_lines(self) -> None:
        """Add the program's last lines to the exits; call it again as more lines come."""
        since_s = min((e.at_s for e in self.exits.values()), default=math.inf) - _LAST_WORDS_S
        kept = [item for output in self._outputs for item in output.lines]
        oldest = len(kept) - _LAST_LINES
        # Training went on after an older line, so it survived the error in that line.
        survived_s = self.last_sign_s - _SETTLE_S if self.reports else -math.inf
        lines = [
            line
            for number, (at_s, line) in enumerate(kept)
            if at_s >= since_s or (number >= oldest and at_s >= survived_s)
        ]
        self._last_words.add_to(self.exits, lines)

    @property
    def raised(self) -> dict[int, RaisedException]:
        """Rank → the exception that it has raised after its last progress, whether it has ended or not.

        A rank that has made a step since has gone on: some handler of its program printed the exception.
        """
        found = self._last_words.raised([item for output in self._outputs for item in output.lines])
        return {rank: one for rank, one in found.items() if self._last_sign_of(rank) <= one.at_s + _SETTLE_S}

    def _last_sign_of(self, rank: int) -> float:
        """Return the time of this rank's last sign of progress; the log's last sign, if ranks do not report."""
        info = self.fleet.ranks.get(rank)
        if info is not None and info.progress is not None:
            return info.progress.at_s
        return self._log_step[1] if self._log_step is not None and not self.has_progress else 0.0

    @property
    def has_progress(self) -> bool:
        """Whether any rank calls `slurm_robust.progress`; then the ranks, and not the log lines, give the step."""
        return any(r.progress is not None for r in self.fleet.ranks.values())

    @property
    def step(self) -> int:
        """The last step reached by every rank, -1 if unknown."""
        if self.has_progress:
            return self.fleet.step
        return self._log_step[0] if self._log_step is not None else -1

    @property
    def first_steps(self) -> tuple[int, int] | None:
        """The first step that the attempt reported, and the step to judge its start by; None if they are not known.

        The first number in a log is often not a step: a progress bar is drawn at 0 before it jumps to the step at which
        training goes on. So the second number is judged.
        """
        if self.has_progress:
            first = min(r.first_step for r in self.fleet.ranks.values() if r.progress is not None)
            return (first, first) if first >= 0 else None
        seen = self.counters.training.first
        return None if len(seen) < 2 or self.counters.training.falls else (min(seen), seen[1])

    @property
    def one_line_short(self) -> bool:
        """Whether one more log line will show `first_steps`."""
        training = self.counters.training
        return not self.has_progress and not training.falls and len(training.first) == 1

    @property
    def last_sign_s(self) -> float:
        """Time of the last progress of any rank or line of the log; the start of the attempt if there was none."""
        in_log_s = self._log_step[1] if self._log_step is not None else 0.0
        return max(in_log_s, self.fleet.last_sign_s) or self.began_at_s

    @property
    def pause_kind(self) -> str:
        """The kind of a pause that goes on now: a phase that some rank has announced, or `FIRST_STEP`."""
        phases = {r.progress.phase for r in self.fleet.alive if r.progress is not None}
        announced = next((phase for phase in PATIENT_PHASES if phase in phases), "")
        trains = self.step >= 0 or any(r.progress.step >= 0 for r in self.fleet.alive if r.progress is not None)
        return announced or ("train" if trains else FIRST_STEP)

    def note_pauses(self) -> None:
        """Remember the length of a pause that a sign of progress has just ended."""
        began_s, kind = self._pause
        now_kind, sign_s = self.pause_kind, self.last_sign_s
        if sign_s > began_s:
            if not (kind == now_kind == FIRST_STEP):  # the start-up ends with a step, not with the first sign of life
                # Many programs are compiled again in their second step, which does not show how long later steps take.
                learnt_as = FIRST_STEP if kind == "train" and not self._trained else kind
                self._trained |= kind == "train"
                self.pauses = self.pauses.after(learnt_as, sign_s - began_s)
            began_s = sign_s
        self._pause = began_s, now_kind

    def leave_out_pause(self) -> None:
        """Leave out the present pause: it is not healthy, will not end by itself, and nothing is learnt from it."""
        now_s = self._clock.now_s()
        self._pause = now_s, self.pause_kind
        self.fleet.steps.leave_out_pause(now_s)

    def leave_out_stop(self, stopped_s: float) -> None:
        """Treat the time until now for which the job, and we, were stopped as if it had not passed."""
        now_s = self._clock.now_s()
        if self._log_step is not None:
            self._log_step = (self._log_step[0], min(self._log_step[1] + stopped_s, now_s))
        self.began_at_s = min(self.began_at_s + stopped_s, now_s)
        self.quiet_until_s += stopped_s
        self._pause = min(self._pause[0] + stopped_s, now_s), self._pause[1]
        self._line_times.leave_out_pause(now_s)
        self.fleet.leave_out_stop(stopped_s, now_s)

    @property
    def reports(self) -> bool:
        """Whether the job reports any progress; a job that does not is judged by its stacks alone."""
        return self.has_progress or self._log_step is not None

    def own_limit_s(self, config: SuperviseConfig) -> float | None:
        """Return the suspicion limit from this attempt's own step times, seconds; None if too few were seen.

        If lines of the log are newer than every report, and their limit is longer, it is the limit of the lines.
        """
        if not self.has_progress and self.step < 0:
            return None
        newer = self.last_sign_s > self.fleet.last_sign_s
        found = [own_limit_s(times, config) for times in (self.fleet.steps, *([self._line_times] if newer else []))]
        return max((limit_s for limit_s in found if limit_s is not None), default=None)

    def assess(self, config: SuperviseConfig) -> Assessment:
        """Judge the silence now."""
        ranks = [r.progress for r in self.fleet.alive if r.progress is not None]
        lines = LogLines(self._log_step[1], self._line_times) if self._log_step is not None else None
        if (least_s := learnt_limit_s(self.pause_kind, self.pauses, config)) > 0:
            # Nothing is overdue before that time, except a limit that the program itself has announced.
            action_s, startup_s = max(config.action_limit_s, least_s), max(config.startup_limit_s, least_s)
            config = structs.replace(config, action_limit_s=action_s, startup_limit_s=startup_s)
        return assess(ranks, self.fleet.steps, self._clock.now_s(), config, lines)
