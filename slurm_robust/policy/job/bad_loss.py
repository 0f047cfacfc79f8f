"""A training whose loss went bad: does the next attempt go back to a checkpoint from before it? Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadLoss:
    """What the training told last of its loss, or its gradient norm, was bad.

    Attributes:
        why: What was.
        healthy_step: Of the checkpoint from before it, -1 where none is known to be.
        before: How often training went back there, or further, already.
        limit: How often it may, `checkpoint.rollbacks`.
    """

    why: str
    healthy_step: int = -1
    before: int = 0
    limit: int = 2

    @property
    def why_not(self) -> str:
        """Why training does not go back; empty where it does."""
        if not self.limit:
            return "checkpoint.rollbacks is 0"
        if self.healthy_step < 0:
            return "no checkpoint is known to be from before it"
        if self.spent:
            return f"it went back to step {self.healthy_step} or before {self.before} times (limit {self.limit})"
        return ""

    @property
    def spent(self) -> bool:
        """It went back as often as it may, and is bad again."""
        return self.before >= self.limit > 0 and self.healthy_step >= 0

    @property
    def back(self) -> str:
        """What going back is, in words."""
        return f"{self.why}: the next attempt goes back to step {self.healthy_step}, without the batches of that time"
