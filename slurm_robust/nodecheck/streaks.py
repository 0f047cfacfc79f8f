"""Conditions that hold look after look: since when. Pure; a new boot, or a look without it, starts anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def lasted_s(kept: Mapping[str, Any], key: str, boot_id: str, at_s: float) -> float:
    """How long the condition was seen at every look before this one; 0 where the last look did not see it."""
    since = kept.get("since")
    if kept.get("boot_id") != boot_id or not isinstance(since, Mapping):
        return 0.0
    first = since.get(key)
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        return 0.0
    return max(0.0, at_s - first)


def keep(kept: Mapping[str, Any], keys: Iterable[str], boot_id: str, at_s: float) -> dict[str, Any]:
    """What to remember: the conditions seen now, each with the time of its first look in a row."""
    return {"boot_id": boot_id, "since": {key: at_s - lasted_s(kept, key, boot_id, at_s) for key in keys}}
