"""Reads and writes two markers in a node's `Extra`: its checks cannot see its GPUs (blind), or a mount is full.

`[[srobust-blind v=1 at=1763686800 : NVML cannot be used: the package nvidia-ml-py is not installed]]`: since when
(seconds since the epoch; renewed while it is so) and why. The node's health check writes it, also in observe mode, and
removes it once the GPUs are seen; the daemon only reads it, for `srobust status`, an alert and a metric. It stands in
`Extra` beside the fault marker and a person's own text, both of which stay. `[[srobust-full v=1 at=… : /scratch]]` is
the same for file systems that jobs need and that are full: it names them. Standard library only; nothing here acts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.marks import field_text
from slurm_robust.marks.fault_marker import CLOCKS_DIFFER_S

RENEWED_S = 6 * 3600.0
"""A node that is still blind says it again after so long."""
MAX_AGE_S = 24 * 3600.0
"""An older marker is not believed: its node has long stopped to renew it."""
MAX_REASON_CHARS = 160

BLIND, FULL = "blind", "full"
"""The kinds of marker: the GPUs cannot be seen; a file system is full."""
_MARKER = {k: re.compile(rf"\[\[srobust-{k} v=1 at=([0-9]{{1,12}}) : ([^\[\]]{{1,200}})\]\]") for k in (BLIND, FULL)}
_ANY = {k: field_text.marker(k) for k in (BLIND, FULL)}


class BlindMarker(NamedTuple):
    """The seconds since the epoch since when a node cannot check its GPUs, and why; or which places are full."""

    at_s: int
    reason: str


def parse(extra: str, kind: str = BLIND) -> BlindMarker | None:
    """Return the last marker of this kind in this text; None if no marker of this kind can be read. Never raises."""
    found = _MARKER[kind].findall(extra)
    return BlindMarker(int(found[-1][0]), field_text.sentence(found[-1][1], MAX_REASON_CHARS)) if found else None


def marked(extra: str, kind: str = BLIND) -> bool:
    """Return True if there is any marker of this kind, also one that cannot be read."""
    return f"[[srobust-{kind}" in extra


def without(extra: str, kind: str = BLIND) -> str:
    """Return the text without markers of this kind, as Slurm takes it."""
    return field_text.without(_ANY[kind], extra)


def render(marker: BlindMarker, extra: str = "", kind: str = BLIND) -> str:
    """Return the text with this marker in place of every one of its kind in it; what else stands there stays."""
    at_s = min(max(int(marker.at_s), 0), 999_999_999_999)
    reason = field_text.sentence(marker.reason, MAX_REASON_CHARS) or "unknown"
    return f"{without(extra, kind)} [[srobust-{kind} v=1 at={at_s} : {reason}]]".lstrip()


def believed(marker: BlindMarker, now_s: float, boot_at_s: float) -> bool:
    """Return True if the marker still holds: it is of this boot of the node, and not too old."""
    return now_s - marker.at_s <= MAX_AGE_S and marker.at_s >= boot_at_s - CLOCKS_DIFFER_S


def says_as_much(there: BlindMarker, new: BlindMarker | None, now_s: float, boot_at_s: float) -> bool:
    """Return True if the marker that is there has the reason of the new one, and it is no time to renew it."""
    same = new is not None and new.reason == there.reason
    return same and 0 <= now_s - there.at_s < RENEWED_S and believed(there, now_s, boot_at_s)
