"""A training whose loss went bad: does the next attempt go back to a checkpoint from before it? Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadLoss:
    """The loss or gradient norm that training reported last was bad.

    Attributes:
        why: What was bad.
        healthy_step: Step of the checkpoint from before it, -1 if none is known.
        before: How often training has already gone back to that step, or an earlier one.
        limit: How often it may, `checkpoint.rollbacks`.
    """

    why: str
    healthy_step: int = -1
    before: int = 0
    limit: int = 2

    @property
    def why_not(self) -> str:
        """Why training does not go back; empty if it does."""
        if not self.limit:
            return "checkpoint.rollbacks is 0"
        if self.healthy_step < 0:
            return "no checkpoint is known to be from before it"
        if self.spent:
            return f"it went back to step {self.healthy_step} or before {self.before} times (limit {self.limit})"
        return ""

    @property
    def spent(self) -> bool:
        """Training went back as often as it may, and the loss is bad again."""
        return self.before >= self.limit > 0 and self.healthy_step >= 0

    @property
    def back(self) -> str:
        """What going back means, as a sentence."""
        return f"{self.why}: the next attempt goes back to step {self.healthy_step}, without the batches of that time"
