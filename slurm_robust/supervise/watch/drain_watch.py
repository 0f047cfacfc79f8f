"""Reads about once a minute whether nodes in use were drained, by a health check or by a person.

Nobody tells a job that. Slurm's commands read all nodes whichever are named, so each reading costs slurmctld as much as
a user's `sinfo`: the pause grows with the time that a reading takes, and jobs that start together read apart.
"""

from __future__ import annotations

import asyncio
import contextlib

from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use

EVERY_S = 60.0
_COST_SHARE = 200.0
"""A reading is followed by a pause at least this many times as long."""
_LONGEST_S = 600.0
_WAIT_S = 0.1
"""A longer reading goes on beside the supervision."""
_SPREAD = 0.618
"""Consecutive job ids read at times that are far apart."""


class DrainWatch:
    """Watches the nodes of one job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        first_s = EVERY_S * (session.job.job_id * _SPREAD % 1.0)
        self._due_s = session.clock.monotonic_s() + first_s
        self._reading: asyncio.Task[tuple[list[Node], float]] | None = None

    async def poll(self, attempt: AttemptState) -> None:
        """Begin a reading where one is due, and take what one has read."""
        session, clock = self._session, self._session.clock
        if self._reading is None and clock.monotonic_s() >= self._due_s:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
            await asyncio.wait({self._reading}, timeout=_WAIT_S)
        if self._reading is None or not self._reading.done():
            return
        (nodes, took_s), self._reading = self._reading.result(), None
        self._due_s = clock.monotonic_s() + min(max(EVERY_S, took_s * _COST_SHARE), _LONGEST_S)
        used = nodes_in_use(session, attempt)
        session.node_faults.take_drains(nodes, used, attempt.began_at_s, clock.now_s())

    def _read(self) -> tuple[list[Node], float]:
        """All nodes, none where Slurm does not answer; and how long that took."""
        client, clock = self._session.job.client, self._session.clock
        began_s = clock.monotonic_s()
        nodes: list[Node] = []
        with contextlib.suppress(SlurmError):
            nodes = client.nodes()
        return nodes, clock.monotonic_s() - began_s
