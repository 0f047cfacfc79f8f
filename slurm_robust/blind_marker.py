"""The blind marker: a node's own words in its `Extra` field that its checks cannot see its GPUs.

`[[srobust-blind v=1 at=1763686800 : NVML cannot be used: the package nvidia-ml-py is not installed]]`: since when
(seconds since the epoch; renewed while it is so) and why. The node's health check writes it, also in observe mode, and
removes it once the GPUs are seen; the daemon only reads it, for `srobust status`, an alert and a metric. It stands in
`Extra` beside the fault marker and a person's own text, both of which stay. Standard library only; nothing here acts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.fault_marker import CLOCKS_DIFFER_S

RENEWED_S = 6 * 3600.0
"""A node that is still blind says it again after so long."""
MAX_AGE_S = 24 * 3600.0
"""An older marker is not believed: its node has long stopped to renew it."""
MAX_REASON_CHARS = 160

_MARKER = re.compile(r"\[\[srobust-blind v=1 at=([0-9]{1,12}) : ([^\[\]]{1,200})\]\]")
_ANY = re.compile(r"\s{0,8}\[\[srobust-blind[^\[\]]{0,1000}\]\]")
"""Also of another version, and one that cannot be read."""


class BlindMarker(NamedTuple):
    """Since when a node cannot check its GPUs (whole seconds since the epoch), and why."""

    at_s: int
    reason: str


def parse(extra: str) -> BlindMarker | None:
    """Return the last marker in this text; None if there is none that can be read. Never raises."""
    found = _MARKER.findall(extra)
    return BlindMarker(int(found[-1][0]), _plain(found[-1][1])) if found else None


def marked(extra: str) -> bool:
    """Return True if there is any marker, also one that cannot be read."""
    return "[[srobust-blind" in extra


def without(extra: str) -> str:
    """Return the text without any marker, and with a space for each control character, which Slurm does not take."""
    return "".join(c if c.isprintable() else " " for c in _ANY.sub("", extra)).strip()


def render(marker: BlindMarker, extra: str = "") -> str:
    """Return the text with this marker in place of every blind marker in it; what else stands there stays."""
    at_s = min(max(int(marker.at_s), 0), 999_999_999_999)
    reason = _plain(marker.reason) or "unknown"
    return f"{without(extra)} [[srobust-blind v=1 at={at_s} : {reason}]]".lstrip()


def believed(marker: BlindMarker, now_s: float, boot_at_s: float) -> bool:
    """Return True if the marker still holds: it is of this boot of the node, and not too old."""
    return now_s - marker.at_s <= MAX_AGE_S and marker.at_s >= boot_at_s - CLOCKS_DIFFER_S


def says_as_much(there: BlindMarker, text: str, now_s: float, boot_at_s: float) -> bool:
    """Return True if the marker that is there has the reason of the one in `text`, and is no time to renew it."""
    new = parse(text)
    same = new is not None and new.reason == there.reason
    return same and 0 <= now_s - there.at_s < RENEWED_S and believed(there, now_s, boot_at_s)


def _plain(text: str) -> str:
    """Return one line of printable ASCII without brackets, within the bound."""
    line = "".join(c if c.isascii() and c.isprintable() else "?" for c in " ".join(text.split()))
    return line.replace("[", "(").replace("]", ")")[:MAX_REASON_CHARS].strip()
