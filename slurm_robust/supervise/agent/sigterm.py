"""SIGTERM to the watch step: Slurm ends its job, and the ranks get KillWait to save what they have.

Their checkpoints are written by a child of the agent, so the agent stays as long as a rank of this node lives, and no
longer: the job's end waits for it.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Iterable

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import Rank

POLL_S = 0.05
COUNTS_S = 300.0
"""A job that lives on this long after SIGTERM was not ended by it: somebody's program took it for something else."""
GRACE_S = 0.5
"""The end of input, and SIGTERM, come in any order where Slurm ends a job."""
_FOR_RANKS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent to all steps of a job (`--signal`, scancel), and meant for its program."""


class SigtermState:
    """Whether SIGTERM has come, and whether anybody needs the agent yet."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._alone_at_s = 0.0

    def listen(self) -> None:
        """Take signals from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._note)
        for number in _FOR_RANKS:
            signal.signal(number, signal.SIG_IGN)  # the agent's children inherit that

    def _note(self, *_: Any) -> None:
        self._at_s = time.monotonic()

    def alone(self) -> None:
        """The supervisor is gone."""
        self._alone_at_s = self._alone_at_s or time.monotonic()

    @property
    def near(self) -> bool:
        """Whether the end is near: look often whether it is there."""
        return bool(self._alone_at_s) or self._told

    @property
    def _told(self) -> bool:
        return bool(self._at_s) and time.monotonic() - self._at_s < COUNTS_S

    def over(self, ranks: Iterable[Rank]) -> bool:
        """Whether to end now: the job ends, or nobody listens any more, and no rank needs this agent."""
        if self._told:
            return not any(map(lives, ranks))
        if not self._alone_at_s:
            return False
        return time.monotonic() - self._alone_at_s > GRACE_S or not any(map(lives, ranks))


def lives(rank: Rank) -> bool:
    """Whether its process is there, and has not ended."""
    found = procfs.stat(rank.main.pid)
    return found is not None and found.start_ticks == rank.main.start_ticks and found.state != "Z"
