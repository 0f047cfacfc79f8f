"""Decides whether the next attempt of a training whose loss went bad goes back to an earlier checkpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadLoss:
    """The loss or gradient norm that training reported last was bad.

    Attributes:
        why: What was bad.
        healthy_step: Step of the last checkpoint from before the bad loss, -1 if none is known.
        before: How often training has already gone back to that step, or an earlier step.
        limit: How often training may go back, `checkpoint.rollbacks`.
    """

    why: str
    healthy_step: int = -1
    before: int = 0
    limit: int = 2

    @property
    def why_not(self) -> str:
        """The reason why training does not go back; empty if it does."""
        if not self.limit:
            return "checkpoint.rollbacks is 0"
        if self.healthy_step < 0:
            return "no checkpoint is known to be from before it"
        if self.spent:
            return f"it went back to step {self.healthy_step} or before {self.before} times (limit {self.limit})"
        return ""

    @property
    def spent(self) -> bool:
        """Whether training went back as often as it may, and the loss is bad again."""
        return self.before >= self.limit > 0 and self.healthy_step >= 0

    @property
    def back(self) -> str:
        """A sentence that says what happens if training goes back."""
        return f"{self.why}: the next attempt goes back to step {self.healthy_step}, without the batches of that time"
