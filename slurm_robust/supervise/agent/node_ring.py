"""Reads the file of findings that a root service writes about this node, and sends findings that concern this job."""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding, UntrustedRingError
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.gpu_use import GpuUse
from slurm_robust.supervise.agent.ranks import Rank

_PER_MESSAGE = 16
_CLOCK_AHEAD_S = 60.0
_WAITS_S = 3600.0
"""An older finding is not used: a lost GPU may have been reset since, and a reset is not reported."""


class NodeFiles(NamedTuple):
    """Files in which agents read about faults of their nodes. `%n` stands for the node; empty for no file.

    Attributes:
        ring_folder: `nodecheck.cache_dir`.
        kernel_log: `nodecheck.kmsg`; it is only read if no service writes a file of findings.
        ignored_ports: The option `ignore` of the check `rdma_ports`, with commas between its entries.
    """

    ring_folder: str = ""
    kernel_log: str = ""
    ignored_ports: str = ""


NO_FILES = NodeFiles()


class NodeRing:
    """The findings about one node, each sent once.

    `folder` is `nodecheck.cache_dir`, with `%n` for the node; empty for no file. Findings that are older than
    `since_s` (seconds since the epoch, on this node's clock) belong to earlier jobs.

    Attributes:
        present: A service watches this node: there is a file of findings that can be trusted.
    """

    def __init__(
        self,
        node: str,
        folder: str,
        since_s: float,
        send: messages.Handler,
        *,
        clock: SystemClock = CLOCK,
        use: GpuUse | None = None,
    ) -> None:
        self._node = node
        self._folder = folder.replace("%n", node)
        self._since_s = since_s
        self._send = send
        self._clock = clock
        self._boot = node_findings.boot_id()
        self._stamp: tuple[int, int, int] | None = None
        self._last_seq: int | None = None
        self._last_at_s = since_s
        self._use = use if use is not None else GpuUse(clock)
        self._waiting: list[NodeFinding] = []
        """Findings about GPUs, while no rank has shown which GPUs are this job's."""
        self._doubted = False
        self.present = False

    def poll(self, ranks: Iterable[Rank]) -> None:
        """Send the new findings that concern the job of these ranks."""
        new = self._read_new() if self._folder else []
        self._use.learn(ranks, now=any(f.about_gpus for f in new))
        if self._use.unused:
            # No rank trains here yet: a node with a lost GPU must not replace another node.
            self._send_all([f for f in new if f.about_gpus and f.urgency == node_findings.NOW], unused=True)
        found = [(f, self._use.concerns(f)) for f in (*self._waiting, *new)]
        waiting = [f for f, concerns in found if concerns is None and f.at_s > self._clock.now_s() - _WAITS_S]
        self._waiting = waiting[-node_findings.MAX_FINDINGS :]
        self._send_all([f for f, concerns in found if concerns])

    def _send_all(self, found: list[NodeFinding], *, unused: bool = False) -> None:
        for at in range(0, len(found), _PER_MESSAGE):
            self._send(messages.NodeFindings(self._node, tuple(found[at : at + _PER_MESSAGE]), unused=unused))

    def _read_new(self) -> list[NodeFinding]:
        try:
            info = os.stat(os.path.join(self._folder, node_findings.FILE_NAME), follow_symlinks=False)
        except OSError:
            self._stamp, self.present = None, False
            return []  # no service, or one that is not for us to read
        stamp = info.st_ino, info.st_mtime_ns, info.st_size
        if stamp == self._stamp:
            return []
        self._stamp = stamp
        try:
            found = node_findings.read(self._folder, self._boot)
            self.present = True
        except UntrustedRingError as error:
            self.present = False
            if not self._doubted:
                self._doubted = True
                self._send(messages.NodeFindings(self._node, (), str(error)))
            return []
        except OSError:
            self._stamp = None  # a failed reading is tried again
            return []
        return self._newer(found)

    def _newer(self, found: list[NodeFinding]) -> list[NodeFinding]:
        highest = max((f.seq for f in found), default=0)
        if self._last_seq is None or highest < self._last_seq:
            # In the first reading, or after a service has lost its numbers, only the times tell which findings are new.
            new = [f for f in found if f.at_s >= self._last_at_s]
        else:
            new = [f for f in found if f.seq > self._last_seq or f.at_s > self._last_at_s]
        # A clock that was once ahead leaves findings that every later job would take for new ones.
        new = [f for f in new if f.at_s <= self._clock.now_s() + _CLOCK_AHEAD_S]
        self._last_seq = highest
        self._last_at_s = max([self._last_at_s, *(f.at_s for f in new)])
        return new
