"""Writes numbers and times as people read them. Times are UTC; a number that is not known is a dash."""

from __future__ import annotations

import math
from time import gmtime, strftime

from slurm_robust.core.text import duration
from slurm_robust.report.pages.view import Cell, Unit

UNKNOWN = "–"
_AFTER = {Unit.HOURS: " h", Unit.GPU_HOURS: " GPU h", Unit.NODE_HOURS: " node h"}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEARS_S = (-62_135_596_800, 253_402_300_799)
"""The years 1 to 9999."""


def moment(at_s: float | None, *, year: bool = True, seconds: bool = True) -> str:
    """Return a time as `2026-11-23 14:05:09`, in UTC; a number if calendars do not have it."""
    if at_s is None:
        return UNKNOWN
    if not _YEARS_S[0] <= at_s <= _YEARS_S[1]:
        return f"{at_s:.4g} s"
    return strftime(f"{'%Y-' if year else ''}%m-%d %H:%M{':%S' if seconds else ''}", gmtime(at_s))


def day(at_s: float) -> str:
    """Return a day as `Nov 3`."""
    at = gmtime(min(max(at_s, _YEARS_S[0]), _YEARS_S[1]))
    return f"{MONTHS[at.tm_mon - 1]} {at.tm_mday}"


def time_of_day(at_s: float) -> str:
    """Return a time of day as `14:05`."""
    at = gmtime(min(max(at_s, _YEARS_S[0]), _YEARS_S[1]))
    return f"{at.tm_hour:02}:{at.tm_min:02}"


def offset(offset_s: int) -> str:
    """Return an offset as `UTC+02:00`."""
    sign, minutes = ("-" if offset_s < 0 else "+"), abs(offset_s) // 60
    return f"UTC{sign}{minutes // 60:02}:{minutes % 60:02}"


def share(value: float) -> str:
    """Return a share as `97.3 %`; with more digits near 100 % and 0 %, so that 99.97 % is not shown as 100 %."""
    percent = 100 * value
    if 0 < percent < 0.005:
        return "< 0.01 %"
    if 99.995 <= percent < 100:
        return "> 99.99 %"
    close = min(abs(percent), abs(100 - percent))
    return f"{percent:.{0 if close == 0 else 1 if close >= 0.95 else 2}f} %"


def grouped(value: float) -> str:
    """Return a number as `12,345`, `123.4`, `1.25`."""
    size = abs(value)
    return f"{value:,.{0 if size >= 1000 or value == round(value) else 1 if size >= 10 else 2}f}"


def shown(value: Cell, unit: Unit) -> str:
    """Return a value with its unit."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    if isinstance(value, str):
        return value
    if unit is Unit.SECONDS:
        return duration(value) if value >= 0 else f"−{duration(-value)}"
    if unit is Unit.SHARE:
        return share(value)
    if unit is Unit.AT:
        return moment(value)
    return grouped(value) + _AFTER.get(unit, "")


def in_cell(value: Cell, unit: Unit) -> str:
    """Return a value in a table whose column's title has the unit."""
    whole = shown(value, unit)
    return whole.removesuffix(_AFTER.get(unit, ""))


def count(number: int, one: str, many: str = "") -> str:
    """Return a count as `1 incident`, `12 incidents`, `no incident`."""
    return f"no {one}" if number == 0 else f"{number:,} {one if number == 1 else many or one + 's'}"
