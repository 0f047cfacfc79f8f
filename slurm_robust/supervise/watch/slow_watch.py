"""Decides when a slow training is ended to test its nodes: right after it has saved, if the site wants it."""

from __future__ import annotations

from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.newest_checkpoint import NewestCheckpoint


class SlowWatch:
    """Waits for the next verified checkpoint of a slow attempt; once in each attempt."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checkpoint: NewestCheckpoint | None = None
        self._over = not session.config.ladder.test_slow or not session.checkpoint_dir

    async def poll(self, slow: str) -> str:
        """Return why the nodes are to be tested now, as a sentence; empty while they are not.

        `slow` says why the training is slow, with no node known to be the slow one; it is empty if it is not slow.
        """
        if self._over or not slow:
            self._checkpoint = None
            return ""
        if self._checkpoint is None:
            self._checkpoint = NewestCheckpoint(self._session)
            text = f"slow: {slow}; the nodes are tested after the next verified checkpoint (ladder.test_slow)"
            self._session.folder.log_event("note", text)
        step = await self._checkpoint.newer()
        if step < 0:
            return ""
        self._over = True
        return f"the training is slow: {slow}; the checkpoint of step {step} is verified"
