"""Compares counters over a window of several runs, which may be seconds or hours apart.

A few samples are kept; the newest is compared with the oldest in the window. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.engine.counters import HOUR_S, Growth

_SAMPLES = 6


def samples_of(before: Mapping[str, Any], boot_id: str) -> list[dict[str, Any]]:
    """Return the samples of this boot in the remembered values, oldest first; other values are ignored."""
    found = before.get("samples")
    if not isinstance(found, list):
        return []
    return [
        sample
        for sample in found
        if isinstance(sample, dict) and sample.get("boot_id") == boot_id and _number(sample.get("at_s"))
    ]


def growth(
    before: Mapping[str, Any], counts: Mapping[str, int], boot_id: str, at_s: float, window_s: float
) -> dict[str, Growth]:
    """Return how each counter grew since the oldest sample in the window, or since the last run if that is older."""
    samples = [sample for sample in samples_of(before, boot_id) if sample["at_s"] < at_s]
    inside = [sample for sample in samples if at_s - sample["at_s"] <= window_s] or samples[-1:]
    return {
        name: found for name, now in counts.items() if (found := _since_oldest(inside, name, now, at_s)) is not None
    }


def _since_oldest(samples: Sequence[Mapping[str, Any]], name: str, now: int, at_s: float) -> Growth | None:
    """Return the growth since the oldest sample, or since the last reset if the counter went backwards on the way."""
    base_s, base, above = None, now, now
    for sample in reversed(samples):
        counts = sample.get("counts")
        old = counts.get(name) if isinstance(counts, Mapping) else None
        if not isinstance(old, int) or isinstance(old, bool) or not 0 <= old <= above:
            break
        base_s, base, above = float(sample["at_s"]), old, old
    return None if base_s is None else Growth(now - base, at_s - base_s)


def keep(
    before: Mapping[str, Any], counts: Mapping[str, int], boot_id: str, at_s: float, window_s: float
) -> dict[str, Any]:
    """Return what to remember: this run, and samples at every sixth of the window, and of the last hour."""
    samples: list[dict[str, Any]] = []
    for sample in samples_of(before, boot_id):
        age_s = at_s - sample["at_s"]
        spacing_s = (window_s if age_s > HOUR_S else min(window_s, HOUR_S)) / _SAMPLES
        if 0 < age_s <= window_s and (not samples or sample["at_s"] - samples[-1]["at_s"] >= spacing_s):
            samples.append(sample)
    return {"samples": [*samples, counters.keep(counts, boot_id, at_s)]}


def grown(facts: Mapping[str, Any], window_s: float) -> dict[str, Growth]:
    """Return `growth` of a probe's `counts`, as in `counters.grown`."""
    return growth(facts["kept"], facts["counts"], facts["boot_id"], facts["at_s"], window_s)


def kept(facts: Mapping[str, Any], window_s: float) -> dict[str, Any]:
    """Return `keep` of a probe's `counts`, as in `counters.grown`."""
    return keep(facts["kept"], facts["counts"], facts["boot_id"], facts["at_s"], window_s)


def remember_for(window_s: float) -> Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]]:
    """Return the `remember` of a check that compares its `counts` with those of all runs in the window."""
    return lambda facts, _: kept(facts, window_s)


def per_hour(growth_: Growth) -> float:
    """Events an hour; a shorter time counts as an hour, so that one event is one."""
    return growth_.delta * HOUR_S / max(growth_.window_s, HOUR_S)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
