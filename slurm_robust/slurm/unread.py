"""Skips and names records that cannot be read, so that one of them does not spoil a reading of many things."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import ParamSpec, TypeVar

from slurm_robust.slurm.errors import SlurmParseError

P = ParamSpec("P")
T = TypeVar("T")
UNREADABLE = (SlurmParseError, LookupError, ValueError, ArithmeticError)
"""The errors that reading a record in another form can raise."""


def read_one(name: str, unread: list[str] | None, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Read one record of many; None if it cannot be read, and `unread` then has a line with its `name` and why.

    Raises:
        SlurmParseError: the record cannot be read, and `unread` is None: the caller needs this very record.
    """
    try:
        return read(*args, **kwargs)
    except UNREADABLE as error:
        if unread is None:
            raise error if isinstance(error, SlurmParseError) else SlurmParseError(name, str(error)[:200]) from error
        unread.append(f"{name}: {error}"[:200])
        return None


def check(found: Sized, unread: list[str] | None) -> None:
    """Refuse an answer of which nothing could be read: taken for an empty one, it would mean that every job is gone.

    Raises:
        SlurmParseError: that is so.
    """
    if unread and not found:
        raise SlurmParseError("Slurm's answer is in another form", unread[0])
