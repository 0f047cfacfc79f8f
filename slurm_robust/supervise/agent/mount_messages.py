"""Defines the messages about network file systems between supervisor and agents; `messages` lists them with all."""

from __future__ import annotations

from typing import NamedTuple


class CheckMounts(NamedTuple):
    """Find out which of these mount points do not answer.

    Attributes:
        mounts: Empty for all network file systems of the node.
        only: The node whose agent answers; empty for all.
    """

    request_id: int
    mounts: tuple[str, ...] = ()
    only: str = ""


class MountsChecked(NamedTuple):
    """Which mount points of a node are silent, and which have answered.

    Attributes:
        request_id: That of the request, or of the capture that has found a process of a rank in state D.
    """

    node: str
    request_id: int
    silent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
