"""Compares counters that only grow (errors, flaps, corrected bits): by how much since the last run, and how fast.

A count alone means nothing: a port may have made a thousand errors when its cable was plugged in. So a check keeps what
it read (`remember`), and judges the difference. Pure; time is the kernel's since boot, which no clock step changes, and
a new boot starts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HOUR_S = 3600.0


@dataclass(frozen=True)
class Growth:
    """The growth of one counter.

    Attributes:
        delta: The growth since the earlier run.
        window_s: How long ago the earlier run was, always above zero.
    """

    delta: int
    window_s: float

    @property
    def per_hour(self) -> float:
        """The growth as a rate. In a short window one event is a high rate: judge `delta` too."""
        return self.delta * HOUR_S / self.window_s


def uptime_s() -> float:
    """Return the seconds since boot, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keep(counts: Mapping[str, int], boot_id: str, at_s: float) -> dict[str, Any]:
    """Return what a check remembers of this run; plain JSON."""
    return {"boot_id": boot_id, "at_s": at_s, "counts": dict(counts)}


def growth(before: Mapping[str, Any], counts: Mapping[str, int], boot_id: str, at_s: float) -> dict[str, Growth]:
    """Return how each counter grew since the kept run.

    `before` is from `keep` in an earlier run; anything else, also from another boot, gives nothing. `at_s` is when
    `counts` were read, in seconds since boot.

    Returns:
        Only counters that both runs have and that did not go backwards: a counter that did was reset meanwhile.
    """
    counts_before, then_s = before.get("counts"), before.get("at_s")
    if (
        before.get("boot_id") != boot_id
        or not isinstance(counts_before, Mapping)
        or not isinstance(then_s, (int, float))
    ):
        return {}
    window_s = at_s - then_s
    if window_s <= 0:
        return {}
    found = {}
    for name, count in counts.items():
        old = counts_before.get(name)
        if isinstance(old, int) and not isinstance(old, bool) and 0 <= old <= count:
            found[name] = Growth(count - old, window_s)
    return found


def grown(facts: Mapping[str, Any], counts: Mapping[str, int] | None = None) -> dict[str, Growth]:
    """Return `growth` of a probe's facts (with those of `check_state.since`), by default of their `counts`."""
    return growth(facts["kept"], facts["counts"] if counts is None else counts, facts["boot_id"], facts["at_s"])


def kept(facts: Mapping[str, Any], counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return `keep` of a probe's facts, as in `grown`."""
    return keep(facts["counts"] if counts is None else counts, facts["boot_id"], facts["at_s"])


def remember(facts: dict[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the `counts`: the `remember` of a check that compares its `counts` with those of its last run."""
    return kept(facts)


def remember_of(
    counts_of: Callable[[dict[str, Any]], Mapping[str, int]],
) -> Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any] | None]:
    """Return the `remember` of a check that makes its counts of its facts; without counts, the old ones stay."""
    return lambda facts, _: kept(facts, counts) if (counts := counts_of(facts)) else None


def hold(before: Mapping[str, Any], now: dict[str, Any], window_s: float) -> dict[str, Any]:
    """Return what to keep so that slow growth adds up: the older run while younger than `window_s`, else this one.

    A counter that went backwards or is new starts all counters anew.
    """
    found = growth(before, now["counts"], now["boot_id"], now["at_s"])
    if len(found) < len(now["counts"]) or not found or now["at_s"] - before["at_s"] >= window_s:
        return now
    return dict(before)
