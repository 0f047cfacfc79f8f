"""Quiet hours on a wall clock: over midnight, in another time zone, and when the clock changes."""

from __future__ import annotations

import datetime as dt

import pytest

from slurm_robust.notify.quiet_hours import is_quiet, zone_of


def at(text: str) -> float:
    """Seconds since the epoch of a time in UTC."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("hours", "zone", "when", "quiet"),
    [
        ("", "UTC", "2026-11-23 03:00", False),
        ("22:00-07:00", "UTC", "2026-11-23 22:00", True),
        ("22:00-07:00", "UTC", "2026-11-23 06:59", True),
        ("22:00-07:00", "UTC", "2026-11-23 07:00", False),
        ("12:00-13:00", "UTC", "2026-11-23 12:30", True),
        ("12:00-13:00", "UTC", "2026-11-23 13:00", False),
        ("00:00-00:00", "UTC", "2026-11-23 13:00", True),
        ("22:00-07:00", "Asia/Tokyo", "2026-11-23 13:00", True),
        ("22:00-07:00", "Asia/Tokyo", "2026-11-23 12:59", False),
        ("22:00-07:00", "Europe/Berlin", "2026-07-01 20:00", True),
        ("22:00-07:00", "Europe/Berlin", "2026-12-01 20:00", False),
    ],
)
def test_wall_clocks(hours: str, zone: str, when: str, quiet: bool) -> None:
    """Summer time counts."""
    found = zone_of(zone)
    assert found is not None
    assert is_quiet(hours, found, at(when)) is quiet


@pytest.mark.parametrize("name", ["Nowhere/Town", "", "../../etc/passwd", "/etc/passwd"])
def test_a_zone_that_is_not_known(name: str) -> None:
    """None, and no error; the daemon takes UTC and says so."""
    assert zone_of(name) is None
