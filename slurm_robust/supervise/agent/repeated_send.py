"""Sends a node's reports of faults three times, at intervals, since the channel may lose a line.

If Slurm cuts lines, it mixes lines of several nodes, and such lines are skipped. A node reports each fault once, so the
report is sent three times; the supervisor takes it once.
"""

from __future__ import annotations

from collections import deque

from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

AGAIN_S = (5.0, 30.0)
"""When to repeat after the first sending: whatever garbled a line is over by then."""
_MOST = 128
"""The most messages that wait for repetition: in a flood the oldest messages are sent only once."""


class RepeatedSend:
    """Passes messages on, and repeats messages about faults."""

    def __init__(self, send: messages.Handler, clock: SystemClock = CLOCK) -> None:
        self._send = send
        self._clock = clock
        self._again: list[deque[tuple[float, messages.FromAgent]]] = [deque(maxlen=_MOST) for _ in AGAIN_S]
        """For each repetition: the times and messages that wait, in order of time."""

    def send(self, message: messages.FromAgent) -> None:
        """Send a message now, and plan its repetitions."""
        self._send(message)
        told = message.findings if isinstance(message, messages.NodeFindings) else ()
        if told or isinstance(message, messages.KernelRecords):
            now_s = self._clock.monotonic_s()
            for after_s, waiting in zip(AGAIN_S, self._again):
                waiting.append((now_s + after_s, message))

    def poll(self) -> None:
        """Send again the messages that are due."""
        now_s = self._clock.monotonic_s()
        for waiting in self._again:
            while waiting and waiting[0][0] <= now_s:
                self._send(waiting.popleft()[1])
