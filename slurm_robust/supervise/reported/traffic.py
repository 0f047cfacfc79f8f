"""Computes for how long the job has moved no data over RDMA. Pure: counts of its nodes in, seconds out.

Ranks that wait for each other are silent on all nodes at once. Each node is compared with its own busiest minute: the
traffic of a training that stands still (a subnet manager, a storage's heartbeat) is far below a thousandth of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slurm_robust.supervise.agent.messages import PortTraffic

SILENT_S = 600.0
"""After this long without traffic on all nodes, a hang is suspected."""
_LEAST_BYTES_PER_S = 10e6
"""A node that never moved as much is not known to train over RDMA."""
_SILENT_SHARE = 0.001
_MOST_BYTES_PER_S = 1e13
"""Ten times what eight ports of 800 Gb/s move both ways; a larger number is an error."""
_LONGEST_S = 3600.0


@dataclass
class _Node:
    highest: float = 0.0
    silent_since_s: float | None = None


class Traffic:
    """The traffic of one attempt's nodes; times are the supervisor's own, seconds since the epoch.

    Attributes:
        trains: A node has moved as much data as trainings over RDMA do.
    """

    def __init__(self) -> None:
        self.trains = False
        self._nodes: dict[str, _Node] = {}

    def take(self, count: PortTraffic, now_s: float) -> None:
        """Take one count that has just come; a node sends no count while the number does not change.

        Raises:
            ValueError: the number of bytes, or the time of the count, is impossible.
        """
        if not 1.0 <= count.seconds <= _LONGEST_S or not 0 <= count.moved_bytes <= count.seconds * _MOST_BYTES_PER_S:
            raise ValueError("no such traffic")
        node = self._nodes.setdefault(count.node, _Node())
        rate = count.moved_bytes / count.seconds
        node.highest = max(node.highest, rate)
        self.trains = self.trains or rate >= _LEAST_BYTES_PER_S
        if rate >= node.highest * _SILENT_SHARE:
            node.silent_since_s = None
        elif node.silent_since_s is None:
            node.silent_since_s = now_s - count.seconds

    def silent_s(self, nodes: Collection[str], now_s: float) -> float:
        """Return for how long all these nodes have moved no data; 0 if one has, or does not train over RDMA."""
        known = [self._nodes.get(name, _Node()) for name in nodes]
        since = [node.silent_since_s for node in known if node.silent_since_s is not None]
        if not known or len(since) < len(known) or min(node.highest for node in known) < _LEAST_BYTES_PER_S:
            return 0.0
        return max(0.0, now_s - max(since))
