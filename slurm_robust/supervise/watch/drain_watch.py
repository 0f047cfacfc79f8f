"""Reads about once a minute whether nodes in use were drained, by a health check or by a person.

Slurm does not tell a job about drains. Slurm's commands read all nodes even if few are named, so each reading costs
slurmctld as much as a user's `sinfo`: the pause grows with the time that a reading takes, and jobs that start together
read at different times.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_robust.policy.job.drains import drained_by_us, whole_nodes
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
_CPUS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


@dataclass(frozen=True)
class Drains:
    """The result of one reading of the nodes.

    Attributes:
        nodes: All nodes, as Slurm shows them.
        whole: Nodes that the job has to itself; None if this matters, but could not be read.
    """

    nodes: Sequence[Node]
    whole: frozenset[str] | None = frozenset()


def read(session: Session, in_use: Collection[str]) -> Drains:
    """Read all nodes and, if we drained a node in use, what the job has of these nodes.

    Raises:
        SlurmError: Slurm does not answer.
    """
    job = session.job
    nodes = job.client.nodes()
    ours = [node for node in nodes if node.name in in_use and drained_by_us(node)]
    if not ours:
        return Drains(nodes)
    try:
        return Drains(nodes, whole_nodes(ours, job.client.job_gpus(job.ref), _cpus(session)))
    except SlurmError:
        return Drains(nodes, None)


def take(session: Session, drains: Drains, in_use: Collection[str]) -> None:
    """Hand these drains over; drains that cannot be judged yet are left to the next reading."""
    nodes = [node for node in drains.nodes if drains.whole is not None or not drained_by_us(node)]
    run = session.job.attempt
    session.node_faults.take_drains(nodes, in_use, drains.whole or (), run.start_at_s, session.clock.now_s())


def _cpus(session: Session) -> dict[str, int]:
    """Return how many CPUs the job has on each node, by its own environment (`16(x2),8`); empty if not known."""
    environment, nodes = session.environment, session.job.nodes
    if environment.get("SLURM_JOB_ID") != str(session.job.job_id):
        return {}
    counts: list[int] = []
    for piece in environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        found = _CPUS.fullmatch(piece)
        if found is None or len(counts) > len(nodes):
            return {}
        counts += [int(found[1])] * min(int(found[2] or 1), len(nodes) + 1)
    return dict(zip(nodes, counts, strict=True)) if len(counts) == len(nodes) else {}


class DrainWatch:
    """Watches the nodes of one job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        first_s = EVERY_S * (session.job.job_id * _SPREAD % 1.0)
        self._due_s = session.clock.monotonic_s() + first_s
        self._reading: asyncio.Task[tuple[Drains, float]] | None = None

    async def poll(self, attempt: AttemptState) -> None:
        """Begin a reading if one is due, and take the results of a finished one."""
        session, clock = self._session, self._session.clock
        used = nodes_in_use(session, attempt)
        if self._reading is None and clock.monotonic_s() >= self._due_s:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read, used))
            await asyncio.wait({self._reading}, timeout=_WAIT_S)
        if self._reading is None or not self._reading.done():
            return
        (drains, took_s), self._reading = self._reading.result(), None
        self._due_s = clock.monotonic_s() + min(max(EVERY_S, took_s * _COST_SHARE), _LONGEST_S)
        take(session, drains, used)

    def _read(self, in_use: Collection[str]) -> tuple[Drains, float]:
        """Return what Slurm tells, nothing if it does not answer; and how long the reading took."""
        clock = self._session.clock
        began_s = clock.monotonic_s()
        drains = Drains(())
        with contextlib.suppress(SlurmError):
            drains = read(self._session, in_use)
        return drains, clock.monotonic_s() - began_s
