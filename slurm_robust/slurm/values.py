"""Parses single values as Slurm's commands print them: times, durations, node lists, states.

An unknown text raises `SlurmParseError`; nothing is guessed.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from functools import lru_cache

from slurm_robust.slurm.errors import SlurmParseError

NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "none", "Unknown", "NOT_SET", "n/s"})
"""The texts by which Slurm's commands say that there is no value."""

STATE_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_ISSUED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""The meaning of the sign after a node's state (`idle*`)."""

SHORT_STATES = {
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("ALLOCATED", "DRAIN"),
    "FAILING": ("ALLOCATED", "FAIL"),
    "FAIL": ("IDLE", "FAIL"),
    "MAINT": ("IDLE", "MAINTENANCE"),
    "RESERVED": ("IDLE", "RESERVED"),
    "COMPLETING": ("ALLOCATED", "COMPLETING"),
    "PLANNED": ("IDLE", "PLANNED"),
    "REBOOT": ("IDLE", "REBOOT_ISSUED"),
}
"""`sinfo` prints one word for some pairs of base state and flag."""

SHORT_FLAGS = {"MAINT": "MAINTENANCE", "NO_RESPOND": "NOT_RESPONDING", "REBOOT": "REBOOT_ISSUED"}

_ONE_GROUP = re.compile(r"([A-Za-z0-9._-]*[A-Za-z._-])\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")
"""The form of almost every list. Such a list is unfolded here: a month of jobs would take half a minute otherwise."""
_NODE_LIST = re.compile(r"[A-Za-z0-9._\[\]-]+(?:,[A-Za-z0-9._\[\]-]+)*\Z")


MAX_TIME_S = 253_370_764_800
"""The year 9999 begins. Any user can make Slurm print later times (`sbatch --begin=now+99999999weeks`), which calendars
do not have; the limit leaves a year, so that a time zone or a small sum stays in the calendar."""
MAX_NAMES = 262_144
"""The longest list that is unfolded: no cluster has more nodes. So many names take 25 MB and a second."""
_FAR_YEAR = re.compile(r"[0-9]{5,}-[0-9]{2}-[0-9]{2}T[0-9:]+Z?")
_ELEMENT = re.compile(r"(?:[^\[,]|\[[^\]]*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def nothing(text: str) -> bool:
    """Return whether the text means that there is no value."""
    return text in NOTHING


def plain(text: str) -> str:
    """Return the text, or an empty one if the text means that there is no value."""
    return "" if text in NOTHING else text


def clamped_s(at_s: float) -> int:
    """Seconds since the epoch that a calendar can hold: from 0 to `MAX_TIME_S`."""
    return min(max(0, int(at_s)), MAX_TIME_S)


def epoch_s(text: str) -> int:
    """Return a time as seconds since the epoch, at most `MAX_TIME_S`; 0 if there is none, or it is before 1970.

    Raises:
        SlurmParseError: the text is neither a number, an ISO time, nor one of Slurm's texts for no value.
    """
    if len(text) <= 11 and text.isascii() and text.isdigit():
        return int(text)  # almost every time
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 64:
        return clamped_s(int(text))
    if nothing(text):
        return 0
    if _FAR_YEAR.fullmatch(text):
        return MAX_TIME_S
    try:
        at = dt.datetime.fromisoformat(text)
        return clamped_s((at if at.tzinfo else at.replace(tzinfo=dt.timezone.utc)).timestamp())
    except (ValueError, OverflowError):
        raise SlurmParseError("not a time", text[:80]) from None


def duration_s(text: str) -> int | None:
    """Return `1-02:03:04`, `2:03:04`, `3:04`, `5` (minutes) in seconds, at most `MAX_TIME_S`.

    None for `UNLIMITED`, `Partition_Limit` and the like.

    Raises:
        SlurmParseError: the text has another form.
    """
    if text in ("UNLIMITED", "INFINITE", "Partition_Limit", "INVALID") or nothing(text):
        return None
    match = re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,8})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", text)
    if match is None:
        raise SlurmParseError("not a duration", text[:80])
    days, first, second, third = match.groups()
    if days is not None:  # days-hours[:minutes[:seconds]]
        return clamped_s(((int(days) * 24 + int(first)) * 60 + int(second or 0)) * 60 + int(third or 0))
    if third is not None:  # hours:minutes:seconds
        return clamped_s((int(first) * 60 + int(second)) * 60 + int(third))
    return clamped_s(int(first) * 60 + int(second or 0))  # minutes[:seconds]


def expand(node_list: str, *, remember: bool = True) -> tuple[str, ...]:
    """Return `n[1-3,7]` as names, in Slurm's order; nothing for an empty list.

    Without `remember` the names are not kept: for lists of thousands of nodes that come only once.

    Raises:
        SlurmParseError: not a node list, or one of more than `MAX_NAMES` names.
    """
    if nothing(node_list):
        return ()
    if not _NODE_LIST.match(node_list):
        raise SlurmParseError("not a node list", node_list[:80])
    if "[" not in node_list:
        return tuple(node_list.split(","))
    return _remembered(node_list) if remember else _unfolded(node_list)


