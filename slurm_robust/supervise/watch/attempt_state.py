"""What is known of the attempt that runs now. A new attempt gets a new one: timers and exits die with theirs."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_robust.config import SuperviseConfig
from slurm_robust.localize.evidence import RankExit
from slurm_robust.model import Signal, SignalKind
from slurm_robust.supervise.agent.ranks import STEP_MARK
from slurm_robust.supervise.incident.investigation import Scene
from slurm_robust.supervise.watch.fleet import Fleet, RankInfo
from slurm_robust.supervise.watch.last_words import LastWords
from slurm_robust.supervise.watch.log_steps import Counters
from slurm_robust.supervise.watch.output import OutputFile
from slurm_robust.supervise.watch.suspicion import Assessment, RankProgress, assess, own_limit_s
from slurm_robust.supervise.watch.task_exits import Deaths

_LAST_LINES = 120
_LAST_WORDS_S = 30.0
"""Lines from so long before the first end count as well: a thousand ranks have a lot of last words."""
_SETTLE_S = 1.2
"""A look of an agent, and a little: a rank that is started anew in its place (an exec, torchrun) is back by then."""


class Present:
    """One attempt, as its agents and its output files tell it.

    Args:
        attempt: Its name, empty for a job that was not started by us.
        nodes: Nodes of the allocation.
        job_id: The job's raw id, as Slurm's messages name it.
        paths: The job's output files, read from where they stand now.
        labelled: `srun --label` puts each task's number before its lines.
    """

    def __init__(
        self,
        attempt: str,
        nodes: tuple[str, ...],
        *,
        job_id: int,
        layout: Mapping[str, int],
        layout_order: str = "",
        paths: Sequence[Path],
        log_pattern: str,
        labelled: bool = False,
    ) -> None:
        own = re.compile(log_pattern) if log_pattern else None
        self.job_id = job_id
        self.fleet = Fleet(attempt)
        self._words = LastWords(self.fleet, job_id, labelled=labelled)
        self.scene = Scene(nodes, layout, layout_order)
        self._cancelled: set[str] = set()
        self._deaths = Deaths()
        self.quiet_until_s = 0.0
        self.began_at_s = time.time()
        self.counters = Counters()
        self._outputs = [OutputFile(path, own, self.counters) for path in paths]
        self._log_step: tuple[int, float] | None = None
        self._log_signs = 0

    def read_outputs(self) -> None:
        """Take in the new lines of the job's output files."""
        now = time.time()
        for output in self._outputs:
            found = output.poll()
            if found.step is not None:
                if self._log_step is not None and not self.has_progress:
                    # A pause counts once training has gone on after it. The one line that ended it may be a stray one
                    # of a job that hangs, and must not raise the limit of its own silence.
                    self.fleet.steps.saw(-1, self._log_signs, self._log_step[1])
                self._log_step = (found.step, now)
                self._log_signs += 1
            self._cancelled.update(found.cancelled)
            for oom in found.oom:
                self.scene.signals.append(Signal(SignalKind.OOM_KILL, now, str(output.path), oom.strip()[:200]))
                self._words.killed_for_memory(oom)
            for gone in found.exits:
                # Slurm's word of an OOM kill names the step; of the tasks that ended beside it, it took those killed.
                self._deaths.srun_says(gone, now, oom_killed=bool(found.oom) and gone.signal == signal.SIGKILL)

    def confirm_exits(self, *, ended: bool = False) -> None:
        """Believe the word on a task once no rank of it is there any more.

        Several steps may write into one output file: `task 0` of another one is no rank of ours, which lives on.
        """
        now = time.time()
        self._deaths.agents_say(self.fleet, now)
        deaths = self._deaths.all(math.inf if ended else now)
        tasks: dict[int, list[RankInfo]] = {}
        for info in self.fleet.ranks.values() if deaths else ():
            tasks.setdefault(info.task, []).append(info)
        for task, death in deaths.items():
            ranks = tasks.get(task, [])
            if not ended and any(not r.gone_at_s for r in ranks):
                continue
            self._deaths.drop(task)
            gone, at_s, oom_killed = death.task, death.at_s, death.oom_killed
            node = ranks[0].node if ranks else gone.host if gone.host in self.scene.nodes else ""
            number = min((r.rank for r in ranks), default=task)
            self.scene.exits.setdefault(number, RankExit(number, node, at_s, gone.code, gone.signal, (), oom_killed))

    def note_vanished(self) -> None:
        """Take note of ranks that the agents miss while others are there."""
        missing = self.fleet.missing(time.time(), _SETTLE_S)
        self.scene.vanished = {
            r.rank: RankExit(r.rank, r.node, r.missed_at_s, 0 if self._finished(r) else None) for r in missing
        }

    def _finished(self, rank: RankInfo) -> bool:
        end = self.fleet.ends.get((rank.step_id, rank.task))
        return end is not None and not end.code and not end.signal

    def restarted_inside(self) -> list[int]:
        """Ranks that something inside the step (torchrun) has started anew; each restart is told once.

        It is no death of the attempt; what the ranks before them said is of no more use.
        """
        fresh = self.fleet.restarted
        if not fresh or time.time() - max(fresh.values()) < _SETTLE_S:
            return []
        self.fleet.restarted = {}
        for output in self._outputs:
            output.lines.clear()
        self._words.forget()
        return sorted(fresh)

    @property
    def cancelled(self) -> bool:
        """Whether somebody ended this step or its job: a person, a time limit, a preemption."""
        # A watch of one step knows its number before an agent has found a rank of it.
        watched = [self.fleet.attempt.removeprefix(STEP_MARK)] if self.fleet.attempt.startswith(STEP_MARK) else []
        ours = {f"{self.job_id}.{step}" for step in (*self.fleet.step_ids, *watched)} | {str(self.job_id)}
        return bool(self._cancelled & ours)

    def whole_exit(self, code: int) -> None:
        """Srun ended and said nothing of single tasks: one exit of an unknown rank stands for all."""
        number = code - 128 if 128 < code < 128 + signal.NSIG else 0
        self.scene.exits[-1] = RankExit(-1, "", time.time(), None if number else code, number)

    def add_last_lines(self) -> None:
        """Give the exits the program's last words; may be called again as more come."""
        since_s = min((e.at_s for e in self.scene.exits.values()), default=math.inf) - _LAST_WORDS_S
        kept = [item for output in self._outputs for item in output.lines]
        oldest = len(kept) - _LAST_LINES
        lines = [line for number, (at_s, line) in enumerate(kept) if at_s >= since_s or number >= oldest]
        self._words.give(self.scene.exits, lines)

    @property
    def has_progress(self) -> bool:
        """Whether any rank calls `slurm_robust.progress`; log lines count only where none does."""
        return any(r.progress is not None for r in self.fleet.ranks.values())

    @property
    def step(self) -> int:
        """Last step reached by every rank, -1 where unknown."""
        if self.has_progress:
            return self.fleet.step
        return self._log_step[0] if self._log_step is not None else -1

    @property
    def beginning(self) -> tuple[int, int] | None:
        """The step that the attempt began with, as it told it, and the one to judge by; None where that is not known.

        The first number in a log is often no step: a progress bar is drawn at 0 before it jumps to where training goes
        on. So the second one is judged.
        """
        if self.has_progress:
            first = min(r.first_step for r in self.fleet.ranks.values() if r.progress is not None)
            return (first, first) if first >= 0 else None
        told = self.counters.first
        return None if len(told) < 2 or self.counters.falls else (min(told), told[1])

    @property
    def begins(self) -> bool:
        """Whether one more log line will tell the beginning."""
        return not self.has_progress and not self.counters.falls and len(self.counters.first) == 1

    @property
    def last_sign_s(self) -> float:
        """Time of the last sign of progress; the attempt's beginning where there was none."""
        if self.has_progress:
            return self.fleet.last_sign_s
        return self._log_step[1] if self._log_step is not None else self.began_at_s

    @property
    def reports(self) -> bool:
        """Whether there is any progress to judge by; a job without is judged by its stacks alone."""
        return self.has_progress or self._log_step is not None

    def own_limit_s(self, config: SuperviseConfig) -> float | None:
        """The suspicion limit by this attempt's own steps, seconds; None where too few were seen."""
        return own_limit_s(self.fleet.steps, config) if self.reports else None

    def assess(self, config: SuperviseConfig) -> Assessment:
        """Judge the silence now."""
        ranks = [r.progress for r in self.fleet.alive if r.progress is not None]
        if not ranks and self._log_step is not None:
            ranks = [RankProgress(-1, self._log_step[0], "train", self._log_step[1])]
        return assess(ranks, self.fleet.steps, time.time(), config)
