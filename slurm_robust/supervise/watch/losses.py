"""What the ranks tell of their loss: kept as the training's health, and looked at when an attempt ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log, rollback
from slurm_robust.checkpoint.health.health_log import HealthLog
from slurm_robust.localize.exit_causes import bad_loss_line
from slurm_robust.policy.job.bad_loss import BadLoss

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor
    from slurm_robust.supervise.watch.fleet import Fleet

_WRITER = "srobust run"
_PATIENCE_S = 10.0


class Losses:
    """The health of one supervised training, across its attempts.

    A program that writes the record itself is left alone with it: it sees every step, we see some.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._log: HealthLog | None = None
        self._taken: tuple[str, int] | None = None
        self._work: asyncio.Task[None] | None = None
        self._theirs = not supervisor.checkpoint_dir or not supervisor.acting
        self._found: rollback.RollbackPlan | None = None

    def take(self) -> None:
        """Take in what was told last; the file is read and written in a thread."""
        told = None if self._theirs else _told(self._s.present.fleet)
        if told is None or (self._work is not None and not self._work.done()):
            return
        step, loss, grad_norm = told
        if self._log is None:
            self._work = asyncio.create_task(self._open())
            return
        if self._taken == (self._s.present.fleet.attempt, step):
            return
        self._taken = self._s.present.fleet.attempt, step
        self._log.take(step, loss=loss, grad_norm=grad_norm)
        if self._log.due:
            self._work = asyncio.create_task(self._write(self._log))

    async def _open(self) -> None:
        def opened() -> HealthLog | None:
            known, _ = health_log.read(self._s.checkpoint_dir)
            if known is not None and known.writer != _WRITER:
                return None
            return HealthLog(self._s.checkpoint_dir, writer=_WRITER)

        self._log = await asyncio.to_thread(opened)
        self._theirs = self._log is None

    async def _write(self, log: HealthLog) -> None:
        def written() -> bool:
            known, _ = health_log.read(self._s.checkpoint_dir)
            return (known is None or known.writer == _WRITER) and (log.write() or True)

        self._theirs = not await asyncio.to_thread(written)

    async def bad(self) -> BadLoss | None:
        """What is wrong with the loss as it was told last, in the ranks' last words too; None where nothing is.

        A file system that hangs, and a fault of ours, must not keep a recovery: then nothing is known of the loss.
        """
        self._found = None
        if not self._s.checkpoint_dir:
            return None
        try:
            return await asyncio.wait_for(self._bad(), _PATIENCE_S)
        except Exception as error:  # noqa: BLE001 (as above)
            why = f"no answer in {_PATIENCE_S:g} s" if isinstance(error, asyncio.TimeoutError) else str(error)
            self._s.folder.tell("note", f"nobody can say whether the loss is healthy: {why}")
            return None

    async def _bad(self) -> BadLoss | None:
        s = self._s
        if self._work is not None:
            await asyncio.shield(self._work)
        if self._log is not None and not self._theirs:
            await self._write(self._log)
        ends = s.present.scene.exits.values()
        told = next((line for e in ends if (line := bad_loss_line((*e.last_lines, *e.shared_lines)))), "")
        found = self._found = await asyncio.to_thread(rollback.due, s.checkpoint_dir, line=told, step=s.present.step)
        if found is None:
            return None
        healthy = found.to.step if found.to is not None else -1
        return BadLoss(found.why, healthy, found.before, s.config.checkpoint.rollbacks)

    async def go_back(self) -> tuple[str, int | None]:
        """Have the next attempts start from before what `bad` found.

        Returns:
            A sentence about it, and the step that training goes back to; None where it does not.
        """
        found = self._found
        assert found is not None
        try:
            text = await asyncio.to_thread(rollback.go_back, self._s.checkpoint_dir, found)
        except CheckpointError as error:
            return f"training does not go back: {error}", None
        return text, found.to.step if found.to is not None else None


def _told(fleet: Fleet) -> tuple[int, float | None, float | None] | None:
    """Step, loss and gradient norm of the first rank that tells a loss."""
    for number in sorted(fleet.ranks):
        info = fleet.ranks[number]
        if info.progress is not None and info.loss is not None:
            return info.progress.step, _number(info.loss), _number(info.grad_norm)
    return None


def _number(told: float | str | None) -> float | None:
    """NaN and infinity come as a text."""
    try:
        return None if told is None else float(told)
    except ValueError:
        return None
