"""Conditions that hold look after look: since when. Pure; a new boot, or a look without it, starts anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

GAP_S = 1800.0
"""Between two looks further apart than this, what comes and goes may have been away."""


def lasted_s(kept: Mapping[str, Any], key: str, boot_id: str, at_s: float, gap_s: float = math.inf) -> float:
    """How long the condition was seen at every look before this one; 0 where the last look did not see it.

    Args:
        kept: What `keep` gave at the last look.
        key: Names the condition.
        boot_id: Of this boot.
        at_s: Seconds since boot.
        gap_s: How long ago the last look may be; `GAP_S` for what comes and goes.
    """
    since = kept.get("since")
    if kept.get("boot_id") != boot_id or not isinstance(since, Mapping):
        return 0.0
    last_s = kept.get("at_s")
    if math.isfinite(gap_s) and not (isinstance(last_s, (int, float)) and at_s - last_s <= gap_s):
        return 0.0
    first = since.get(key)
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return 0.0
    return max(0.0, at_s - first)


def keep(
    kept: Mapping[str, Any], keys: Iterable[str], boot_id: str, at_s: float, gap_s: float = math.inf
) -> dict[str, Any]:
    """What to remember: the conditions seen now, each with the time of its first look in a row."""
    since = {key: at_s - lasted_s(kept, key, boot_id, at_s, gap_s) for key in keys}
    return {"boot_id": boot_id, "at_s": at_s, "since": since}
