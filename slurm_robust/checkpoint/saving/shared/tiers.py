"""Decides which tiers a save goes to: memory, the node's own disk, the shared file system, each at its own interval."""

from __future__ import annotations

from collections.abc import Mapping

MEMORY, LOCAL, SHARED = "memory", "local", "shared"
TIERS = (MEMORY, LOCAL, SHARED)


class TierSchedule:
    """Intervals in steps. All ranks that see the same steps decide alike.

    `every` has, for a tier, the steps between two saves to it; 1, every save, for tiers that are not named. `local` is
    whether there is a tier on the node's own disk.

    Raises:
        ValueError: an unknown tier, an interval below 1, or one for a missing tier.
    """

    def __init__(self, every: Mapping[str, int] | None, *, local: bool) -> None:
        intervals = dict(every or {})
        unknown = sorted(set(intervals) - set(TIERS))
        if unknown:
            raise ValueError(f"every has {', '.join(unknown)}: there are {', '.join(TIERS)}")
        if any(steps < 1 for steps in intervals.values()):
            raise ValueError(f"every is {intervals}: an interval is 1 step or more")
        if LOCAL in intervals and not local:
            raise ValueError("every has local, and no local folder is given: TierOptions(local=...)")
        self._every = {tier: intervals.get(tier, 1) for tier in TIERS if tier != LOCAL or local}
        self._last = dict.fromkeys(self._every, 0)

    def due(self, step: int) -> tuple[str, ...]:
        """Return the tiers that a save of this step goes to: all whose interval has passed since the last save to them.

        A save to a disk goes through memory, so every result that is not empty contains `memory`.
        """
        found = {
            tier for tier, steps in self._every.items() if steps == 1 or step // steps != self._last[tier] // steps
        }
        return tuple(tier for tier in TIERS if tier in found or (found and tier == MEMORY))

    @property
    def all(self) -> tuple[str, ...]:
        """Return the names of all tiers."""
        return tuple(self._every)

    def saved(self, step: int, tiers: tuple[str, ...]) -> None:
        """Record that a step was saved there, or loaded."""
        for tier in tiers:
            self._last[tier] = step
