"""Which saves go where: memory, the node's own disk, the shared file system, each at its own interval."""

from __future__ import annotations

from collections.abc import Mapping

MEMORY, LOCAL, SHARED = "memory", "local", "shared"
TIERS = (MEMORY, LOCAL, SHARED)


class TierSchedule:
    """Intervals in steps. Decides; all ranks that see the same steps decide alike.

    Args:
        every: Tier → so many steps between two saves to it; 1, every save, for those that are not named.
        local: Whether there is a tier on the node's own disk.

    Raises:
        ValueError: an unknown tier, an interval below 1, or one for a tier that is not there.
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
        """The tiers that a save of this step goes to: all whose interval has gone by, wherever the last one was.

        What goes to a disk goes through memory, so that `memory` stands in every answer that is not empty.
        """
        found = {
            tier for tier, steps in self._every.items() if steps == 1 or step // steps != self._last[tier] // steps
        }
        return tuple(tier for tier in TIERS if tier in found or (found and tier == MEMORY))

    @property
    def all(self) -> tuple[str, ...]:
        """Every tier that there is."""
        return tuple(self._every)

    def saved(self, step: int, tiers: tuple[str, ...]) -> None:
        """Step was saved there, or loaded from somewhere."""
        for tier in tiers:
            self._last[tier] = step
