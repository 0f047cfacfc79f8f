"""Finds network file systems that answer on some nodes only, from what the nodes' agents found. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MountView:
    """The mount points of one node that are silent, and those that have answered."""

    node: str
    silent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeadMount:
    """A mount point that does not answer on a node.

    Attributes:
        answers_on: Nodes on which the mount point answers, if it is silent on a single node or on fewer nodes than
            these: then the silent nodes are at fault. Else empty: then the file system's server or the network is at
            fault.
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
    """Return each silent mount point, with each node on which it is silent, if another node was asked about it."""
    known = {view.node: view for view in views}
    found = []
    for mount in sorted({mount for view in known.values() for mount in view.silent}):
        silent = sorted(node for node, view in known.items() if mount in view.silent)
        answers = tuple(sorted(node for node, view in known.items() if mount in view.answered))
        own = bool(answers) and (len(silent) == 1 or len(silent) < len(answers))
        if own or len(silent) > 1:
            found += [DeadMount(mount, node, answers if own else ()) for node in silent]
    return tuple(found)
