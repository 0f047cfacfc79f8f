"""Keeps the losses that ranks report, as the training's health record, which is judged when an attempt ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log, rollback
from slurm_robust.checkpoint.health.health_log import HealthLog
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_WRITER = "srobust run"
_PATIENCE_S = 10.0
_LINE_CHARS = 160
_BAD_LOSS = re.compile(
    r"\bloss\b\W{0,4}(?:(?:is|was|became|of|has become)\b\W{0,3})?(?:nan|[+-]?inf(?:inity)?|not finite|non-?finite)\b|"
    r"\bnan\b.{0,40}\bloss\b|non-?finite loss|FloatingPointError|returned nan values",
    re.IGNORECASE,
)


class Losses:
    """The health of one supervised training, across its attempts.

    If the program writes the record itself, nothing is written here: the program sees every step, we only see some.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._log: HealthLog | None = None
        self._taken: tuple[str, int] | None = None
        self._work: asyncio.Task[None] | None = None
        self._theirs = not session.checkpoint_dir or not session.acting
        """The record is not ours to write."""
        self._found: rollback.RollbackPlan | None = None
        self.had_finite = False
        """An earlier attempt reported finite losses."""
        self.lost = ""
        """Why the loss of this attempt stays bad, as `LossWatch` says it; empty if the loss is fine."""

    def take(self, attempt: AttemptState) -> None:
        """Take the loss that was reported last; the file is read and written in a thread."""
        found = None if self._theirs else reported(attempt.fleet)
        if found is None or (self._work is not None and not self._work.done()):
            return
        step, loss, grad_norm = found.step, found.loss, found.grad_norm
        if self._log is None:
            self._work = asyncio.create_task(self._open())
            return
        if not found.telling or self._taken == (attempt.name, step):
            return
        self._taken = attempt.name, step
        self._log.take(step, loss=loss, grad_norm=grad_norm)
        if self._log.due:
            self._work = asyncio.create_task(self._write(self._log))

    async def _open(self) -> None:
        def opened() -> HealthLog | None:
            known, _ = health_log.read(self._session.checkpoint_dir)
            self.had_finite = known is not None and bool(known.trend.losses)
            if known is not None and known.writer != _WRITER:
                return None
            return HealthLog(self._session.checkpoint_dir, writer=_WRITER)

        self._log = await asyncio.to_thread(opened)
        self._theirs = self._log is None

    async def _write(self, log: HealthLog) -> None:
        def written() -> bool:
            known, _ = health_log.read(self._session.checkpoint_dir)
            return (known is None or known.writer == _WRITER) and (log.write() or True)

        self._theirs = not await asyncio.to_thread(written)

    async def bad(self, attempt: AttemptState) -> BadLoss | None:
        """Return what is wrong with the last reported loss, also by the ranks' last lines; None if it is fine.

        A file system that hangs, or a fault of ours, must not delay a recovery: then the loss is not known.
        """
        self._found = None
        if not self._session.checkpoint_dir:
            return None
        try:
            return await asyncio.wait_for(self._bad(attempt), _PATIENCE_S)
        except Exception as error:  # noqa: BLE001 (as above)
            why = f"no answer in {_PATIENCE_S:g} s" if isinstance(error, asyncio.TimeoutError) else str(error)
            self._session.folder.log_event("note", f"whether the loss is healthy is not known: {why}")
            return None

    async def _bad(self, attempt: AttemptState) -> BadLoss | None:
        session = self._session
        if self._work is not None:
            await asyncio.shield(self._work)
        if self._log is not None and not self._theirs:
            await self._write(self._log)
        exits = attempt.exits.values()
        said = next((line for e in exits if (line := bad_loss_line((*e.last_lines, *e.shared_lines)))), "")
        line = said or self.lost
        found = await asyncio.to_thread(rollback.due, session.checkpoint_dir, line=line, step=attempt.step)
        self._found = found
        if found is None:
            return None
        healthy = found.to.step if found.to is not None else -1
        return BadLoss(found.why, healthy, found.before, session.config.checkpoint.rollbacks)

    async def go_back(self) -> tuple[str, int | None]:
        """Have the next attempts start from before the bad loss that `bad` found.

        Returns:
            A sentence about it, and the step that training goes back to; None if it does not.
        """
        found = self._found
        assert found is not None
        try:
            text = await asyncio.to_thread(rollback.go_back, self._session.checkpoint_dir, found)
        except CheckpointError as error:
            return f"training does not go back: {error}", None
        return text, found.to.step if found.to is not None else None


class ReportedLoss(NamedTuple):
    """The last report of a loss by a rank.

    Attributes:
        call: The call that gave the loss, which may be older than the step.
        telling: The rank's loss has been finite before. Otherwise it may not be a loss: of a pipeline's ranks, only
            ranks of the last stage have one.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    call: int
    telling: bool = True


def reported(fleet: Fleet) -> ReportedLoss | None:
    """Return the loss of the first rank that has reported a finite loss; else of the first that reports any."""
    ranks = (fleet.ranks[number] for number in sorted(fleet.ranks))
    told = [info for info in ranks if info.progress is not None and info.loss is not None]
    info = next((info for info in told if info.had_finite_loss), told[0] if told else None)
    if info is None or info.progress is None:
        return None
    loss, grad_norm = _number(info.loss), _number(info.grad_norm)
    return ReportedLoss(info.progress.step, loss, grad_norm, info.loss_call, info.had_finite_loss)


def _number(value: float | str | None) -> float | None:
    """Return the number; NaN and infinity arrive as text."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def bad_loss_line(lines: Sequence[str]) -> str:
    """Return the last line in which a program says that its loss is not finite, shortened; empty if none does."""
    return next((line.strip()[:_LINE_CHARS] for line in reversed(lines) if _BAD_LOSS.search(line)), "")
