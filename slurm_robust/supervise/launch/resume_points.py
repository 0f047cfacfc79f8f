"""Looks up the checkpoint that an attempt is given, and marks a checkpoint that must not be used again."""

from __future__ import annotations

from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.demotion import demote as mark_demoted
from slurm_robust.checkpoint.store.find import latest
from slurm_robust.supervise.launch.attempt_settings import ResumePoint


def look_up(directory: str) -> ResumePoint:
    """Return the newest verified checkpoint; a folder that cannot be read is a note, not an error."""
    if not directory:
        return ResumePoint()
    try:
        found = latest(directory)
        skipped = str(rollback_log.skipped(rollback_log.read(directory)))
    except CheckpointError as error:
        return ResumePoint(notes=(str(error),))
    notes = tuple(f"{path.name} was passed over: {why}" for path, why in found.passed_over)
    return ResumePoint(found.path, found.step, notes, searched=True, skipped=skipped)


def demote(start: ResumePoint, why: str) -> str:
    """Mark this checkpoint as not to be used any more; return a sentence about it."""
    if start.path is None:
        return ""
    try:
        mark_demoted(start.path, why)
    except (CheckpointError, OSError) as error:
        return f"checkpoint {start.path.name} should be demoted ({why}), but: {error}"
    return f"checkpoint {start.path.name} is demoted: {why}"
