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
    """A mount point that does not answer on a node.

    Attributes:
        answers_on: More nodes than those where it is silent, so that it is the nodes' own fault. Empty if it is silent
            on several nodes, and on as many as it answers on: then its server or the network is at fault.
    """

    mount: str
    node: str
    answers_on: tuple[str, ...]

    @property
    def text(self) -> str:
        """A sentence's worth, for people."""
        if not self.answers_on:
            return f"{self.mount} does not answer on {self.node} and on other nodes: its server or the network is away"
        return f"{self.mount} does not answer on {self.node}, and answers on {', '.join(self.answers_on)}"


def dead_mounts(views: Iterable[MountView]) -> tuple[DeadMount, ...]:
    """Each mount point that is silent, and on which node; none if other nodes have not been asked about it."""
    known = {view.node: view for view in views}
    found = []
    for mount in sorted({mount for view in known.values() for mount in view.silent}):
        silent = sorted(node for node, view in known.items() if mount in view.silent)
        answers = tuple(sorted(node for node, view in known.items() if mount in view.answered))
        own = bool(answers) and (len(silent) == 1 or len(silent) < len(answers))
        if own or len(silent) > 1:
            found += [DeadMount(mount, node, answers if own else ()) for node in silent]
    return tuple(found)