def _quickly(prefix: str, numbers: str) -> tuple[str, ...] | None:
    """Return the names of `prefix[numbers]`; None if the numbers do not simply ascend, or are padded differently."""
    texts = re.split("[,-]", numbers)
    if any(text[0] == "0" and len(text) > 1 for text in texts) and len({len(text) for text in texts}) > 1:
        return None
    names: list[str] = []
    before = -1
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low <= before or high < low or len(names) + high - low >= MAX_NAMES:
            return None
        if high == low:
            names.append(prefix + first)
        else:
            names += [f"{prefix}{number:0{len(first)}}" for number in range(low, high + 1)]
        before = high
    return tuple(names)


@lru_cache(maxsize=1024)
def _remembered(node_list: str) -> tuple[str, ...]:
    """Unfold a list, and remember it: lists come again and again, of reservations and of jobs that run for days."""
    return _unfolded(node_list)


def _unfolded(node_list: str) -> tuple[str, ...]:
    group = _ONE_GROUP.fullmatch(node_list)
    if group and (quickly := _quickly(group[1], group[2])):
        return quickly
    if count(node_list) > MAX_NAMES:
        raise SlurmParseError(f"a list of more than {MAX_NAMES} nodes", node_list[:80])
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415 (slow to load)

    try:
        return tuple(str(name) for name in NodeSet(node_list, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise SlurmParseError(f"not a node list ({error})", node_list[:80]) from None


def array_tasks(text: str, job_id: int) -> list[str]:
    """Return an array's waiting tasks, listed by squeue as `5_[1-897:7%3]`, for scontrol, which knows no steps.

    In pieces: each is one word of a command line, and has at most a few kilobytes.
    """

    def each(steps: re.Match[str]) -> str:
        return ",".join(map(str, range(int(steps[1]), int(steps[2]) + 1, int(steps[3]))))

    found = list[str]()
    for tasks in re.findall(rf"^{job_id}_\[([0-9,:-]+)(?:%[0-9]+)?\]$", text, re.MULTILINE):
        parts = re.sub(r"([0-9]+)-([0-9]+):([1-9][0-9]*)", each, tasks).split(",")
        found += [",".join(parts[at : at + 1000]) for at in range(0, len(parts), 1000)]
    return found


def count(node_list: str) -> int:
    """Return how many names a list has, without unfolding it.

    Raises:
        SlurmParseError: the text is not a node list.
    """
    total = 0
    for element in _ELEMENT.findall(node_list):
        size = 1
        for ranges in _RANGES.findall(element):
            ends = [_RANGE.fullmatch(part) for part in ranges.split(",")]
            if None in ends:
                raise SlurmParseError("not a node list", node_list[:80])
            size *= sum(max(0, int(end[2] or end[1]) - int(end[1])) + 1 for end in ends if end)
        total += size
    return total


def fold(names: Iterable[str]) -> str:
    """Names as a folded list, `n[1-3,7]`, as Slurm accepts it.

    Raises:
        SlurmParseError: one of them is itself a list, of more than `MAX_NAMES` names.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 (slow to load)

    known = list(names)
    if any("[" in name for name in known) and count(",".join(known)) > MAX_NAMES:
        raise SlurmParseError(f"a list of more than {MAX_NAMES} nodes", ",".join(known)[:80])
    return str(NodeSet.fromlist(known, resolver=RESOLVER_NOGROUP))


@lru_cache(maxsize=1024)
def gpu_count(gres: str) -> int:
    """Return how many GPUs generic resources name: 8 for `gpu:a100:8(S:0-1),nic:1`, 2 for `gres/gpu:2`."""
    found = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = part.removeprefix("gres/").removeprefix("gres:").split(":")
        last = rest[-1] if rest else "1"
        found += int(last) if name == "gpu" and re.fullmatch(r"[0-9]{1,4}", last) else name == "gpu" and bool(rest)
    return found


@lru_cache(maxsize=256)
def node_state(text: str) -> tuple[str, frozenset[str]]:
    """Base state and flags of `MIXED+DRAIN+NOT_RESPONDING*`, `idle*`, `drained`, `down~`.

    Raises:
        SlurmParseError: not a state.
    """
    flags: set[str] = set()
    word = text.strip().upper()
    while word and word[-1] in STATE_SUFFIXES:
        flags.add(STATE_SUFFIXES[word[-1]])
        word = word[:-1]
    parts = word.split("+")
    if not all(re.fullmatch(r"[A-Z_]+", part) for part in parts):
        raise SlurmParseError("not a node state", text[:80])
    base = parts[0]
    if base in SHORT_STATES:
        base, flag = SHORT_STATES[base]
        flags.add(flag)
    flags.update(SHORT_FLAGS.get(part, part) for part in parts[1:])
    return base, frozenset(flags)


def listed_state(state: str, flags: frozenset[str]) -> str:
    """Return the base state of sinfo's listing: 22.05 says ALLOCATED of a drained node of which a part is in use."""
    return "ALLOCATED" if state == "MIXED" and "DRAIN" in flags else state
