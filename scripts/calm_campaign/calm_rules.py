"""What counts as harm: two runs of a program are compared, one with plain srun. Pure: no clock, no file, no Slurm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

PLAIN, RUN, ROBUST = "plain", "run", "robust"
WAYS: Final = {PLAIN: "plain `srun`", RUN: "`srobust run`", ROBUST: "`sbatch --robust`"}
UNTOUCHED, ANNOUNCED, HARMED = "untouched", "announced", "harmed"

_OURS: Final = re.compile(rb"srobust(\[\w+\])?: ")
_ANOTHER_AGENT: Final = b"is silent; starting another one there"
_SLURMS: Final = re.compile(rb"^(srun|slurmstepd|slurmd): ")
_CHANCE: Final = (b"Invalid IO init header signature", b"step creation temporarily disabled", b": Step created for")
"""srun says so if a process of another step connects to its port, or if an earlier step has not ended everywhere."""
_LOOKS: Final = frozenset({"suspected", "captured", "verdict", "suspect", "observed", "announced"})
"""Kinds of story lines that say that somebody looked, and changed nothing."""


@dataclass(frozen=True)
class Facts:
    """What was seen of one run from the outside.

    Attributes:
        ended: Slurm showed the end of the job within its limit.
        cut: The campaign ended the run, because it was harmed already.
        states: State and exit code of the job, or of each task of the array, sorted: `COMPLETED 0:0`.
        requeues: Slurm's count of restarts, of all tasks of an array.
        starts: The lines of the start file, sorted.
        output: The job's output files, one after the other.
        taken_out: Nodes that went out of service while the job had them, with the state or reservation.
        steps: Steps of the job that slurmds have launched.
        told: Kinds of the lines of our story.
        took_s: From submission to the end.
    """

    ended: bool = True
    cut: bool = False
    states: Sequence[str] = ()
    requeues: int = 0
    starts: Sequence[str] = ()
    output: bytes = b""
    taken_out: Sequence[str] = ()
    steps: int = 0
    told: Sequence[str] = ()
    took_s: float = 0.0


@dataclass(frozen=True)
class Judgement:
    """What became of a run.

    Attributes:
        word: `untouched`, `announced` or `harmed`.
        harms: What differs from plain srun, as sentences; empty if nothing was harmed.
    """

    word: str
    harms: Sequence[str] = field(default_factory=tuple)


def judge(plain: Facts, other: Facts, noise: Sequence[str] = ()) -> Judgement:
    """Compare a supervised run with the one under plain srun."""
    harms = []
    if other.taken_out:
        harms.append("out of service: " + ", ".join(sorted(set(other.taken_out))))
    if other.requeues:
        harms.append(f"requeued {other.requeues} times")
    if more := Counter(other.starts) - Counter(plain.starts):
        harms.append(f"started again: {next(iter(more))} and {more.total() - 1} more")
    if other.ended and not other.requeues and (fewer := Counter(plain.starts) - Counter(other.starts)):
        harms.append(f"never started: {next(iter(fewer))}")
    if other.steps > 2 * plain.steps + other.output.count(_ANOTHER_AGENT):
        harms.append(f"{other.steps} steps, for {plain.steps} of the script and as many that watch")
    if other.cut:
        pass
    elif not other.ended:
        harms.append("did not end")
    elif list(plain.states) != list(other.states):
        harms.append(f"ended as {', '.join(other.states)}, not as {', '.join(plain.states)}")
    if other.ended and not other.requeues and (different := difference(plain.output, other.output, noise)):
        harms.append(different)
    if harms:
        return Judgement(HARMED, harms)
    return Judgement(ANNOUNCED if _LOOKS & set(other.told) else UNTOUCHED)


def judge_alone(plain: Facts, code: int) -> Judgement:
    """Look whether a program does under plain srun what it is made for; the comparison would mean nothing otherwise."""
    wrong = [state for state in plain.states if state != f"{'FAILED' if code else 'COMPLETED'} {code}:0"]
    if wrong or not plain.ended or not plain.starts:
        how = ", ".join(wrong) or ("without a start" if plain.ended else "not within its limit")
        return Judgement(HARMED, [f"the program itself is wrong: under plain srun it ended {how}"])
    return Judgement(UNTOUCHED)


def difference(plain: bytes, other: bytes, noise: Sequence[str] = ()) -> str:
    """Say which line one of two outputs lacks; empty if they are equal but for their order and noise.

    Lines of ours are announcements, and may part a long line of the program's. Slurm's lines are compared without
    numbers, and each counts once: they name nodes and jobs, and tasks that end together share a line. The order
    of lines of several tasks is chance.
    """
    left = _counted(plain.split(b"\n"), noise)
    right = _counted(_whole(other.split(b"\n"), left), noise)
    for word, lines in (("lacks", left - right), ("has more", right - left)):
        if lines:
            return f"output {word}: {min(lines)[:100]!r}"
    return ""


def _whole(lines: Sequence[bytes], known: Container[bytes]) -> Iterator[bytes]:
    """The lines, and those whole again that a line of ours parts in two; `known` are the lines of the plain run."""
    waiting = iter(lines)
    for line in waiting:
        ours = _OURS.search(line)
        if ours is not None and ours.start() and line not in known:
            rest = next(waiting, b"")
            joined = line[: ours.start()] + rest
            yield from [joined] if joined in known else [line, rest]
        else:
            yield line


def _counted(lines: Iterable[bytes], noise: Sequence[str]) -> Counter[bytes]:
    declared = [re.compile(pattern.encode()) for pattern in noise]
    counted: Counter[bytes] = Counter()
    for line in lines:
        if (
            _OURS.match(line)
            or any(words in line for words in _CHANCE)
            or any(pattern.search(line) for pattern in declared)
        ):
            continue
        if _SLURMS.match(line):
            counted[_without_numbers(line)] = 1
        elif line:
            counted[line] += 1
    return counted


def _without_numbers(line: bytes) -> bytes:
    said, _, code = line.partition(b"exit code")
    said = re.sub(rb"[\d\[\],.:T-]+", b"#", said)
    return said.replace(b"tasks ", b"task ").replace(b"n#", b"#") + code
