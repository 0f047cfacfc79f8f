"""Conditions that hold run after run: since when. Pure; a new boot, or a run without it, starts anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

GAP_S = 1800.0
"""What comes and goes may have been away between two runs further apart than this."""


def lasted_s(kept: Mapping[str, Any], key: str, boot_id: str, at_s: float, gap_s: float = math.inf) -> float:
    """For how long every earlier run has seen the condition; 0 where the last one did not.

    Args:
        kept: From `keep` in the last run.
        key: Names the condition.
        boot_id: Of this boot.
        at_s: Seconds since boot.
        gap_s: How long ago the last run may be; `GAP_S` for what comes and goes.
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
    """What to remember: the conditions seen now, each with the time of its first run in a row."""
    since = {key: at_s - lasted_s(kept, key, boot_id, at_s, gap_s) for key in keys}
    return {"boot_id": boot_id, "at_s": at_s, "since": since}


def lasted(facts: Mapping[str, Any], key: str, gap_s: float = math.inf) -> float:
    """`lasted_s` of a probe's facts, which have those of `check_state.since`."""
    return lasted_s(facts["kept"], key, facts["boot_id"], facts["at_s"], gap_s)


def kept(facts: Mapping[str, Any], keys: Iterable[str], gap_s: float = math.inf) -> dict[str, Any]:
    """`keep` of a probe's facts, as in `lasted`."""
    return keep(facts["kept"], keys, facts["boot_id"], facts["at_s"], gap_s)
