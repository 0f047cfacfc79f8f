"""Finds nodes of one leaf switch that lost the network together: one fault, of the switch, its power or its uplink.

Two nodes within a minute are enough: of a switch's 64 nodes that fail on their own, for any reason, 6.5 times in 1,000
node-days, two do so within a minute of each other once in about twenty years.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.core.text import shortened
from slurm_robust.marks import fault_marker
from slurm_robust.marks.node_findings import about_rdma
from slurm_robust.policy.cluster.node_picture import silent
from slurm_robust.policy.cluster.node_states import drained_by_us, foreign
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.values import fold

TOGETHER_S = 60.0
"""Nodes that lose the network within this time belong together."""
MARK = "look at leaf switch "
"""A drain whose reason has these words does not count as a failure of its node."""
_MARK = re.compile(r"look\s+at\s+leaf\s+switch")
_OURS = re.compile(r"\bno link on |\d RDMA ports are active|\bstopped responding\b")
"""Matches the reasons of this project's drains that tell of a lost network."""
_MEANT = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED"))
"""Flags of nodes that do not respond because somebody has powered them down or reboots them."""


@dataclass(frozen=True)
class LeafFault:
    """Nodes that lost the network within a minute, of all that hang on this leaf switch."""

    switch: str
    nodes: tuple[str, ...]
    members: int

    @property
    def cause(self) -> str:
        """The words that the reason of each drain of these nodes has, too."""
        return f"{MARK}{self.switch} first: {shortened(fold(self.nodes), 60)} failed together"

    @property
    def sentence(self) -> str:
        """The sentence that people are told once for all of these nodes."""
        return (
            f"{shortened(fold(self.nodes), 200)} ({len(self.nodes)} of the {self.members} nodes of leaf switch "
            f"{self.switch}) lost the network within a minute: one fault; {MARK}{self.switch} first"
        )


def unmarked(text: str) -> str:
    """Return the text of a stranger, such as a claim's, without the words of `MARK`: only the daemon says them."""
    return _MARK.sub("look at a leaf switch", text)


def lost_network(node: Node) -> bool:
    """Return whether the node is unreachable or its RDMA link is gone, though nobody has taken the node down."""
    if foreign(node) or node.flags & _MEANT:
        return False
    if drained_by_us(node):
        return bool(_OURS.search(node.reason))
    marker = fault_marker.parse(node.extra)
    gave_up = node.state != "DOWN" or node.reason.startswith("Not responding")
    return (silent(node) and gave_up) or (marker is not None and about_rdma(marker.kind))


def together(
    since_s: Mapping[str, float], leaves: Mapping[str, tuple[str, ...]], before: Iterable[LeafFault] = ()
) -> list[LeafFault]:
    """Return the faults of leaf switches, with the nodes that they had `before` and that have not come back.

    Args:
        since_s: Since when each node has lost the network.
        leaves: The nodes of each leaf switch, by its name.
        before: What was known until now.
    """
    earlier, found = {fault.switch: set(fault.nodes) for fault in before}, []
    for switch, members in leaves.items():
        lost = [name for name in members if name in since_s]
        last_s = max((since_s[name] for name in lost), default=0.0)
        names = {name for name in lost if since_s[name] >= last_s - TOGETHER_S}
        old = earlier.get(switch, set()) & set(lost)
        if len(names) > 1 or old & names:
            names |= old
        names = names if len(names) > 1 else old
        if names:
            found.append(LeafFault(switch, tuple(sorted(names)), len(members)))
    return found
