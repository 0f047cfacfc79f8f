"""Sends what a node reports of its faults, and again a little later, since the channel may lose a line.

Slurm mixes lines of several nodes where they are cut, and such a line is skipped. A fault is told by its node once, so
it is sent three times; the supervisor takes it once.
"""

from __future__ import annotations

from collections import deque

from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

AGAIN_S = (5.0, 30.0)
"""After the first time; what garbles a line is over by then."""
_MOST = 128
"""Messages that wait: in a flood the oldest are sent once."""


class RepeatedSend:
    """Passes messages on, those about faults three times."""

    def __init__(self, send: messages.Handler, clock: SystemClock = CLOCK) -> None:
        self._send = send
        self._clock = clock
        self._again: list[deque[tuple[float, messages.FromAgent]]] = [deque(maxlen=_MOST) for _ in AGAIN_S]
        """For each repetition: when, and what, in order of time."""

    def send(self, message: messages.FromAgent) -> None:
        """Send a message now, and plan its repetitions."""
        self._send(message)
        told = message.findings if isinstance(message, messages.NodeFindings) else ()
        if told or isinstance(message, messages.KernelRecords):
            now_s = self._clock.monotonic_s()
            for after_s, waiting in zip(AGAIN_S, self._again):
                waiting.append((now_s + after_s, message))

    def poll(self) -> None:
        """Send again what is due."""
        now_s = self._clock.monotonic_s()
        for waiting in self._again:
            while waiting and waiting[0][0] <= now_s:
                self._send(waiting.popleft()[1])
