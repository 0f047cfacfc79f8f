"""What the nodes' own services report: of a fault, late or not at all, and of things that have nothing to do with it.

Shapes, urgencies and delays are those of `srobust nodewatch` (docs/nodewatch.md): at once from the kernel log, up to
2 s for a port, up to 10 s from NVML, up to 30 s for a mount. How often each comes is ours.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

WITHOUT_SERVICE = 0.1
"""Share of the nodes on which no service runs: they report nothing."""
SEEN_BY_GPU_OR_PORT = 0.4
"""Share of faults of a device or a link that the node notices at all, where its service runs."""
SEEN_OF_HOST = 0.5
"""The same for a mount that does not answer, and for a rank that its GPU has killed."""
NEIGHBOUR = 0.25
"""Share of lost links with which a neighbour's link, at the same switch, is lost for a moment too."""
STRAY = 0.04
"""Share of all cases in which an innocent node reports something of its own."""
_BACK_WITHIN_S = 5.0


@dataclass(frozen=True)
class NodeReport:
    """One finding as the watch step hands it on.

    Attributes:
        kind: Of the fault: `xid`, `port`, `gpu_rows`, ….
        at_s: Simulated time.
        urgency: now, if_repeated, at_next_checkpoint or note.
        code: The XID, where it is one.
    """

    node: str
    at_s: float
    kind: str
    urgency: str
    detail: str
    port: str = ""
    code: int | None = None


def of_fault(kind: str, nodes: Collection[str], at_s: float, rng: random.Random) -> tuple[NodeReport, ...]:
    """What the struck nodes report of a fault that they notice."""
    found: list[NodeReport] = []
    for node in sorted(nodes):
        if kind == "link":
            found += _lost_link(node, at_s, rng)
        elif kind == "file":
            text = "/data does not answer within 5 s"
            found.append(NodeReport(node, at_s + rng.uniform(5, 35), "filesystem", "at_next_checkpoint", text))
        elif rng.random() < 0.7:
            text = "XID 79: GPU has fallen off the bus"
            found.append(NodeReport(node, at_s + rng.uniform(0, 0.5), "xid", "now", text, code=79))
        else:
            found.append(NodeReport(node, at_s + rng.uniform(0, 10), "gpu_driver", "now", "GPU 3 is lost"))
    return tuple(found)


def of_neighbour(node: str, at_s: float, rng: random.Random) -> tuple[NodeReport, ...]:
    """A node at the same switch: its link was away for a moment."""
    lost_s = at_s + rng.uniform(0, 2)
    down = NodeReport(node, lost_s, "port", "if_repeated", "mlx5_0/1 lost its link", "mlx5_0/1")
    back = NodeReport(
        node, lost_s + rng.uniform(1, _BACK_WITHIN_S), "port", "note", "mlx5_0/1 is active again", "mlx5_0/1"
    )
    return down, back


def of_bystander(node: str, at_s: float, rng: random.Random) -> tuple[NodeReport, ...]:
    """Something of the same minutes that has nothing to do with the fault."""
    when_s = at_s + rng.uniform(-120, 20)
    drawn = rng.choices(("flap", "lost", "rows", "slow", "corrected", "program"), (3, 1, 2, 2, 1, 3))[0]
    single = {
        "rows": ("gpu_rows", "at_next_checkpoint", "a row remap of GPU 1 is pending", None),
        "slow": ("gpu_throttle", "at_next_checkpoint", "GPU 2 is slowed down by heat", None),
        "corrected": ("pcie_corrected", "at_next_checkpoint", "kernel log: pcie_corrected: 400 in 10 min", None),
        "program": ("xid", "note", "XID 31: memory page fault", 31),
    }
    if drawn == "flap":
        return of_neighbour(node, when_s, rng)
    if drawn == "lost":
        return _lost_link(node, when_s, rng)
    kind, urgency, text, code = single[drawn]
    return (NodeReport(node, when_s, kind, urgency, text, code=code),)


def _lost_link(node: str, at_s: float, rng: random.Random) -> tuple[NodeReport, ...]:
    """A link that stays away: the event, and the check that fails a little later."""
    lost_s = at_s + rng.uniform(0, 2)
    event = NodeReport(node, lost_s, "port", "if_repeated", "mlx5_0/1 lost its link", "mlx5_0/1")
    urgency = rng.choice(("now", "at_next_checkpoint"))  # the only port, or one of several
    check = NodeReport(node, lost_s + rng.uniform(2, 12), "rdma_ports", urgency, "mlx5_0/1 is DOWN")
    return event, check
