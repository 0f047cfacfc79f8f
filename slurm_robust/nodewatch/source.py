"""Defines what every source has in common: the service waits for its descriptor or its time, and restarts it."""

from __future__ import annotations

import math

from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

NEVER_S = math.inf


class SourceBrokenError(Exception):
    """A source ended and is to be started again; the message says why."""


class Source:
    """One way to learn what happens on this node.

    Attributes:
        name: The name that findings have for the source.
        fd: The descriptor to wait for; -1 if there is none.
        due_s: When `tick` is to be called, monotonic.
    """

    name = ""

    def __init__(self) -> None:
        self.fd = -1
        self.due_s = NEVER_S

    def open(self, moment: Moment) -> None:
        """Begin.

        Raises:
            OSError: there is nothing to read now.
            SourceBrokenError: the same.
        """

    def read(self, moment: Moment) -> list[Seen]:
        """Return what the descriptor has; called when it can be read. Raises as `open`."""
        return []

    def tick(self, moment: Moment) -> list[Seen]:
        """Return the findings that are due, and set the next time. Raises as `open`."""
        return []

    def close(self) -> None:
        """End; may be called at any time, and again."""
