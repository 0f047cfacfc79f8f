"""Decides whether the loss of a training that goes on is bad for good. Pure.

Dynamic loss scaling skips single steps that overflow, by design, and many spikes pass by themselves. So only a loss
that stays bad over `STEPS` reported steps counts. Not every step of a fast training is seen.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

STEPS = 10
"""A loss is bad for good if so many reports of different steps, one after the other, are bad."""
FACTOR = 5.0
"""Times the usual loss; above is a spike. ByteRobust (SOSP 2025) alerts at five times."""
_NOT_FINITE = "and not finite in each of the last"
_WINDOW, _LEAST = 200, 50
"""The usual loss is the median of so many good ones; with fewer than the second number there is no usual loss."""


@dataclass
class LossTrend:
    """The reported losses of one attempt.

    Attributes:
        not_finite: How many steps in a row, up to now, had a loss that was NaN or infinite.
        high: How many steps in a row, up to now, had a loss that was many times the usual loss.
        bad_since: The first step of such a row.
    """

    not_finite: int = 0
    high: int = 0
    bad_since: int = -1
    _step: int = -1
    _loss: float = 0.0
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def take(self, step: int, loss: float) -> None:
        """Take a report; a second report of the same step is ignored."""
        if step == self._step:
            return
        self._step, self._loss = step, loss
        finite = math.isfinite(loss)
        high = finite and 0 < FACTOR * self.usual < loss
        if finite and not high:
            self._usual.append(loss)
            self.not_finite, self.high, self.bad_since = 0, 0, -1
            return
        self.bad_since = self.bad_since if self.bad_since >= 0 else step
        self.not_finite = 0 if finite else self.not_finite + 1
        self.high = self.high + 1 if high else 0

    @property
    def usual(self) -> float:
        """The median of the last good losses; 0 while too few are known."""
        return statistics.median(self._usual) if len(self._usual) >= _LEAST else 0.0

    @property
    def lost(self) -> str:
        """A sentence that the loss is not finite any more; empty while it is finite."""
        if self.not_finite < STEPS:
            return ""
        return f"loss {self._loss} at step {self._step}, {_NOT_FINITE} {STEPS} reports"

    @property
    def spike(self) -> str:
        """A sentence that the loss is many times the usual one; empty while it is not."""
        if self.high < STEPS:
            return ""
        what = f"{self._loss / self.usual:.1f} times the usual {self.usual:.4g}"
        return f"loss {self._loss:.4g} at step {self._step}, {what}, since step {self.bad_since}"


def says_lost(why: str) -> bool:
    """Return whether the reason of a plan says that the loss of a training that goes on is lost (`LossTrend.lost`)."""
    return why.startswith("loss ") and f", {_NOT_FINITE} " in why
