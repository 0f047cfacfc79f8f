"""Tells apart the `srobust run` of one batch script: the place of each names its training in the job's folder."""

from __future__ import annotations

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.incident_folder import IncidentFolder

LINEAGE_FILE = "lineage.json"
"""What the job's folder remembers of each of its trainings (`lineage.lineage_store`)."""
_CALLS_FILE = "calls"


def run_key(number: int) -> str:
    """The key of the training at this place."""
    return f"run {number}"


def place(folder: IncidentFolder, restart: int, launcher: int) -> int:
    """The number of this `srobust run` in this attempt of the job, counted from one.

    Each run adds a line to a file of the job, in one write: runs that begin together get different places, a launcher
    that was killed keeps its place, and a restarted supervisor finds the place of its launcher. On a full disk the runs
    of an attempt may share a place; the tally then bounds them.
    """
    process = procfs.stat(launcher)
    # With its start, since pids are reused.
    mine = f"{restart} {launcher} {process.start_ticks if process is not None else 0}"
    if mine not in _lines(folder):
        folder.append(_CALLS_FILE, f"{mine}\n")
    calls = [line for line in _lines(folder) if line.startswith(f"{restart} ")]
    return calls.index(mine) + 1 if mine in calls else len(calls) + 1


def _lines(folder: IncidentFolder) -> list[str]:
    try:
        return folder.read(_CALLS_FILE).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
