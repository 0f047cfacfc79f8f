"""Checks arguments before they are passed to Slurm: none can become a second `key=value`, an option, another target."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_robust.model import REASON_PREFIX
from slurm_robust.slurm.errors import SlurmRefusedError

_NODE_LIST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._,\[\]-]*[A-Za-z0-9\]])?\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
_FLAG = re.compile(r"[A-Z][A-Z_]{0,39}\Z")
_SIGNAL = re.compile(r"[A-Z][A-Z0-9+]{0,15}\Z|[1-9][0-9]?\Z")
_STEP = re.compile(r"[0-9]{1,10}\Z")


def _refuse(what: str, value: str) -> SlurmRefusedError:
    return SlurmRefusedError(f"not passed to Slurm: {what}", repr(value[:80]))


def node_list(text: str) -> str:
    """A folded node list; never empty, never `ALL`.

    Raises:
        SlurmRefusedError: it is not one.
    """
    # For Slurm ALL means every node of the cluster.
    if not _NODE_LIST.match(text) or text.upper() == "ALL":
        raise _refuse("not a list of node names", text)
    return text


def node_list_or_none(text: str) -> str:
    """A folded node list, or an empty text, which clears."""
    return node_list(text) if text else ""


def name(text: str) -> str:
    """A reservation's or user's name.

    Raises:
        SlurmRefusedError: it is not one.
    """
    if not _NAME.match(text):
        raise _refuse("not a plain name", text)
    return text


def names(texts: Iterable[str]) -> str:
    """Names, joined by commas.

    Raises:
        SlurmRefusedError: one of them is not one, or there is none.
    """
    joined = ",".join(name(text) for text in texts)
    if not joined:
        raise _refuse("an empty list of names", "")
    return joined


def flags(texts: Iterable[str]) -> str:
    """Reservation flags, joined by commas.

    Raises:
        SlurmRefusedError: one of them is not one.
    """
    listed = list(texts)
    for text in listed:
        if not _FLAG.match(text):
            raise _refuse("not a reservation flag", text)
    return ",".join(listed)


def signal(text: str) -> str:
    """A signal's name without SIG, or its number.

    Raises:
        SlurmRefusedError: it is not one.
    """
    bare = text.upper().removeprefix("SIG")
    if not _SIGNAL.match(bare):
        raise _refuse("not a signal", text)
    return bare


def step(text: str) -> str:
    """A numbered step; the batch and extern steps are never signalled.

    Raises:
        SlurmRefusedError: it is not one.
    """
    if not _STEP.match(text):
        raise _refuse("not a step number", text)
    return text


def minutes(value: int) -> int:
    """A positive number of minutes, at most a year.

    Raises:
        SlurmRefusedError: it is not one.
    """
    if not 1 <= value <= 366 * 24 * 60:
        raise _refuse("not a number of minutes between one and a year", str(value))
    return value


def free_text(text: str) -> str:
    """A comment: any text that a process can have as an argument.

    Raises:
        SlurmRefusedError: it has a NUL.
    """
    if "\0" in text:
        raise _refuse("a text with a NUL", text)
    return text


def line(text: str) -> str:
    """One line of text, without control characters: Slurm prints a node's reason and comment as they are.

    Raises:
        SlurmRefusedError: it is not one.
    """
    if not text.isprintable():
        raise _refuse("a text with control characters", text)
    return text


def reason(text: str) -> str:
    """A reason of ours.

    Raises:
        SlurmRefusedError: it does not begin with `srobust:`, or is not one line.
    """
    if not text.startswith(REASON_PREFIX):
        raise _refuse(f"a reason that does not begin with {REASON_PREFIX}", text)
    return line(text)
