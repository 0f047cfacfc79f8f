"""Values as pixels, and ticks at which a reader would have put them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_robust.report.pages.formats import day, share, shown, time_of_day
from slurm_robust.report.pages.view import Unit

_TIME_STEPS_S = (60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200, 7257600)
_DURATIONS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200)
_DAYS_S = (86400, 172800, 432000, 864000, 1728000, 4320000, 8640000)
_WEEK_S = 604800
_MONDAY_S = 345600
"""1970-01-05: weeks begin there, and not with the epoch's Thursday."""


@dataclass(frozen=True)
class AxisScale:
    """Values from `low` to `high` as pixels from `first_px` to `last_px`; what lies outside is put at the edge."""

    low: float
    high: float
    first_px: float
    last_px: float
    log: bool = False

    def px(self, value: float) -> float:
        """Return the place at which a value is drawn."""
        if math.isnan(value):
            return self.first_px
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        part = (at - low) / (high - low) if high > low else 0.5
        return self.first_px + part * (self.last_px - self.first_px)


@dataclass(frozen=True)
class Tick:
    """A line of the grid with its label."""

    value: float
    label: str


def step_for(span: float, most: int) -> float:
    """Return the smallest of 1, 2, 5, 10, … (times a power of ten) by which at most so many ticks fit into a span."""
    if span <= 0 or not math.isfinite(span):
        return 1.0
    rough = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * 0.999999)


def ticks(low: float, high: float, unit: Unit, most: int = 5) -> list[Tick]:
    """Round values from `low` to `high`, labelled."""
    if unit is Unit.SECONDS:
        span = high - low
        step = next((s for s in (*_DURATIONS_S, *_DAYS_S) if span / s <= most), step_for(span, most))
    else:
        step = step_for(high - low, most)
        step = max(step, 1.0) if unit is Unit.COUNT else step
    first = math.ceil(low / step - 1e-9)
    values = [n * step for n in range(first, first + most + 3) if n * step <= high + step * 1e-9]
    return [Tick(value, tick_label(value, unit)) for value in values]


def tick_label(value: float, unit: Unit) -> str:
    """Return the label of a tick, whose value is round."""
    if unit is Unit.SHARE:
        return share(round(value, 6)).replace(".0 %", " %")
    return "0" if value == 0 else shown(round(value, 6), unit).replace(".0 s", " s").replace(".00", "")


def log_ticks(low: float, high: float, unit: Unit) -> list[Tick]:
    """Return powers of ten, with 3 times each power between them if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 3) if last - first <= 3 else (1,)
    values = (f * 10.0**power for power in range(first, last + 1) for f in factors)
    return [Tick(value, tick_label(value, unit)) for value in values if low * 0.999 <= value <= high * 1.001]


def log_bounds(values: list[float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis that holds all values with some room."""
    least, most = min(values), max(values)
    return 10 ** (math.floor(math.log10(least) * 2 - 0.2) / 2), 10 ** (math.ceil(math.log10(most) * 2 + 0.2) / 2)


def time_ticks(from_s: float, to_s: float, most: int) -> list[Tick]:
    """Round UTC times: days by their date, hours by the clock, midnight by its date."""
    span = to_s - from_s
    if not 0 < span < 1e11:
        return [Tick(from_s, day(from_s))]
    step = next((s for s in _TIME_STEPS_S if span / s <= most), math.ceil(span / most / _WEEK_S) * _WEEK_S)
    begin = _MONDAY_S if step % _WEEK_S == 0 else 0
    first = math.ceil((from_s - begin) / step)
    values = (begin + n * step for n in range(first, first + most + 2))
    return [Tick(at, time_of_day(at) if at % 86400 else day(at)) for at in values if from_s <= at <= to_s]
