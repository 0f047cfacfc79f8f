"""Computes how long each stage of an incident took, from the incident's stamps alone. Pure.

A stage has the name of the stamp that ends it, and begins with the latest known stamp before it. A stamp that lies
before the one that it should follow gives no time: nothing is smoothed.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.core.model import TIME_KEYS

STAGES = (*TIME_KEYS[: TIME_KEYS.index("decided") + 1], "accepted", *TIME_KEYS[TIME_KEYS.index("decided") + 1 :])
"""The stamps in their order; `accepted` is the daemon's own decision."""
BEGINS = ("fault", "suspected", "decided", "accepted")
"""Stamps from which the time to recover is counted: the first one that is known counts."""


def stage_seconds(times: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each stage whose two ends are known and in order."""
    known = [(name, times[name]) for name in STAGES if times.get(name, 0.0) > 0.0]
    found, last_s = dict[str, float](), 0.0
    for name, at_s in known:
        if last_s and at_s >= last_s:
            found[name] = at_s - last_s
        last_s = max(last_s, at_s)
    return found


def back_s(times: Mapping[str, float]) -> float | None:
    """Return seconds from the fault (or the suspicion) to the first step after it; None if either is not known."""
    begin_s = next((times[name] for name in BEGINS if times.get(name, 0.0) > 0.0), 0.0)
    end_s = times.get("first_new_step", 0.0)
    return end_s - begin_s if 0.0 < begin_s <= end_s else None
