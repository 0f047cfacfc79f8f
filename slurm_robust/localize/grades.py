"""Grades what a verdict rests on: the one table that says how sure each kind of evidence is.

Each vote says on which ground it names a suspect, or why it names none. What may be done about a grade, and when, is
decided in `policy.job.consequences` alone. `scripts/grades.py` writes both tables into `docs/localization.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from slurm_robust.core.model import Grade


class Ground(enum.Enum):
    """A kind of evidence: its grade, and the observation in words."""

    ENDED = (Grade.CERTAIN, "a rank's process has ended, and others wait for it or its last words say why")
    NODE_DOWN = (Grade.CERTAIN, "Slurm calls the node down, or not responding while its agent is silent, too")
    NODE_FAULT = (Grade.CERTAIN, "the node reports an urgent fault of a part that the job uses, or fails its own check")
    DEAD_MOUNT = (
        Grade.CERTAIN,
        "a process of the rank stays in D state, and a mount has not answered on its node for 20 s, but on others",
    )
    NODE_SILENT = (Grade.STRONG, "the node's agent did not answer two captures, and Slurm does not call the node down")
    NODE_TROUBLED = (Grade.STRONG, "the node reports a lesser fault that can hold a job, and no rank moves")
    FAILED_TEST = (Grade.CERTAIN, "the node fails a test")
    RECORDER = (
        Grade.STRONG,
        "the flight recorder names the rank in two dumps between which nothing moved, and no stack says otherwise",
    )
    RAS = (Grade.STRONG, "NCCL's RAS names the rank in two answers between which nothing moved")
    NOBODY_WORKS = (
        Grade.STRONG,
        "all ranks are in a collective or wait for their device: no stack moves, no rank works, no data is sent",
    )
    UNINTERRUPTIBLE = (Grade.STRONG, "a process of one rank stays in D state while the others wait for the rank")
    SLOW_STORAGE = (Grade.WEAK, "a process of one rank stays in D state in a save, a checkpoint, an import or a load")
    SERVER_AWAY = (
        Grade.WEAK,
        "a process of one rank stays in D state, and a mount is silent on its node and on others",
    )
    ALONE = (Grade.WEAK, "a process of a job's only rank stays in D state for two minutes, and nothing of it moves")
    STOPPED = (Grade.WEAK, "a process of the rank is stopped by a signal or frozen; or it is dead and nobody noticed")
    HELD = (
        Grade.WEAK,
        "one rank stands in a sleep, lock, queue, future, pipe, accept, file lock, socket or loader, or keeps the GIL",
    )
    OWN_CODE = (
        Grade.WEAK,
        "the flight recorder or RAS names the rank, or all others wait for it: in its own code, or busy and unread",
    )
    LEFT_BEHIND = (
        Grade.WEAK,
        "one member's device holds an operation that the others completed: the device, or a link of any of them",
    )
    NEVER_STARTED = (Grade.WEAK, "a rank has no process on its node, and all others wait for it in the start-up")
    NEVER_FINITE = (Grade.NONE, "the loss is NaN on a rank that never had a finite one; that is announced")
    NOTHING = (Grade.NONE, "training moves; all ranks are stopped or suspended; or no evidence explains the silence")

    def __init__(self, grade: Grade, meaning: str) -> None:
        self.grade = grade
        self.meaning = meaning


_ORDER = (Grade.NONE, Grade.WEAK, Grade.STRONG, Grade.CERTAIN)


def weakest(grounds: Iterable[Ground]) -> Grade:
    """Return the lowest grade of these grounds: a verdict is only as sure as its least sure suspect."""
    return min((ground.grade for ground in grounds), key=_ORDER.index, default=Grade.NONE)


def at_least(grade: Grade, wanted: Grade) -> bool:
    """Return whether `grade` is as sure as `wanted`, or surer."""
    return _ORDER.index(grade) >= _ORDER.index(wanted)
