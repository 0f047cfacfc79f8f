"""Assigns the last lines of the job's output to the ranks that ended.

srun reports tasks. A task of torchrun has several ranks: torchrun's table, or the labels of the lines, show which ranks
ended and how.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from slurm_robust.diagnose.raised import CHAINED
from slurm_robust.localize.evidence import RaisedException, RankExit
from slurm_robust.localize.torchrun_table import WorkerEnd, read_tables
from slurm_robust.supervise.reported.fleet import Fleet

_LABEL = re.compile(r"^(?:\s*\d+: )?\[rank(\d{1,7})\]:")
_RAISED = re.compile(r"^(?:\s*\d+: )?\[rank(\d{1,7})\]: ?Traceback \(most recent call last\)")
"""Matches the line with which PyTorch's hook begins an uncaught exception."""
_MOST_RAISED = 64
_AT_ONCE_S = 2.0
"""A traceback is printed at once; output is read several times a second."""
_TASK_LABEL = re.compile(r"^\s*(\d{1,7}): ")
_OOM_STEP = re.compile(r"^slurmstepd(?:-(\S+?))?: .*StepId=(\d+\.\d+)")


class LastWords:
    """Collects the last lines of the ranks of one attempt."""

    def __init__(self, fleet: Fleet, job_id: int, *, labelled: bool) -> None:
        self._fleet = fleet
        self._job_id = job_id
        self._labelled = labelled
        self._split: dict[int, tuple[str, ...]] = {}
        """Ranks whose task has ended → the text of torchrun's table about the rank."""
        self._whole: dict[int, tuple[RankExit, set[int]]] = {}
        """The ends of tasks, by the rank that stood for each task, with the ranks that replaced it."""
        self._oom: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Drop everything that was read: it belongs to ranks that were restarted."""
        self._split.clear()
        self._whole.clear()

    def killed_for_memory(self, line: str) -> None:
        """Take slurmstepd's report of a kill for memory: a step, and a node if the line names one."""
        if (report := _OOM_STEP.match(line)) is not None:
            self._oom.add((report[1] or "", report[2]))

    def add_to(self, exits: dict[int, RankExit], lines: list[str]) -> None:
        """Complete these ends: one for each rank that ended, with its own lines and lines that name no rank."""
        tasks = self._tasks()
        own_lines, shared = self._by_rank(lines, tasks)
        self._split_tasks(exits, lines, set(own_lines), tasks)
        for rank, e in exits.items():
            if rank < 0:  # it stands for the whole step, so all lines are its own
                exits[rank] = replace(e, last_lines=tuple(lines))
                continue
            members = [rank] if rank in self._split else self._members(rank, tasks)
            own = tuple(line for _, line in sorted({item for m in members for item in own_lines.get(m, ())}))
            own += self._split.get(rank, ())
            oom = e.oom_killed or (e.signal == signal.SIGKILL and self._was_killed_for_memory(e.node))
            exits[rank] = replace(e, last_lines=own, shared_lines=shared, oom_killed=oom)

    def raised(self, lines: Sequence[tuple[float, str]]) -> dict[int, RaisedException]:
        """Return rank → its last raised exception, for the first ranks of which these lines show one.

        `lines` have the time at which each was read. A rank that has written other lines later has gone on.
        """
        seen = dict.fromkeys(int(found[1]) for _, line in lines if (found := _RAISED.match(line)) is not None)
        ranks = [rank for rank in seen if rank in self._fleet.ranks][:_MOST_RAISED]
        own: dict[int, list[tuple[float, str]]] = {rank: [] for rank in ranks}
        for at_s, line in lines if ranks else ():
            label = _LABEL.search(line)
            if label is not None and int(label[1]) in own:
                own[int(label[1])].append((at_s, line))
        last = {rank: _last_exception(of_rank) for rank, of_rank in own.items()}
        return {rank: raised for rank, raised in last.items() if raised is not None}

    def _by_rank(
        self, lines: list[str], tasks: dict[int, list[int]]
    ) -> tuple[dict[int, list[tuple[int, str]]], tuple[str, ...]]:
        """Return rank → its lines, numbered; and the lines that name no rank."""
        own: dict[int, list[tuple[int, str]]] = {}
        shared = []
        for item in enumerate(lines):
            ranks = self._ranks_of(item[1], tasks)
            for rank in ranks or ():
                own.setdefault(rank, []).append(item)
            if ranks is None:
                shared.append(item[1])
        return own, tuple(shared)

    def _split_tasks(
        self, exits: dict[int, RankExit], lines: list[str], labelled: set[int], tasks: dict[int, list[int]]
    ) -> None:
        self._merge_again(exits)  # more lines may have come since
        tables = {w.rank: w for w in read_tables(lines) if w.rank in self._fleet.ranks}
        for rank, e in list(exits.items()):
            members = self._members(rank, tasks) if rank >= 0 else sorted(tables)
            workers = [tables[r] for r in members if r in tables]
            ended = {w.rank: self._worker_exit(w, e, min(x.at_s for x in workers)) for w in workers}
            if not ended and len(members) > 1 and rank >= 0:
                ended = {r: replace(e, rank=r) for r in members if r in labelled}
            if ended:
                self._whole[rank] = exits.pop(rank), set(ended)
                exits.update(ended)
                self._split.update({r: tables[r].words if r in tables else () for r in ended})

    def _merge_again(self, exits: dict[int, RankExit]) -> None:
        for rank, (task, instead) in self._whole.items():
            if instead & exits.keys():
                for number in instead:
                    exits.pop(number, None)
                exits[rank] = task
        self.forget()

    def _tasks(self) -> dict[int, list[int]]:
        """Return task → its ranks."""
        tasks: dict[int, list[int]] = {}
        for info in self._fleet.ranks.values():
            tasks.setdefault(info.task, []).append(info.rank)
        return tasks

    def _members(self, rank: int, tasks: dict[int, list[int]]) -> list[int]:
        """Return the ranks of the task of this rank."""
        task = self._fleet.ranks[rank].task if rank in self._fleet.ranks else rank
        return tasks.get(task) or [rank]

    def _was_killed_for_memory(self, node: str) -> bool:
        steps = [step for where, step in self._oom if where in ("", node)]
        if not steps:
            return False
        ours = {f"{self._job_id}.{step}" for step in self._fleet.step_ids}
        return any(step in ours for step in steps)

    def _ranks_of(self, line: str, tasks: dict[int, list[int]]) -> list[int] | None:
        """Return the ranks that may have printed this line; None if the line names no rank."""
        if (rank := _LABEL.search(line)) is not None:
            return [int(rank[1])]
        task = _TASK_LABEL.match(line) if self._labelled else None
        if task is None:
            return None
        return tasks.get(int(task[1])) or [int(task[1])]

    def _worker_exit(self, worker: WorkerEnd, task: RankExit, first_s: float) -> RankExit:
        """Return a worker's end from torchrun's table, in the order of that table."""
        at_s = task.at_s + worker.at_s - first_s + (0.0 if worker.first else 0.001)
        killed = task.oom_killed and worker.signal == signal.SIGKILL
        node = self._fleet.ranks[worker.rank].node
        return RankExit(worker.rank, node, at_s, worker.code, worker.signal, oom_killed=killed)


def _last_exception(lines: Sequence[tuple[float, str]]) -> RaisedException | None:
    """Return the last traceback in one rank's lines, with its causes; None if other lines came later."""
    begins = [number for number, (_, line) in enumerate(lines) if _RAISED.match(line)]
    first = begins.pop()
    while begins and any(CHAINED.search(line) for _, line in lines[begins[-1] : first]):
        first = begins.pop()
    at_s = lines[first][0]
    later = [line for read_s, line in lines[first:] if read_s > at_s + _AT_ONCE_S]
    # PyTorch's own messages, `[rank1]:[W1122 …`, may follow for as long as the teardown takes.
    if any(not _LABEL.sub("", line, count=1).lstrip().startswith("[") for line in later):
        return None
    return RaisedException(at_s, tuple(line for _, line in lines[first:]))
