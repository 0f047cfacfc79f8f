"""What did a stretch of time go into? Spans of it, their shares, and the timeline that they are cut from.

**Effective training time ratio** (ETTR) is productive time divided by wall time. ByteRobust (SOSP 2025) publishes it
cumulative, over the whole training so far, and in a sliding window of one hour: `ettr(spans)` and
`ettr(within(spans, now_s - 3600, now_s))`. Wall time begins when the first attempt could have started, and ends when
the last one ended (or now). Counted as lost: queueing, starting, everything from the last sign of progress before a
failure to the first step after it, steps that are made a second time, steps that stand still for a checkpoint, what
steps take beyond their usual pace, and time in which nobody saw what the training did. Not counted as lost: a usual
pace that is itself slow, and steps whose result was thrown away later (the second making of them is what counts).

Pure, standard library only.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

CLOCKS_S = 5.0
"""Stamps come from several machines: an order that is wrong by less than this is not a contradiction."""


class Spent(str, enum.Enum):
    """The categories that a training's time is divided into. Each second belongs to exactly one of them."""

    PRODUCTIVE = "productive"
    """Steps that were not lost, at the pace that the training usually has."""
    QUEUE = "queue"
    """Waiting in Slurm's queue, before the first attempt or for a requeue that no failure explains."""
    START = "start"
    """From Slurm's start of an attempt to the attempt's first step, if the attempt does not follow a failure."""
    DETECTION = "detection"
    """From the last sign of progress before a failure to the suspicion."""
    DIAGNOSIS = "diagnosis"
    """From the suspicion to the decision, tests of nodes included; without a plan, until a person ends the attempt."""
    RESTART = "restart"
    """From the decision to the first step of the next attempt, queueing included."""
    RECOMPUTATION = "recomputation"
    """Steps that had been made before, and were lost."""
    CHECKPOINT = "checkpoint"
    """Steps stand still for a save or a load of a checkpoint while the training runs."""
    SLOW = "slow"
    """Time that steps took beyond the usual pace of the training."""
    UNKNOWN = "unknown"
    """Time of which nothing is known: the training reports no steps, or was not watched."""


@dataclass(frozen=True)
class Span:
    """A stretch of a training's time.

    Attributes:
        shares: Seconds by category; the sum is the length of the span.
        doubt: A sentence that says why it is unknown what the time went into; empty if it is known.
    """

    begin_at_s: float
    end_at_s: float
    shares: Mapping[Spent, float] = field(default_factory=dict)
    doubt: str = ""

    @property
    def length_s(self) -> float:
        """Return the span's length, seconds."""
        return self.end_at_s - self.begin_at_s


def spent(spans: Iterable[Span]) -> dict[Spent, float]:
    """Return the seconds of each category, all categories included; the sum is the wall time of the spans."""
    totals = dict.fromkeys(Spent, 0.0)
    for span in spans:
        for what, seconds in span.shares.items():
            totals[what] += seconds
    return totals


def ettr(spans: Iterable[Span]) -> float | None:
    """Productive time / wall time, 0 to 1; None if no time has passed. See the head of this module."""
    totals = spent(spans)
    wall_s = sum(totals.values())
    return totals[Spent.PRODUCTIVE] / wall_s if wall_s > 0 else None


def within(spans: Iterable[Span], from_s: float, to_s: float) -> tuple[Span, ...]:
    """Return the parts of the spans that lie in this window.

    If a span is cut, each of its shares is cut in proportion.
    """
    found = []
    for span in spans:
        begin_at_s, end_at_s = max(span.begin_at_s, from_s), min(span.end_at_s, to_s)
        if begin_at_s < end_at_s:
            part = (end_at_s - begin_at_s) / span.length_s
            shares = {what: seconds * part for what, seconds in span.shares.items()}
            found.append(Span(begin_at_s, end_at_s, shares, span.doubt))
    return tuple(found)


class RunningSteps(NamedTuple):
    """An attempt, and what its steps lost that has no place in time.

    Attributes:
        checkpoint_s: Seconds in which steps stood still for a checkpoint.
        slow_s: Seconds that steps took beyond the usual pace.
    """

    begin_at_s: float
    end_at_s: float
    checkpoint_s: float
    slow_s: float


