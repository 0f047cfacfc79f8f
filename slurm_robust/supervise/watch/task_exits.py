"""Collects tasks that ended badly, from srun's reports in the job's output, and from agents with the SPANK plugin.

srun's report is preferred, since it knows kills for memory. So an agent's report is held back for a moment, and used if
no report of srun follows (its output goes to a terminal, or through a pipe).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_robust.supervise.reported.fleet import Fleet, TaskEnd
from slurm_robust.supervise.watch.output import TaskExit

SRUN_FIRST_S = 1.0


@dataclass(frozen=True)
class TaskDeath:
    """A task that ended badly, as it was reported."""

    task: TaskExit
    at_s: float
    oom_killed: bool = False


class TaskExits:
    """Each death once, whoever reports it. Both sources report a task's ends in order, so they are matched by count."""

    def __init__(self) -> None:
        self._due: dict[int, TaskDeath] = {}
        self._held: dict[int, tuple[TaskEnd, float]] = {}
        self._by_srun: Counter[int] = Counter()
        self._by_agents: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._read: set[tuple[str, int]] = set()

    def add_from_srun(self, task: TaskExit, now_s: float, *, oom_killed: bool) -> None:
        """Take a line of srun's."""
        number = task.task
        self._by_srun[number] += 1
        if self._by_srun[number] <= self._taken[number]:
            return
        self._taken[number] += 1
        self._held.pop(number, None)
        # Kept in the order of the lines.
        self._due.setdefault(number, TaskDeath(task, now_s + len(self._due) * 1e-6, oom_killed))

    def add_from_agents(self, fleet: Fleet, now_s: float) -> None:
        """Take the reports of agents so far."""
        for key, end in list(fleet.ends.items()):
            if key in self._read:
                continue
            self._read.add(key)
            if not end.code and not end.signal:
                continue  # no death
            self._by_agents[end.task] += 1
            if self._by_agents[end.task] > self._taken[end.task]:
                self._held[end.task] = end, now_s + SRUN_FIRST_S

    def due(self, now_s: float) -> dict[int, TaskDeath]:
        """Return task → its death, for deaths that are confirmed and not dropped yet."""
        for number, (end, due_s) in list(self._held.items()):
            if now_s < due_s:
                continue
            del self._held[number]
            self._taken[number] += 1
            how = f"Exited with exit code {end.code}" if end.code else f"ended by signal {end.signal}"
            task = TaskExit(number, end.node, None if end.signal else end.code, end.signal, how)
            self._due.setdefault(number, TaskDeath(task, end.at_s))
        return dict(self._due)

    def drop(self, task: int) -> None:
        """Drop a death that is dealt with."""
        self._due.pop(task, None)
