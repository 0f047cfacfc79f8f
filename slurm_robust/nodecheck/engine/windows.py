"""Counters over a window of several looks: looks come every few seconds or hours apart, the judgement must not.

A few samples are kept, and the oldest that the window holds is what the newest is compared with. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.engine.counters import HOUR_S, Growth

_SAMPLES = 6


def samples_of(kept: Mapping[str, Any], boot_id: str) -> list[dict[str, Any]]:
    """The samples of this boot in what was remembered, oldest first; whatever else is in there is passed over."""
    found = kept.get("samples")
    if not isinstance(found, list):
        return []
    return [
        sample
        for sample in found
        if isinstance(sample, dict) and sample.get("boot_id") == boot_id and _number(sample.get("at_s"))
    ]


def growth(
    kept: Mapping[str, Any], counts: Mapping[str, int], boot_id: str, at_s: float, window_s: float
) -> dict[str, Growth]:
    """How each counter grew since the oldest sample in the window, or since the last look if that is longer ago."""
    samples = [sample for sample in samples_of(kept, boot_id) if sample["at_s"] < at_s]
    inside = [sample for sample in samples if at_s - sample["at_s"] <= window_s] or samples[-1:]
    return {name: grown for name, now in counts.items() if (grown := _grown(inside, name, now, at_s)) is not None}


def _grown(samples: Sequence[Mapping[str, Any]], name: str, now: int, at_s: float) -> Growth | None:
    """Growth since the oldest sample, or since the last reset where the counter went backwards on the way."""
    base_s, base, above = None, now, now
    for sample in reversed(samples):
        counts = sample.get("counts")
        old = counts.get(name) if isinstance(counts, Mapping) else None
        if not isinstance(old, int) or isinstance(old, bool) or not 0 <= old <= above:
            break
        base_s, base, above = float(sample["at_s"]), old, old
    return None if base_s is None else Growth(now - base, at_s - base_s)


def keep(
    kept: Mapping[str, Any], counts: Mapping[str, int], boot_id: str, at_s: float, window_s: float
) -> dict[str, Any]:
    """What to remember: this look, and of those in the window one every sixth of it; of the last hour, every sixth."""
    samples: list[dict[str, Any]] = []
    for sample in samples_of(kept, boot_id):
        age_s = at_s - sample["at_s"]
        spacing_s = (window_s if age_s > HOUR_S else min(window_s, HOUR_S)) / _SAMPLES
        if 0 < age_s <= window_s and (not samples or sample["at_s"] - samples[-1]["at_s"] >= spacing_s):
            samples.append(sample)
    return {"samples": [*samples, counters.keep(counts, boot_id, at_s)]}


def per_hour(grown: Growth) -> float:
    """Events an hour; a look after a shorter time counts as one after an hour, so that one event is one."""
    return grown.delta * HOUR_S / max(grown.window_s, HOUR_S)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
