"""Tells apart the `srobust run` commands of one batch script: the place of each names its training."""

from __future__ import annotations

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.incident_folder import IncidentFolder

LINEAGE_FILE = "lineage.json"
"""The file with what the job's folder remembers of each of its trainings (`lineage.lineage_store`)."""
_CALLS_FILE = "calls"
_STEPS_FILE = "steps"


def run_key(number: int) -> str:
    """Return the key of the training at this place."""
    return f"run {number}"


def place(folder: IncidentFolder, restart: int, launcher: int) -> int:
    """Return the number of this `srobust run` in this attempt of the job, counted from one.

    Each run adds a line to a file of the job, in one write: runs that begin together get different places, a launcher
    that was killed keeps its place, and a restarted supervisor finds the place of its launcher. On a full disk the runs
    of an attempt may share a place; the tally then bounds them.
    """
    process = procfs.stat(launcher)
    # The line includes the start of the process, since pids are reused.
    mine = f"{restart} {launcher} {process.start_ticks if process is not None else 0}"
    if mine not in _lines(folder):
        folder.append(_CALLS_FILE, f"{mine}\n")
    calls = [line for line in _lines(folder) if line.startswith(f"{restart} ")]
    return calls.index(mine) + 1 if mine in calls else len(calls) + 1


def step_place(folder: IncidentFolder, restart: int, step: int) -> int:
    """Return the number that this step of a batch script has in each attempt of the job.

    A requeue has Slurm number the steps of the script anew, but not the requeue after a node failure: there the
    numbers go on, behind those of the steps and watch steps before. The first step that is seen then is the first one
    of the script.
    """
    mine = f"{restart} {step}"
    if mine not in _lines(folder, _STEPS_FILE):
        folder.append(_STEPS_FILE, f"{mine}\n")
    words = [line.split() for line in (*_lines(folder, _STEPS_FILE), mine)]
    seen = [(int(w[0]), int(w[1])) for w in words if len(w) == 2 and all(map(str.isdecimal, w))]
    first = min(s for r, s in seen if r == restart)
    before = [(r, s) for r, s in seen if r < restart]
    if not before or first <= max(s for _, s in before) + 1:
        return step
    return step - first + min(before)[1]


def _lines(folder: IncidentFolder, name: str = _CALLS_FILE) -> list[str]:
    try:
        return folder.read(name).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
