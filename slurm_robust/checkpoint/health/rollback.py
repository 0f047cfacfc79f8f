"""Going back from a loss that went bad: to which checkpoint, without which batches. `rollbacks` is the record of it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health import health_log, rollback_log
from slurm_robust.checkpoint.health.loss_health import HEALTHY, UNKNOWN, Point, Spell, Trend, observe
from slurm_robust.checkpoint.store.find import Entry, entries


class RollbackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A training whose loss is bad.

    Attributes:
        why: What is bad.
        to: The checkpoint to go back to; None where none is known to be good.
        before: How often it went back to that one, or an older one, already.
        first_batch: Of those to leave out; `last_batch` is one of them, too.
    """

    why: str
    to: Entry | None = None
    before: int = 0
    first_batch: int = 0
    last_batch: int = 0


def due(directory: str | Path, *, told: str = "", step: int = -1) -> RollbackPlan | None:
    """Whether the loss of the training in `directory` is bad by what it told last, and what follows; None: it is not.

    Healthy checkpoints come first; where there is none, one that nothing is known of and that is well before the spell.

    Args:
        directory: The folder of checkpoints.
        told: The program's own last words about a loss that is not finite; they count like a step that told it.
        step: The last step that it came to.

    Raises:
        CheckpointError: the folder, or what was written down of earlier times, cannot be read.
    """
    record, _ = health_log.read(directory)
    if record is None:
        return None
    trend, limits = record.trend, record.limits
    if told:
        # Of a spell that was told already, or of the step that nobody could tell any more.
        at = max(step, trend.seen_step + (_open_spell(trend) is None))
        if at > trend.seen_step:
            observe(trend, Point(at, math.nan), limits, now_s=time.time())
    spell = _open_spell(trend)
    if spell is None:
        return None
    why = told or spell.why
    gone = rollback_log.read(directory)
    if gone and trend.told_at_s < gone[-1].at_s:  # nothing was told since it went back for that
        return None
    to = _best(entries(directory), record, spell)
    if to is None:
        return RollbackPlan(why=why)
    skipped = rollback_log.skipped(gone)
    # A batch shows in the loss of the step after it, too.
    first = max(spell.first_step - 1, to.step + 1)
    return RollbackPlan(
        why=why,
        to=to,
        before=sum(one.to_step >= to.step for one in gone),
        first_batch=skipped.batch(first),
        last_batch=skipped.batch(spell.last_step),
    )


def _open_spell(trend: Trend) -> Spell | None:
    """The one that the last step told is of."""
    last = trend.spells[-1] if trend.spells else None
    return last if last is not None and last.last_step == trend.seen_step else None


def _best(there: list[Entry], record: health_log.HealthRecord, spell: Spell) -> Entry | None:
    good = [entry for entry in there if entry.sealed and not entry.problem]
    states = [(entry, record.of(entry)[0]) for entry in good]
    for wanted in (HEALTHY, UNKNOWN):
        for entry, state in states:
            if state == wanted and entry.step + record.limits.settle_steps < spell.first_step:
                return entry
    return None


def go_back(directory: str | Path, found: RollbackPlan) -> str:
    """Have every later attempt start from `found.to` or what is saved after it from now on; a sentence about it.

    To be called once nobody writes any more.

    Raises:
        CheckpointError: it cannot be written down: nothing has changed.
    """
    if found.to is None:
        raise CheckpointError(f"{directory}: no checkpoint is known to be from before {found.why}")
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
