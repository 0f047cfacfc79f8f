"""Reads and writes the lease: which daemon of the cluster acts, as a marker in one node's `Comment`.

`[[srobust-lease v=1 of=ctl1 id=9f3c21d04ab77e10]]`: the daemon on that host, with that journal. A daemon that stands by
adds `asked=TEXT`, and the one that acts removes it again: so all daemons see that it lives, without comparing clocks.
If there is no second daemon, the marker is written only once. Standard library only; nothing here acts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.marks import field_text

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_MARKER = re.compile(rf"\[\[srobust-lease v=1 of=({_WORD}) id=({_WORD})(?: asked=({_WORD}))?\]\]")
_ANY = field_text.marker("lease")


class LeaseMarker(NamedTuple):
    """The daemon that acts: its host and its journal's name; `asked`: what it has to remove to show that it lives."""

    host: str
    id: str
    asked: str = ""

    def same(self, other: LeaseMarker | None) -> bool:
        """Return True if both are of the same daemon."""
        return other is not None and self[:2] == other[:2]


def parse(comment: str) -> LeaseMarker | None:
    """Return the last marker in this text; None if no marker can be read. Never raises."""
    found = _MARKER.findall(comment)
    return LeaseMarker(*found[-1]) if found else None


def marked(comment: str) -> bool:
    """Return True if there is any marker, also one that cannot be read."""
    return "[[srobust-lease" in comment


def render(marker: LeaseMarker, comment: str = "") -> str:
    """Return the text with this marker in place of every lease in it; what else stands there stays."""
    asked = f" asked={marker.asked}" if marker.asked else ""
    return f"{field_text.without(_ANY, comment)} [[srobust-lease v=1 of={marker.host} id={marker.id}{asked}]]".lstrip()


def word(text: str) -> str:
    """Return a host's name as a marker takes it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("._-")[:80] or "unknown"
