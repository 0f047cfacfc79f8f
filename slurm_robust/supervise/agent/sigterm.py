"""Handles SIGTERM to the watch step: Slurm ends its job, and the ranks get KillWait to save what they have.

A child of the agent writes their checkpoints, so the agent stays as long as a rank of this node lives. It does not stay
longer, since the job's end waits for it.
"""

from __future__ import annotations

import signal
from typing import Any, Iterable

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import Rank

POLL_S = 0.05
COUNTS_S = 300.0
"""SIGTERM is forgotten after this time: if the job still lives, the signal was not meant to end it."""
GRACE_S = 0.5
"""If Slurm ends a job, SIGTERM and the end of input arrive in any order, at most this far apart."""
_FOR_RANKS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are sent to all steps of a job (`--signal`, scancel), but are meant for its program."""


class SigtermState:
    """Whether SIGTERM has arrived or the supervisor has ended, and whether a rank still needs the agent."""

    def __init__(self, clock: SystemClock = CLOCK) -> None:
        self._clock = clock
        self._sigterm_at_s = 0.0
        self._gone_at_s = 0.0

    def listen(self) -> None:
        """Handle signals from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._note)
        for number in _FOR_RANKS:
            signal.signal(number, signal.SIG_IGN)  # the agent's children inherit that

    def _note(self, *_: Any) -> None:
        self._sigterm_at_s = self._clock.monotonic_s()

    def supervisor_gone(self) -> None:
        """Note that the supervisor has ended."""
        self._gone_at_s = self._gone_at_s or self._clock.monotonic_s()

    @property
    def end_is_near(self) -> bool:
        """Whether to poll often for the end."""
        return bool(self._gone_at_s) or self._terminated

    @property
    def _terminated(self) -> bool:
        return bool(self._sigterm_at_s) and self._clock.monotonic_s() - self._sigterm_at_s < COUNTS_S

    def may_end(self, ranks: Iterable[Rank]) -> bool:
        """Return whether to end now: Slurm ends the job, or the supervisor is gone, and no rank needs this agent."""
        if self._terminated:
            return not any(map(lives, ranks))
        if not self._gone_at_s:
            return False
        return self._clock.monotonic_s() - self._gone_at_s > GRACE_S or not any(map(lives, ranks))


def lives(rank: Rank) -> bool:
    """Return whether the rank's process exists and is not a zombie."""
    found = procfs.stat(rank.main.pid)
    return found is not None and found.start_ticks == rank.main.start_ticks and found.state != "Z"
