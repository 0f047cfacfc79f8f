"""Names what can break a training, who is to blame for it, and what to do: `rules/categories.yaml`, typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Blame(str, Enum):
    """Whose fault it is, as far as a message shows."""

    NODE = "node"
    """That machine's."""
    SHARED = "shared"
    """Of something that several nodes share: storage, a name service, the fabric, a remote service."""
    PROGRAM = "program"
    """Of code, data, configuration or credentials."""
    EITHER = "either"
    """A broken machine and a wrong program both cause it, or nobody knows."""
    NOBODY = "nobody"
    """Somebody wanted it: cancelled, preempted, out of time."""


class AboutNode(str, Enum):
    """Which node a message is about, where it is about one."""

    OWN = "own"
    """The node of the rank that printed it."""
    PEER = "peer"
    """A peer of that rank, or the link to it."""


class Urgency(str, Enum):
    """Whether the same failure comes again if nothing is done."""

    NOW = "now"
    SOON = "soon"
    NONE = "none"


@dataclass(frozen=True)
class Category:
    """A kind of failure.

    Attributes:
        weight: 30 a machine complains of itself, 20 a specific error, 10 a general one, 0 a consequence.
        meaning: What happened, a sentence.
        remedy: What to do about it, for people.
        order: Its place in the list: of two at the same moment, the earlier one counts.
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
        """It only follows from another failure, and is the root only where nothing else is known."""
        return self.weight == 0
