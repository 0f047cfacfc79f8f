"""Watches this node's RDMA ports: their traffic, and lost links if no node watch reports them.

Urgency and wording of a lost link are those of the node watch.
"""

from __future__ import annotations

import math
from typing import Mapping, Sequence

from slurm_robust.marks.node_findings import IF_REPEATED, NOTE, NodeFinding
from slurm_robust.supervise.agent import messages
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.rdma_ports import CLASS, Port, PortReader

LOOK_S = 5.0
TRAFFIC_S = 60.0
SOURCE = "agent"
_ACTIVE = "ACTIVE"
_GONE = Port("", None, None)
_FLAP_S = 10.0
"""A link that trains goes up and down a few times: within this time that counts as one loss."""


class PortWatch:
    """Follows the ports of one node."""

    def __init__(
        self,
        node: str,
        send: messages.Handler,
        *,
        root: str = CLASS,
        ignore: Sequence[str] = (),
        clock: SystemClock = CLOCK,
    ) -> None:
        self._node = node
        self._send = send
        self._clock = clock
        self._reader = PortReader(root, ignore)
        self._due_s = -math.inf
        self._before: Mapping[str, Port] = {}
        self._without_ports = False
        self._seq = 0
        self._told_s: dict[str, float] = {}
        self._counted: tuple[float, Mapping[str, int]] | None = None
        self._moved_bytes = -1

    def poll(self, *, watched: bool) -> None:
        """Take the last reading, and begin the next one if it is due; `watched`: a root service reports lost links."""
        now_s = self._clock.monotonic_s()
        ports = self._reader.take()
        if ports is not None:
            if not watched:
                self._tell(ports, now_s)
            self._before = {} if watched else {n: _known(self._before.get(n), port) for n, port in ports.items()}
            self._without_ports = not ports
            self._count(ports, now_s)
        if now_s >= self._due_s and self._reader.start():
            # Without any port it is enough to look now and then for a new card.
            self._due_s = now_s + (TRAFFIC_S if watched or self._without_ports else LOOK_S)

    def _tell(self, ports: Mapping[str, Port], now_s: float) -> None:
        found = []
        for name, before in self._before.items():
            port = ports.get(name, _GONE)
            if before.state is None or port.state is None:
                continue
            if before.state == _ACTIVE != port.state:
                found.append(self._finding(name, IF_REPEATED, f"{name} lost its link"))
            elif before.state == _ACTIVE == port.state and _rose(before.lost, port.lost):
                found.append(self._finding(name, IF_REPEATED, f"{name} lost its link for a moment"))
            elif before.state != _ACTIVE == port.state:
                found.append(self._finding(name, NOTE, f"{name} is active again"))
        new = [f for f in found if f.urgency == NOTE or now_s - self._told_s.get(f.port, -math.inf) >= _FLAP_S]
        self._told_s.update({f.port: now_s for f in new if f.urgency != NOTE})
        if new:
            self._send(messages.NodeFindings(self._node, tuple(new)))

    def _finding(self, port: str, urgency: str, text: str) -> NodeFinding:
        self._seq += 1
        return NodeFinding(self._seq, self._clock.now_s(), SOURCE, "port", urgency, text, (), port)

    def _count(self, ports: Mapping[str, Port], now_s: float) -> None:
        """Send how many bytes moved since the last count, if the number has changed and is known of all ports."""
        counts = {name: port.moved_bytes for name, port in ports.items() if port.moved_bytes is not None}
        if self._counted is None:
            self._counted = (now_s, counts)
            return
        since_s, before = self._counted
        if now_s - since_s < TRAFFIC_S - LOOK_S / 2:
            return
        # A card that was started anew counts from 0, and may show 0 for a moment: the bytes that it has moved are only
        # known from the reading after that.
        fallen = {name for name, count in counts.items() if count < before.get(name, 0)}
        self._counted = (now_s, {name: count for name, count in counts.items() if name not in fallen})
        if fallen or not before or before.keys() != counts.keys():
            return
        total = sum(counts[name] - count for name, count in before.items())
        if total != self._moved_bytes:
            self._moved_bytes = total
            self._send(messages.PortTraffic(self._node, now_s - since_s, total))


def _known(before: Port | None, now: Port) -> Port:
    """Return the known state of a port: a value that cannot be read now keeps; a counter that has fallen is unknown."""
    if before is None:
        return now
    fell = before.lost is not None and now.lost is not None and now.lost < before.lost
    lost = None if fell else before.lost if now.lost is None else now.lost
    return Port(before.state if now.state is None else now.state, lost, None)


def _rose(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before
