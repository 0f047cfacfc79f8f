"""Tasks that ended badly, told by srun in the job's output, and by agents where the SPANK plugin writes it down.

srun's word comes first: it knows kills for memory, and its lines stand beside the program's own. An agent's is waited
out for a moment, and taken where srun's does not come (its output goes to a terminal, or through a pipe).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from slurm_robust.supervise.watch.fleet import Fleet, TaskEnd
from slurm_robust.supervise.watch.output import TaskExit

SRUN_FIRST_S = 1.0


@dataclass(frozen=True)
class Death:
    """A task that ended badly, as it was told."""

    task: TaskExit
    at_s: float
    oom_killed: bool = False


class Deaths:
    """Each death once, whoever tells it: both sources tell a task's ends in their order, so they are counted."""

    def __init__(self) -> None:
        self._told: dict[int, Death] = {}
        self._held: dict[int, tuple[TaskEnd, float]] = {}
        self._by_srun: Counter[int] = Counter()
        self._by_agents: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._read: set[tuple[str, int]] = set()

    def srun_says(self, task: TaskExit, now_s: float, *, oom_killed: bool) -> None:
        """A line of srun's."""
        number = task.task
        self._by_srun[number] += 1
        if self._by_srun[number] <= self._taken[number]:
            return
        self._taken[number] += 1
        self._held.pop(number, None)
        # Kept in the order of the lines.
        self._told.setdefault(number, Death(task, now_s + len(self._told) * 1e-6, oom_killed))

    def agents_say(self, fleet: Fleet, now_s: float) -> None:
        """What agents have told by now."""
        for key, end in list(fleet.ends.items()):
            if key in self._read:
                continue
            self._read.add(key)
            if not end.code and not end.signal:
                continue  # no death
            self._by_agents[end.task] += 1
            if self._by_agents[end.task] > self._taken[end.task]:
                self._held[end.task] = end, now_s + SRUN_FIRST_S

    def all(self, now_s: float) -> dict[int, Death]:
        """Task → its death, for those that are not dropped yet."""
        for number, (end, due_s) in list(self._held.items()):
            if now_s < due_s:
                continue
            del self._held[number]
            self._taken[number] += 1
            how = f"Exited with exit code {end.code}" if end.code else f"ended by signal {end.signal}"
            task = TaskExit(number, end.node, None if end.signal else end.code, end.signal, how)
            self._told.setdefault(number, Death(task, end.at_s))
        return dict(self._told)

    def drop(self, task: int) -> None:
        """It is taken in."""
        self._told.pop(task, None)
