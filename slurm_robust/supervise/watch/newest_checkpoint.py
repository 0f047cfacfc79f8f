"""Looks now and then for the newest verified checkpoint; a storage that hangs does not stop anything."""

from __future__ import annotations

import asyncio

from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.launch.resume_points import look_up
from slurm_robust.supervise.session import Session

_COST_SHARE = 10.0
"""A look at the checkpoints is followed by a pause this many times as long."""
_LOOK_S = 0.1
"""A search for checkpoints is waited for this long; a longer one goes on beside the supervision."""


class NewestCheckpoint:
    """Watches for a verified checkpoint that is newer than the newest one at the first look."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: int | None = None
        self._look: asyncio.Task[tuple[ResumePoint, float]] | None = None
        self._next_look_s = 0.0

    @property
    def had_one(self) -> bool:
        """Whether there was a verified checkpoint at the first look; False while it is not known."""
        return self._before is not None and self._before >= 0

    async def newer(self) -> int:
        """Return the step of a newer checkpoint; -1 while there is none, or it is not known."""
        step = await self._newest_step(self._session.clock.monotonic_s())
        if step is not None and self._before is None:
            self._before = step
        return step if step is not None and self._before is not None and step > self._before else -1

    async def _newest_step(self, now_s: float) -> int | None:
        """Return the step of the newest verified checkpoint, -1 for none; None while it is not known."""
        if self._look is None and now_s >= self._next_look_s:
            self._look = asyncio.create_task(asyncio.to_thread(self._look_up))
        if self._look is None:
            return None
        # A storage that hangs must not stop the supervision.
        await asyncio.wait({self._look}, timeout=_LOOK_S)
        if not self._look.done():
            return None
        (found, took_s), self._look = self._look.result(), None
        self._next_look_s = now_s + took_s * (1 + _COST_SHARE)
        return found.step if found.searched else None

    def _look_up(self) -> tuple[ResumePoint, float]:
        """Return the newest verified checkpoint, and how long the search took."""
        session = self._session
        began_s = session.clock.monotonic_s()
        return look_up(session.checkpoint_dir), session.clock.monotonic_s() - began_s
