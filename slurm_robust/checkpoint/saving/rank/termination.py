"""Records a termination signal; `Checkpointer.save` acts on it at the end of a step."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any


class TerminationSignals:
    """Records signals; the handler does nothing else, since it may interrupt anything.

    `within_s` is the time from the signal to the end: Slurm's KillWait, less a margin. Raises ValueError if this is not
    the main thread, or a signal cannot be caught.
    """

    def __init__(self, signals: Iterable[int], within_s: float) -> None:
        self.within_s = within_s
        self._at_s = 0.0
        self.received = ""
        """The signal that was received first; empty if none was."""
        self._before: dict[int, Any] = {}
        for number in signals:
            self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._at_s = self._at_s or time.monotonic()
        self.received = self.received or signal.Signals(number).name
        before = self._before[number]
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    @property
    def left_s(self) -> float:
        """The time left; all of it if this process itself received no signal."""
        return max(0.0, self.within_s - (time.monotonic() - self._at_s if self._at_s else 0.0))
