"""The daemon's leave to drain: a marker that it keeps in a node's Comment, beside an admin's own words.

`[[srobust-leave until=1763686800 most=9]]` says that until then (seconds since the epoch) prolog, epilog and health
check may drain this node, while fewer than nine nodes are out by our doing: many that fail in the same second all find
their leave, long before the daemon could take it away, and have to count for themselves. The daemon renews it while its
breaker is closed; an open one puts `[[srobust-no-leave]]` in its place, and a dead daemon lets it lapse. All of that is
no leave, and so is a comment without any marker: that one says besides that no daemon has been here, which is what
`nodecheck.without_daemon` asks. Standard library only, nothing here acts.
"""

from __future__ import annotations

import re

MAX_LEAVE_S = 86_400.0
"""A leave that reaches further ahead than a day is not believed: it would outlive the daemon that gave it."""

_MARKER = re.compile(r"\s*\[\[srobust-(?:leave until=(\d{1,12})(?: most=(\d{1,6}))?|no-leave)\]\]")


def parse_leave(comment: str, now_s: float) -> float | None:
    """Until when this comment gives leave, seconds since the epoch; None where it gives none now.

    Of several markers the last counts. One that is malformed, over, or further ahead than `MAX_LEAVE_S` is none.
    """
    found = _MARKER.findall(comment)
    if not found or not found[-1][0]:
        return None
    until_s = float(found[-1][0])
    return until_s if now_s < until_s <= now_s + MAX_LEAVE_S else None


def parse_most(comment: str) -> int | None:
    """At how many nodes out by our doing this leave ends; None where it does not say."""
    found = _MARKER.findall(comment)
    return int(found[-1][1]) if found and found[-1][1] else None


def of_daemon(comment: str) -> bool:
    """True where a daemon has written a marker here, whatever it says now, also one that cannot be read."""
    return "[[srobust-" in comment


def render_leave(until_s: float | None, comment: str = "", most: int | None = None) -> str:
    """The comment with this marker instead of any that is in it; with the one that refuses where `until_s` is None.

    An admin's own words in `comment` stay as they are. `most` is what `parse_most` gives.
    """
    words = _MARKER.sub("", comment).strip()
    if until_s is None:
        return f"{words} [[srobust-no-leave]]".lstrip()
    bound = "" if most is None else f" most={min(max(most, 0), 999_999)}"
    return f"{words} [[srobust-leave until={int(until_s)}{bound}]]".lstrip()
