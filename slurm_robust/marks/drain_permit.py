"""Reads and writes the drain permit: the daemon's marker in a node's Comment that lets the node drain itself.

`[[srobust-drain-permit until=1763686800 most=9]]`: until then (seconds since the epoch) prolog, epilog and health check
may drain this node, as long as fewer than nine nodes are drained by us. The bound is there because many nodes may fail
in the same second, before the daemon can withdraw their permits. The daemon renews permits while its breaker is closed;
an open breaker puts `[[srobust-no-drain-permit]]` in their place, and the permits of a dead daemon expire. A comment
without any marker is no permit either; it also says that no daemon manages this node, which
`nodecheck.without_daemon` asks. The markers of version 0.1, `srobust-leave` and `srobust-no-leave`, mean the same.
Standard library only; nothing here acts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_PERMIT_S = 86_400.0
"""A permit that reaches further ahead than a day is ignored: it would outlive the daemon that gave it."""

_MARKER = re.compile(
    r"\s{0,64}\[\[srobust-(?:(?:drain-permit|leave) until=(\d{1,12})(?: most=(\d{1,6}))?|no-(?:drain-permit|leave))\]\]"
)


class DrainPermit(NamedTuple):
    """A permit that is valid now.

    Attributes:
        until_s: When it expires, seconds since the epoch.
        most: The number of nodes drained by us from which on the permit is void; None if the marker names no bound.
    """

    until_s: float
    most: int | None = None


def parse(comment: str, now_s: float) -> DrainPermit | None:
    """Return the permit in this comment; None if no permit is valid now.

    The last of several markers counts. A marker that is malformed, expired, or reaches further ahead than
    `MAX_PERMIT_S` does not permit anything.
    """
    markers = _MARKER.findall(comment)
    until, most = markers[-1] if markers else ("", "")
    if not until or not now_s < float(until) <= now_s + MAX_PERMIT_S:
        return None
    return DrainPermit(float(until), int(most) if most else None)


def of_daemon(comment: str) -> bool:
    """Return whether a daemon has written any marker here, also one that refuses, has expired, or cannot be read."""
    return "[[srobust-" in comment


def render_permit(until_s: float | None, comment: str = "", most: int | None = None) -> str:
    """Return the comment with this permit in place of every marker in it; with a refusal if `until_s` is None.

    An admin's own text in `comment` stays. `most` is the permit's bound.
    """
    text = _MARKER.sub("", comment).strip()
    if until_s is None:
        return f"{text} [[srobust-no-drain-permit]]".lstrip()
    bound = "" if most is None else f" most={min(max(most, 0), 999_999)}"
    return f"{text} [[srobust-drain-permit until={int(until_s)}{bound}]]".lstrip()
