"""Step timings of this node's ranks on their way to the supervisor: gathered, thinned out, sent now and then."""

from __future__ import annotations

from typing import Any, Iterator

from slurm_robust import progress

SEND_EVERY_S = 5.0
MOST_STEPS = 8
"""Of one rank in one sending. Faster steps are thinned out by their number, so that all ranks tell the same ones."""
_A_MESSAGE = 16
"""Entries that fit into one line."""


class TimingsQueue:
    """What was not sent yet.

    Args:
        now_s: A monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, list[progress.StepTiming]] = {}
        self._due_s = now_s + SEND_EVERY_S

    def take(self, rank: int, record: progress.ProgressRecord) -> None:
        """Take what a rank told since the last look."""
        pid, timed = self._seen.get(rank, (record.pid, 0))
        if pid != record.pid or record.timed < timed:
            timed = 0
        new = min(record.timed - timed, len(record.timings))
        if new > 0:
            self._seen[rank] = (record.pid, record.timed)
            self._kept.setdefault(rank, []).extend(record.timings[-new:])

    def forget(self, rank: int) -> None:
        """A rank is gone, or another process speaks for it."""
        self._seen.pop(rank, None)
        self._kept.pop(rank, None)

    def due(self, now_s: float) -> Iterator[list[list[Any]]]:
        """Entries to send now, a message each: rank, step, seconds in all, of own work, of communication."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + SEND_EVERY_S
        entries = [
            [rank, timing.step, *(_told(value) for value in timing[1:])]
            for rank, kept in self._kept.items()
            for timing in thinned(kept)
        ]
        self._kept = {}
        for at in range(0, len(entries), _A_MESSAGE):
            yield entries[at : at + _A_MESSAGE]


def thinned(timings: list[progress.StepTiming]) -> list[progress.StepTiming]:
    """Those whose step is divisible by the smallest power of two that leaves at most `MOST_STEPS`."""
    kept = {timing.step: timing for timing in timings}  # each step once: else zeros would be thinned out for ever
    every = 1
    while len(kept) > MOST_STEPS:
        every *= 2
        kept = {step: timing for step, timing in kept.items() if step % every == 0}
    return list(kept.values())


def _told(value: float) -> Any:
    """JSON has no NaN."""
    return round(value, 6) if value - value == 0 else None
