"""Reads software RAID arrays from `/proc/mdstat` (format: md(4))."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ARRAY = re.compile(r"(md[\w-]{1,32}) : (active|inactive)((?: \([\w-]+\))?) ?(.*)")
_STATE = re.compile(r"\[(\d{1,4})/(\d{1,4})\] \[([U_]{1,400})\]")
_MEMBER = re.compile(r"([\w!-]{1,64})\[\d{1,6}\]((?:\([A-Z]\)){0,3})")


@dataclass(frozen=True)
class Array:
    """One RAID array.

    Attributes:
        missing: The number of missing members; 0 if the level does not count them (raid0, linear).
        failed: Names of members marked as failed.
        container: Whether it only holds the members of other arrays (IMSM, DDF), and is therefore inactive.
        busy: `recovery`, `resync`, `check`, … while one runs; otherwise empty.
    """

    name: str
    active: bool
    missing: int
    failed: tuple[str, ...]
    busy: str
    container: bool = False


def parse(text: str) -> list[Array]:
    """Read the file; lines of another shape are passed over."""
    arrays: list[Array] = []
    current: re.Match[str] | None = None
    missing, busy, container = 0, "", False

    def close() -> None:
        if current is not None:
            failed = tuple(name for name, marks in _MEMBER.findall(current[4]) if "(F)" in marks)
            arrays.append(Array(current[1], current[2] == "active", missing, failed, busy, container))

    for line in text.splitlines():
        if match := _ARRAY.match(line):
            close()
            current, missing, busy, container = match, 0, "", False
        elif current is not None and (state := _STATE.search(line)):
            missing = max(0, int(state[1]) - int(state[2]))
        elif current is not None and (under_way := re.search(r"(recovery|resync|reshape|check|repair)\s*=", line)):
            busy = under_way[1]
        elif current is not None and re.search(r" super external:(?!/)", line):
            container = True
    close()
    return arrays
