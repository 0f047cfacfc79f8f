"""Keeps the lineage of this run's training in the job's folder and in its claim.

A batch script may hold several `srobust run`, one after the other. The job's Comment is written by the run that wrote
last; each run finds its own lineage in the job's folder, by its place among the runs of this attempt of the job. The
command line could not identify it: ports, addresses and ids in it often differ each time.

The tally counts the launches of the whole job that made no new step, so no script and no loop in it can evade it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from slurm_robust.claim import Claim
from slurm_robust.model import EXIT_STOPPED_FOR_GOOD, Road
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.node_faults import FaultMemory
from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.incident.incident_folder import IncidentFolder
from slurm_robust.supervise.outcome import ExecutePlan
from slurm_robust.supervise.recover.lineage import TALLY_S, Lineage, LineageMemory, Tally
from slurm_robust.supervise.session import Session

_FILE = "lineage.json"
_CALLS_FILE = "calls"
_MAX_RUNS = 50


class LineageStore:
    """The lineage of the training that this run supervises.

    Attributes:
        lineage: What is remembered now.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        job, now_s = session.job, session.clock.now_s()
        self._key = _key(session)
        memory = load(session.folder)
        self.lineage = memory.of(self._key, job.claim, job.previous)
        claimed = Tally(job.claim.failed_since_s, job.claim.failed, job.claim.step)
        # Either may be missing: on a full disk, or where the Comment could not be written.
        self._tally = max(memory.tally.at(now_s), claimed.at(now_s), key=lambda tally: tally.count)
        self._save(memory.runs.get(self._key))
        self.update_claim(incident=self.lineage.incident)
        session.node_faults.remember(self.lineage.faults, self._faults_known)

    def update_claim(self, **changes: object) -> None:
        """Put the lineage, and these changes, into the claim that is written next."""
        known, job = self.lineage, self._session.job
        new: Claim = replace(job.claim, lineage=known.id, step=known.reached, fruitless=known.fruitless)
        new = replace(new, failed=self._tally.count, failed_since_s=round(self._tally.since_s, 3))
        job.claim = replace(new, **changes)  # type: ignore[arg-type]

    def _save(self, lineage: Lineage | None) -> None:
        # A watch beside the job's own supervisor writes neither the Comment nor the lineage.
        if self._session.job.can_claim:
            save(self._session.folder, self._key, lineage, self._tally)

    def forget(self) -> None:
        """The training is over, well or badly: another one in this place begins with an empty lineage."""
        self._save(None)

    def began(self, first: int, offered: int, *, relaunched: bool) -> bool:
        """Remember how this attempt began; True where the program started from the beginning again."""
        self.lineage, again = self.lineage.began(first, offered, relaunched=relaunched)
        self._save(self.lineage)
        return again

    def attempt_ended(self, before: Lineage, step: int, offered: int, order: ExecutePlan) -> None:
        """Remember that an attempt is ended, and for what.

        As in `Lineage.after`; `before` is the lineage, as it compares with the attempt's own numbers.
        """
        plan = order.plan
        # An update ends a training that runs; what a version did that is taken back is its own.
        excused = order.trains or plan.code > 0
        if not excused:
            self._tally = self._tally.after(before, step, self._session.clock.now_s())
        in_place, waited = plan.road is Road.RESTART_IN_PLACE, plan.pause_s > 0
        self.lineage = before.after(step, offered, order.failure, in_place=in_place, waited=waited, excused=excused)
        self._save(self.lineage)

    def _faults_known(self, faults: FaultMemory) -> None:
        self.lineage = replace(self.lineage, faults=faults)
        self._save(self.lineage)

    def code_changed(self, code: CodeState) -> None:
        """Remember the versions of the code."""
        if code != self.lineage.code:
            self.lineage = replace(self.lineage, code=code)
            self._save(self.lineage)

    def made_step(self) -> None:
        """Training has made a new step: the version of its code is proven."""
        self.code_changed(self.lineage.code.made_step())

    def went_back(self, step: int) -> None:
        """The next attempt begins at this older step on purpose: each step after it is new again."""
        self.lineage = replace(self.lineage, reached=min(self.lineage.reached, step))
        self._save(self.lineage)

    def failed_launches_after(self, before: Lineage, step: int) -> int:
        """Launches of the job within the hour that made no new step, this one included if `step` is not new."""
        return self._tally.after(before, step, self._session.clock.now_s()).count

    def launch_refusal(self) -> str:
        """Why nothing is launched any more; empty where it is. A person at a terminal may try as often as they like."""
        session, now_s = self._session, self._session.clock.now_s()
        tally, limit = self._tally.at(now_s), session.settings.fruitless_launches_per_hour
        if tally.count < limit or not session.acting or sys.stderr.isatty():
            return ""
        until = time.strftime("%H:%M", time.localtime(tally.since_s + TALLY_S))
        return (
            f"not launched, exit code {EXIT_STOPPED_FOR_GOOD}: {tally.count} launches of this job ended badly without "
            f"a new step within an hour (limit {limit}, supervise.fruitless_launches_per_hour). No launch before "
            f"{until}: end the loop in the batch script, or the job: scancel {session.job.name}"
        )


def _key(session: Session) -> str:
    """Tells this training from others of its script, in each attempt of the job."""
    if session.command is not None:
        # The launcher started us: its place is ours, also for a supervisor that was restarted.
        return f"run {place(session.folder, session.job.restart_count, os.getppid())}"
    # Slurm numbers the steps of a script alike in each attempt.
    return session.attached.attempt if session.attached is not None else ""


def place(folder: IncidentFolder, restart: int, launcher: int) -> int:
    """The number of this `srobust run` in this attempt of the job, counted from one.

    Each run adds a line to a file of the job, in one write: runs that begin together get different places, a launcher
    that was killed keeps its place, and a restarted supervisor finds the place of its launcher. On a full disk the runs
    of an attempt may share a place; the tally then bounds them.
    """
    path = folder.path / _CALLS_FILE
    process = procfs.stat(launcher)
    # With its start, since pids are reused.
    mine = f"{restart} {launcher} {process.start_ticks if process is not None else 0}"
    if mine not in _lines(path):
        folder.append(_CALLS_FILE, f"{mine}\n")
    calls = [line for line in _lines(path) if line.startswith(f"{restart} ")]
    return calls.index(mine) + 1 if mine in calls else len(calls) + 1


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def load(folder: IncidentFolder) -> LineageMemory:
    """What earlier attempts left in the job's folder; an empty memory where nothing can be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder.path / _FILE).read_bytes(), type=LineageMemory)
    return LineageMemory()


def save(folder: IncidentFolder, key: str, lineage: Lineage | None, tally: Tally) -> None:
    """Keep the lineage of this run, None for nothing; a full disk only shortens the memory."""
    runs = {k: v for k, v in load(folder).runs.items() if k != key}
    if lineage is not None:
        runs[key] = lineage
    kept = dict(list(runs.items())[-_MAX_RUNS:])
    folder.write(_FILE, msgspec.json.encode(LineageMemory(key, kept, tally)))
