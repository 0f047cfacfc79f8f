"""Rolls back from a bad loss: to which checkpoint, skipping which batches. `rollback_log` records it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log
from slurm_robust.checkpoint.health.loss_health import HEALTHY, UNKNOWN, Point, Spell, Trend, observe
from slurm_robust.checkpoint.store.find import Entry, entries


class RollbackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for a training whose loss is bad.

    Attributes:
        why: What is bad about the loss.
        to: The checkpoint to go back to; None if no checkpoint is known to be good.
        before: The number of earlier rollbacks to it, or to an older one.
        first_batch: The first batch to skip; `last_batch` is the last.
    """

    why: str
    to: Entry | None = None
    before: int = 0
    first_batch: int = 0
    last_batch: int = 0


def due(directory: str | Path, *, line: str = "", step: int = -1) -> RollbackPlan | None:
    """Return the rollback that the last recorded loss in `directory` calls for; None if the loss is not bad.

    Healthy checkpoints are preferred, then an unknown one from well before the spell. If the loss is not finite, the
    newest from before the spell is better than one that was saved in it.

    Args:
        directory: The folder of checkpoints.
        line: The program's own last output about a loss that is not finite; counts like a recorded step.
        step: The last step that it reached.

    Raises:
        CheckpointError: the folder, or its record, cannot be read.
    """
    record, _ = health_log.read(directory)
    if record is None:
        return None
    trend, limits = record.trend, record.limits
    if line:
        # It belongs to a spell that is already recorded, or to the step after the last recorded one.
        at = max(step, trend.seen_step + (_open_spell(trend) is None))
        if at > trend.seen_step:
            observe(trend, Point(at, math.nan), limits, now_s=time.time())
    spell = _open_spell(trend)
    if spell is None:
        return None
    why = line or spell.why
    gone = rollback_log.read(directory)
    if gone and trend.told_at_s < gone[-1].at_s:  # no step was recorded since the rollback for this spell
        return None
    to = _best(entries(directory), record, spell)
    if to is None:
        return RollbackPlan(why=why)
    skipped = rollback_log.skipped(gone)
    # A batch affects the loss of the next step, too.
    first = max(spell.first_step - 1, to.step + 1)
    return RollbackPlan(
        why=why,
        to=to,
        before=sum(one.to_step >= to.step for one in gone),
        first_batch=skipped.batch(first),
        last_batch=skipped.batch(spell.last_step),
    )


def _open_spell(trend: Trend) -> Spell | None:
    """Return the bad spell that the last recorded step belongs to."""
    last = trend.spells[-1] if trend.spells else None
    return last if last is not None and last.last_step == trend.seen_step else None


def _best(there: list[Entry], record: health_log.HealthRecord, spell: Spell) -> Entry | None:
    good = [entry for entry in there if entry.sealed and not entry.problem]
    states = [(entry, record.of(entry)[0]) for entry in good]
    for wanted in (HEALTHY, UNKNOWN):
        for entry, state in states:
            if state == wanted and entry.step + record.limits.settle_steps < spell.first_step:
                return entry
    # Weights that are NaN stay NaN: a save before the spell may carry its cause, a save within it must.
    before = [entry for entry in good if spell.not_finite and entry.step < spell.first_step - 1]
    return max(before, key=lambda entry: entry.step, default=None)


def go_back(directory: str | Path, found: RollbackPlan) -> str:
    """Make every later attempt start from `found.to`, or from a checkpoint saved after this call; a sentence about it.

    Call it once no process writes checkpoints any more.

    Raises:
        CheckpointError: it cannot be recorded: nothing has changed.
    """
    if found.to is None:
        raise CheckpointError(f"{directory}: no good checkpoint from before {found.why} is known")
    rollback_log.add(
        directory,
        rollback_log.Rollback(
            at_s=time.time(),
            to_step=found.to.step,
            why=found.why,
            first_batch=found.first_batch,
            last_batch=found.last_batch,
        ),
    )
    return (
        f"{found.why}: back to step {found.to.step}, "
        f"without batches {found.first_batch} to {found.last_batch} ({rollback_log.SKIP_VARIABLE})"
    )
