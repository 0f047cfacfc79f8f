"""Defines the messages about network file systems between supervisor and agents; `messages` lists them, too."""

from __future__ import annotations

from typing import NamedTuple


class CheckMounts(NamedTuple):
    """Find out which of these mount points do not answer.

    Attributes:
        mounts: The mount points; empty for all network file systems of the node.
        only: The node whose agent answers; empty for all.
    """

    request_id: int
    mounts: tuple[str, ...] = ()
    only: str = ""


class MountsChecked(NamedTuple):
    """The mount points of a node that are silent, and those that have answered.

    Attributes:
        request_id: Id of the request, or of the capture that has found a process of a rank in state D.
    """

    node: str
    request_id: int
    silent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
