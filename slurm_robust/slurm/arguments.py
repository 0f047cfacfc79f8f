"""Checks arguments before they are passed to Slurm: none can become a second `key=value`, an option, another target.

Each function returns its argument in the form that Slurm takes.

Raises:
    SlurmRefusedError: the argument does not have the form that the function's docstring names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from slurm_robust.core.model import REASON_PREFIX
from slurm_robust.slurm.errors import SlurmRefusedError

if TYPE_CHECKING:
    from slurm_robust.core.model import JobRef
    from slurm_robust.slurm.client import Job, JobPlacement


def _refuse(what: str, value: str) -> SlurmRefusedError:
    return SlurmRefusedError(f"not passed to Slurm: {what}", repr(value[:80]))


def _matching(pattern: str, otherwise: str) -> Callable[[str], str]:
    """Return a check that passes texts of this form."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _refuse(otherwise, text)
        return text

    return check


# For Slurm ALL means every node of the cluster.
node_list = _matching(r"(?!(?i:all)\Z)[A-Za-z0-9](?:[A-Za-z0-9._,\[\]-]*[A-Za-z0-9\]])?", "not a list of node names")
"""A folded node list; never empty, never `ALL`."""
node = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", "not one node's name")
"""Exactly one node."""
name = _matching(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", "not a plain name")
"""A reservation's name."""
_user = _matching(r"[A-Za-z0-9_][A-Za-z0-9._@+\\-]{0,254}", "not a user's name")
"""Names may have the form that directories give them, too: `ann@example.org`, `EXAMPLE\\ann`."""
step = _matching(r"[0-9]{1,10}", "not a step number")
"""A numbered step; the batch and extern steps are never signalled."""
_flag = _matching(r"[A-Z][A-Z_]{0,39}", "not a reservation flag")
_signal = re.compile(r"[A-Z][A-Z0-9+]{0,15}|[1-9][0-9]?")


def node_list_or_none(text: str) -> str:
    """Return a folded node list, or an empty text, which clears."""
    return node_list(text) if text else ""


def names(texts: Iterable[str]) -> str:
    """Names of users, joined by commas; at least one."""
    joined = ",".join(_user(text) for text in texts)
    if not joined:
        raise _refuse("an empty list of names", "")
    return joined


def flags(texts: Iterable[str]) -> str:
    """Reservation flags, joined by commas."""
    return ",".join(_flag(text) for text in texts)


def signal(text: str) -> str:
    """Return a signal's name without SIG, or its number."""
    bare = text.upper().removeprefix("SIG")
    if not _signal.fullmatch(bare):
        raise _refuse("not a signal", text)
    return bare


def minutes(value: int) -> int:
    """Return a positive number of minutes, at most a year."""
    if not 1 <= value <= 366 * 24 * 60:
        raise _refuse("not a number of minutes between one and a year", str(value))
    return value


def reservation_end(open_s: float) -> str:
    """Return a reservation's end so many seconds from now; at least a minute, and from a year on without an end."""
    return "Duration=UNLIMITED" if open_s >= 365 * 86400 else f"EndTime=now+{max(60, int(open_s))}"


def delay_s(value: int) -> int:
    """Return a positive number of seconds, at most a day."""
    if not 1 <= value <= 86400:
        raise _refuse("not a number of seconds between one and a day", str(value))
    return value


def free_text(text: str) -> str:
    """Return a comment: any text that a process can have as an argument, so without NUL."""
    if "\0" in text:
        raise _refuse("a text with a NUL", text)
    return text


def line(text: str) -> str:
    """Return one line of text without control characters: Slurm prints a node's reason and comment unchanged."""
    if not text.isprintable():
        raise _refuse("a text with control characters", text)
    return text


def reason(text: str) -> str:
    """Return a reason of ours: one line that begins with `srobust:`."""
    if not text.startswith(REASON_PREFIX):
        raise _refuse(f"a reason that does not begin with {REASON_PREFIX}", text)
    return line(text)


def one(found: Job, asked: JobRef, verb: str) -> Job:
    """Return the job if it is exactly one: neither the rest of an array, nor a part of a het job."""
    what = f"{verb} job {asked.address}"
    if found.hetjob_id:
        raise SlurmRefusedError(f"{what}: part of het job {found.hetjob_id}; act on het jobs by hand, with scontrol")
    if found.ref.array_job_id is not None and found.ref.array_task_id is None:
        raise SlurmRefusedError(f"{what}: means several tasks of an array; name one, {asked.job_id}_TASK")
    return found


_NOW = re.compile(r"((?:Start|End)Time=|--deadline=)now(?:\+([0-9]+)(minutes)?)?")


def in_slurms_time(words: Iterable[str], ahead_s: int) -> list[str]:
    """Return the words of a command; `now`, which the command reads from this host's clock, means slurmctld's time.

    Args:
        words: Each by itself.
        ahead_s: How far this host's clock is ahead of slurmctld's, seconds.
    """

    def told(word: str) -> str:
        found = _NOW.fullmatch(word)
        return f"{found[1]}now{int(found[2] or 0) * (60 if found[3] else 1) - ahead_s:+d}" if found else word

    return [told(word) if ahead_s else word for word in words]


_UPDATES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "req_nodes": ("ReqNodeList", node_list_or_none),
    "exclude": ("ExcNodeList", node_list_or_none),
    "reservation": ("ReservationName", lambda text: ",".join(name(one) for one in text.split(",")) if text else ""),
    "time_limit_min": ("TimeLimit", minutes),
    "comment": ("Comment", free_text),
    "admin_comment": ("AdminComment", free_text),
    "start_now": ("StartTime", lambda _: "now"),
    "start_in_s": ("StartTime", lambda seconds: f"now+{delay_s(seconds)}"),
}
"""`JobChanges` → scontrol's key, and its value as text."""


def update_words(changes: JobPlacement) -> list[str]:
    """Return the changes as words of `scontrol update`."""
    given: dict[str, Any] = {**changes, "start_now": changes.get("start_now") or None}
    return [f"{key}={text(given[name])}" for name, (key, text) in _UPDATES.items() if given.get(name) is not None]


def sooner(changes: JobPlacement, start_at_s: float, ahead_s: int) -> list[str]:
    """Return a job's changes as words of `scontrol update`, without a start that is not sooner than its present one.

    scontrol passes no start before `now` of this host. If this host's clock is ahead of slurmctld's, each call would
    put the start off again.

    Args:
        changes: The changes, as `update_words` takes them.
        start_at_s: When the job may start without the change, by slurmctld's clock.
        ahead_s: How far this host's clock is ahead of slurmctld's, seconds.
    """
    is_later = ahead_s > 0 and start_at_s <= time.time() + 2
    return [word for word in update_words(changes) if not (is_later and word.startswith("StartTime="))]
