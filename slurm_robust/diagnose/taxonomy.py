"""Names what can break a training, who is to blame for it, and what to do: `rules/categories.yaml`, typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Blame(str, Enum):
    """Whose fault it is, as far as a message shows."""

    NODE = "node"
    """The machine on which the failing rank ran is at fault."""
    SHARED = "shared"
    """Something that several nodes share is at fault: storage, a name service, the fabric, a remote service."""
    PROGRAM = "program"
    """Code, data, configuration or credentials are at fault."""
    EITHER = "either"
    """A broken machine and a wrong program may both cause it, or the cause is not known."""
    NOBODY = "nobody"
    """Somebody wanted it: the job was cancelled, preempted, or out of time."""


class AboutNode(str, Enum):
    """The node that a message is about, if it is about a node."""

    OWN = "own"
    """The node of the rank that printed the message."""
    PEER = "peer"
    """A peer of that rank, or the link to it."""


class Urgency(str, Enum):
    """Whether the failure comes again if nothing is done."""

    NOW = "now"
    SOON = "soon"
    NONE = "none"


@dataclass(frozen=True)
class Category:
    """A kind of failure.

    Attributes:
        weight: 30: a machine complains of itself, 20: a specific error, 10: a general error, 0: a consequence.
        meaning: What happened, as a sentence.
        remedy: What people can do about it.
        order: Its place in the list: of two errors at one moment, the one with the earlier category counts.
    """

    name: str
    blame: Blame
    weight: int
    urgency: Urgency
    meaning: str
    remedy: str
    order: int = 0

    @property
    def consequence(self) -> bool:
        """Whether it only follows from another failure, so that it is the root only if nothing else is known."""
        return self.weight == 0
