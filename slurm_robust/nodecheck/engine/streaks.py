"""Says since when a condition holds run after run. Pure; a new boot, or a run without the condition, starts anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

GAP_S = 1800.0
"""The longest time between two runs for a condition that comes and goes: it may have been away in between."""


def lasted(facts: Mapping[str, Any], key: str, gap_s: float = math.inf) -> float:
    """Return for how many seconds every earlier run has seen the condition; 0 if the last run did not.

    Args:
        facts: A probe's facts, with those of `check_state.since`; their `kept` is from `kept` in the last run.
        key: The name of the condition.
        gap_s: How long ago the last run may be; `GAP_S` for a condition that comes and goes.
    """
    before, at_s = facts["kept"], facts["at_s"]
    since, last_s = before.get("since"), before.get("at_s")
    if before.get("boot_id") != facts["boot_id"] or not isinstance(since, Mapping):
        return 0.0
    if math.isfinite(gap_s) and not (isinstance(last_s, (int, float)) and at_s - last_s <= gap_s):
        return 0.0
    first = since.get(key)
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return 0.0
    return float(max(0.0, at_s - first))


def kept(facts: Mapping[str, Any], keys: Iterable[str], gap_s: float = math.inf) -> dict[str, Any]:
    """Return what to remember: the conditions seen now, each with the time of its first run in a row."""
    at_s = facts["at_s"]
    since = {key: at_s - lasted(facts, key, gap_s) for key in keys}
    return {"boot_id": facts["boot_id"], "at_s": at_s, "since": since}
