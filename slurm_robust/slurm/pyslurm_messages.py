"""Defines the messages between the pyslurm back end and its process."""

from __future__ import annotations

from typing import Any

import msgspec


class Unable(Exception):  # noqa: N818 (not an error: a reply)
    """The reply that this pyslurm cannot do the call; the text says why."""


class Broken(Unable):
    """pyslurm failed in that, and not by Slurm's word: a name that it does not have, a value that it cannot read."""


class Request(msgspec.Struct):
    """The call that the worker should make; `what` names it in errors."""

    call: str
    what: str
    args: dict[str, Any] = {}


class Reply(msgspec.Struct):
    """`kind` is empty after success, else an error's class name."""

    kind: str = ""
    what: str = ""
    text: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")


class Installed(msgspec.Struct):
    """The pyslurm that is installed.

    Attributes:
        version: Its own version, `25.11.2`: the first two numbers are the release of Slurm that it was made for.
        lacks: Call → the name that this pyslurm does not have for it.
    """

    version: str
    lacks: dict[str, str]
