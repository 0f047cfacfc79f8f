"""Tells whether a target sleeps: `22:00-07:00` in a time zone. The time is an argument."""

from __future__ import annotations

import datetime as dt
import zoneinfo


def zone_of(name: str) -> dt.tzinfo | None:
    """Return the time zone of that name; None if this machine does not know it."""
    if name == "UTC":
        return dt.timezone.utc
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def is_quiet(hours: str, zone: dt.tzinfo, now_s: float) -> bool:
    """Return whether `hours` (`22:00-07:00`, checked by the configuration; empty for none) cover this local time."""
    if not hours:
        return False
    clock = dt.datetime.fromtimestamp(now_s, zone).strftime("%H:%M")
    begin, end = hours.split("-")
    return begin <= clock < end if begin < end else clock >= begin or clock < end
