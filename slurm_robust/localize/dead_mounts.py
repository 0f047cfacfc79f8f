"""Does a network file system answer on some nodes, and not on others? Pure: what the nodes' agents found goes in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MountView:
    """What one node says of its mount points: those that are silent, and those that have answered."""

    node: str
    silent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeadMount:
    """A mount point that does not answer on one node, and does on others: the node's own fault, not the server's."""

    mount: str
    node: str
    answers_on: tuple[str, ...]

    @property
    def text(self) -> str:
        """A sentence's worth, for people."""
        return f"{self.mount} does not answer on {self.node}, and answers on {', '.join(self.answers_on)}"


def dead_mounts(views: Iterable[MountView]) -> tuple[DeadMount, ...]:
    """Each mount point that is silent on one node, or on fewer nodes than those where it answers.

    One that is silent on all nodes, or on as many as it answers on, is a fault of its server or of the network.
    """
    known = {view.node: view for view in views}
    found = []
    for mount in sorted({mount for view in known.values() for mount in view.silent}):
        silent = sorted(node for node, view in known.items() if mount in view.silent)
        answers = tuple(sorted(node for node, view in known.items() if mount in view.answered))
        if answers and (len(silent) == 1 or len(silent) < len(answers)):
            found += [DeadMount(mount, node, answers) for node in silent]
    return tuple(found)
