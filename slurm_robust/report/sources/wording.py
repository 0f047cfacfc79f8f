"""Words doubts: a few examples, times in UTC. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

_SHOWN = 3


def utc(at_s: float) -> str:
    """Return a time as `2026-11-23 14:05:09 UTC`; the number itself if calendars do not have it."""
    try:
        return dt.datetime.fromtimestamp(at_s, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:g} s"


def examples(texts: Sequence[str]) -> str:
    """Return the first few examples, and how many more there are."""
    shown = ", ".join(texts[:_SHOWN])
    return f"{shown} and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else shown
