"""A daemon's world whose nodes mark faults of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from daemon_world import World

from slurm_robust.marks.fault_marker import FaultMarker, render

WIDE = "breaker: {max_partition_share: 0.5}\ndaemon: {protect: all}\n"
XID = "XID 79 on GPU 0"


class Faults(World):
    """A world whose nodes mark faults."""

    def mark(
        self, node: str, *, age_s: float = 0.0, gpus: tuple[int, ...] = (), extra: str = "", kind: str = "xid"
    ) -> FaultMarker:
        """The node's root service writes its marker."""
        marker = FaultMarker(int(self.slurm.now_s - age_s), kind, gpus, XID)
        before = self.slurm.state.nodes[node]
        self.slurm.state.nodes[node] = replace(before, extra=render(marker, extra))
        return marker

    def extra(self, node: str) -> str:
        """What the node's field says now."""
        return self.slurm.state.nodes[node].extra

    def drained(self) -> list[str]:
        """Nodes that are out."""
        return sorted(name for name, node in self.slurm.state.nodes.items() if node.drained)

    def alerts(self, what: str) -> list[str]:
        """Lines of the audit log with this word."""
        rows = self.journal.db.execute("SELECT text FROM events WHERE what = ?", (what,)).fetchall()
        return [row["text"] for row in rows]

    def job(self, job_id: int = 1) -> Any:
        """The job as Slurm has it."""
        return self.slurm.state.jobs[job_id]


Make = Callable[..., Faults]