class Timeline:
    """The category of the time after each mark until the next mark, and the stretches of which nothing is known."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, Spent, str]] = []
        self._doubts: list[tuple[float, float, str]] = []
        self._runs: list[RunningSteps] = []

    @property
    def last_s(self) -> float:
        """Return the time of the latest mark; 0 if there is no mark."""
        return max((at_s for at_s, _, _ in self._marks), default=0.0)

    def mark(self, at_s: float, what: Spent, doubt: str = "") -> None:
        """Put the time from `at_s` on into this category. Of several marks at one time, the last one counts."""
        self._marks.append((at_s, what, doubt))

    def doubt(self, from_s: float, to_s: float, why: str) -> None:
        """Note that it is unknown what this stretch went into, even if marks say something else."""
        self._doubts.append((from_s, to_s, why))

    def run(self, run: RunningSteps) -> None:
        """Add an attempt, after the attempts before it."""
        self._runs.append(run)

    def spans(self, from_s: float, to_s: float) -> list[Span]:
        """Return the spans from `from_s` to `to_s`, without a gap."""
        marks = sorted(self._marks, key=lambda m: m[0])
        edges = {from_s, to_s, *(t for m in marks for t in m[:1]), *(t for d in self._doubts for t in d[:2])}
        edges |= {t for run in self._runs for t in (run.begin_at_s, run.end_at_s)}
        ordered = sorted(t for t in edges if from_s <= t <= to_s)
        found, number, what, doubt = list[Span](), 0, Spent.UNKNOWN, "nobody saw what the training did"
        for begin_s, end_s in pairwise(ordered):
            while number < len(marks) and marks[number][0] <= begin_s:
                _, what, doubt = marks[number]
                number += 1
            why = next((why for a, b, why in self._doubts if a <= begin_s < b), "")
            is_known = not why
            found.append(Span(begin_s, end_s, {what if is_known else Spent.UNKNOWN: end_s - begin_s}, why or doubt))
        return _joined(self._shared(found))

    def _shared(self, spans: list[Span]) -> Iterator[Span]:
        """Spread the known times without a place (slow and standing seconds) over an attempt's running steps."""
        starts = [run.begin_at_s for run in self._runs]
        running: dict[int, float] = {}
        for span in spans:
            if Spent.PRODUCTIVE in span.shares:
                number = bisect_right(starts, span.begin_at_s) - 1
                running[number] = running.get(number, 0.0) + span.length_s
        for span in spans:
            if Spent.PRODUCTIVE not in span.shares:
                yield span
                continue
            number = bisect_right(starts, span.begin_at_s) - 1
            yield _spread(span, self._runs[number] if number >= 0 else None, running[number])


def _spread(span: Span, run: RunningSteps | None, running_s: float) -> Span:
    """Return a span of running steps, with its part of the attempt's slow and standing seconds."""
    lost = {Spent.CHECKPOINT: run.checkpoint_s, Spent.SLOW: run.slow_s} if run is not None else {}
    lost_s = sum(lost.values())
    if not lost_s:
        return span
    if not math.isfinite(lost_s) or min(lost.values()) < 0 or lost_s > running_s * 1.05 + CLOCKS_S:
        why = f"steps are said to have lost {lost_s:.0f} s in {running_s:.0f} s of running"
        return replace(span, shares={Spent.UNKNOWN: span.length_s}, doubt=why)
    part = span.length_s / max(running_s, lost_s)
    shares = {what: seconds * part for what, seconds in lost.items() if seconds}
    return replace(span, shares={Spent.PRODUCTIVE: max(0.0, span.length_s - sum(shares.values())), **shares})


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Neighbours of one kind as one span."""
    found: list[Span] = []
    for span in spans:
        if found and len(span.shares) == 1 and found[-1].shares.keys() == span.shares.keys():
            last = found[-1]
            if last.doubt == span.doubt:
                shares = {what: seconds + span.shares[what] for what, seconds in last.shares.items()}
                found[-1] = Span(last.begin_at_s, span.end_at_s, shares, span.doubt)
                continue
        found.append(span)
    return found
