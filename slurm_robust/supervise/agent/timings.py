"""Collects the step timings of this node's ranks, thins them out, and releases them for sending every few seconds."""

from __future__ import annotations

from typing import Iterator

from slurm_robust import progress
from slurm_robust.supervise.agent.messages import TimingEntry

SEND_EVERY_S = 5.0
MOST_STEPS = 8
"""The most steps of one rank at one time. Steps are thinned out by number, so that all ranks send equal steps."""
_ENTRIES_PER_MESSAGE = 16
"""The number of entries that fit into one line."""


class TimingsQueue:
    """Timings that were not sent yet."""

    def __init__(self, now_s: float) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, list[progress.StepTiming]] = {}
        self._due_s = now_s + SEND_EVERY_S

    def add(self, rank: int, record: progress.ProgressRecord) -> None:
        """Add the timings that a rank reported since the last call."""
        pid, timed = self._seen.get(rank, (record.pid, 0))
        if pid != record.pid or record.timed < timed:
            timed = 0
        new = min(record.timed - timed, len(record.timings))
        if new > 0:
            self._seen[rank] = (record.pid, record.timed)
            self._kept.setdefault(rank, []).extend(record.timings[-new:])

    def forget(self, rank: int) -> None:
        """Forget a rank that has ended, or that another process reports for now."""
        self._seen.pop(rank, None)
        self._kept.pop(rank, None)

    def due(self, now_s: float) -> Iterator[tuple[TimingEntry, ...]]:
        """Yield the entries to send now, one tuple for each message."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + SEND_EVERY_S
        entries = [
            TimingEntry(rank, timing.step, *map(_known, timing[1:]))
            for rank, kept in self._kept.items()
            for timing in thinned(kept)
        ]
        self._kept = {}
        for at in range(0, len(entries), _ENTRIES_PER_MESSAGE):
            yield tuple(entries[at : at + _ENTRIES_PER_MESSAGE])


def thinned(timings: list[progress.StepTiming]) -> list[progress.StepTiming]:
    """Return the timings whose step is divisible by the smallest power of two that leaves at most `MOST_STEPS`."""
    kept = {timing.step: timing for timing in timings}  # each step once: many of step 0 could never be thinned out
    every = 1
    while len(kept) > MOST_STEPS:
        every *= 2
        kept = {step: timing for step, timing in kept.items() if step % every == 0}
    return list(kept.values())


def _known(value: float) -> float | None:
    """Return the value rounded; None for NaN, which JSON does not have."""
    return round(value, 6) if value - value == 0 else None
