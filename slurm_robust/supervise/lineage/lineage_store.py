"""Keeps the lineage of this run's training in the job's folder and in its claim.

A batch script may have several `srobust run` commands, one after the other. The job's Comment only has the claim of the
run that wrote last. Each run finds its own lineage in the job's folder, by its place among the runs of this attempt of
the job. The command line could not identify a run: ports, addresses and ids in it often differ each time.

The tally counts the launches of the whole job that made no new step, so no script and no loop in it can evade it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace

import msgspec

from slurm_robust.core.model import EXIT_STOPPED_FOR_GOOD, Grade, Road
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.job import climb
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.consequences import Pauses
from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.policy.job.node_faults import FaultMemory
from slurm_robust.supervise.agent.ranks import STEP_MARK
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch.run_place import LINEAGE_FILE, place, run_key, step_place
from slurm_robust.supervise.lineage.lineage import TALLY_S, Lineage, LineageMemory, Tally
from slurm_robust.supervise.outcome import ExecutePlan
from slurm_robust.supervise.session import Session

_MAX_RUNS = 50
_WORTH_A_WRITE = 1.1


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
        # Either may be missing: on a full disk, or if the Comment could not be written.
        self._tally = max(memory.tally.at(now_s), claimed.at(now_s), key=lambda tally: tally.count)
        self._save(memory.runs.get(self._key))
        self.update_claim(incident=self.lineage.incident)
        session.node_faults.remember(self.lineage.faults, self._faults_known)

    def take_name(self, lineage: str) -> None:
        """Give the lineage the name of the training that the ranks were given."""
        if lineage != self.lineage.id:
            self.lineage = replace(self.lineage, id=lineage)
            self._save(self.lineage)
            self.update_claim()

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
        """Forget the lineage: the training is over, and another training in this place begins with an empty one."""
        self._save(None)

    def began(self, first: int, offered: int, *, relaunched: bool) -> bool:
        """Remember how this attempt began; return True if the program started from the beginning again."""
        self.lineage, again = self.lineage.began(first, offered, relaunched=relaunched)
        self._save(self.lineage)
        return again

    def attempt_ended(self, before: Lineage, step: int, offered: int, order: ExecutePlan) -> None:
        """Remember that an attempt is ended, and why.

        The arguments are those of `Lineage.after`; `before` is the lineage in numbers that compare with the attempt's.
        """
        plan = order.plan
        # An update ends a training that runs; failures of a version that is taken back belong to that version.
        excused = order.trains or plan.code > 0
        if not excused:
            self._tally = self._tally.after(before, step, self._session.clock.now_s())
        in_place, waited = plan.road is Road.RESTART_IN_PLACE, plan.pause_s > 0
        known = before.after(step, offered, order.failure, in_place=in_place, waited=waited, excused=excused)
        silence = order.situation.silence if order.situation is not None else None
        if silence is not None and order.verdict.grade is Grade.WEAK:
            known = replace(known, pauses=known.pauses.after_cut(silence.kind, silence.silent_s))
        self.lineage = known
        self._save(self.lineage)

    def _faults_known(self, faults: FaultMemory) -> None:
        self.lineage = replace(self.lineage, faults=faults)
        self._save(self.lineage)

    def code_changed(self, code: CodeState) -> None:
        """Remember the versions of the code."""
        if code != self.lineage.code:
            self.lineage = replace(self.lineage, code=code)
            self._save(self.lineage)

    def climbed(self, order: ExecutePlan, found: TestOutcome | None = None) -> None:
        """Remember the rung of the ladder that this plan climbs; `found` is what its tests have shown."""
        if order.situation is None:
            return
        ladder = climb.after_plan(order.situation, order.plan, found)
        if ladder != self.lineage.ladder:
            self.lineage = replace(self.lineage, ladder=ladder)
            self._save(self.lineage)

    def pauses_with(self, pauses: Pauses) -> Pauses:
        """Return the longest healthy pauses of the training, including those of its present attempt."""
        return self.lineage.pauses.merged(pauses)

    def paused(self, pauses: Pauses) -> None:
        """Remember healthy pauses; pauses that are hardly longer than the known ones are not written."""
        known = self.pauses_with(pauses)
        before = self.lineage.pauses.longest_s
        if any(pause_s > _WORTH_A_WRITE * before.get(kind, 0.0) + 1.0 for kind, pause_s in known.longest_s.items()):
            self.lineage = replace(self.lineage, pauses=known)
            self._save(self.lineage)

    def made_step(self) -> None:
        """Note that training has made a new step, so that the version of its code is proven."""
        self.code_changed(self.lineage.code.made_step())

    def went_back(self, step: int) -> None:
        """Note that the next attempt begins at this older step on purpose, so that later steps count as new again."""
        known = self.lineage
        self.lineage = replace(known, reached=min(known.reached, step), ladder=known.ladder.went_back(step))
        self._save(self.lineage)

    def failed_launches_after(self, before: Lineage, step: int) -> int:
        """Return how many launches made no new step within the hour, this one included if `step` is not new."""
        return self._tally.after(before, step, self._session.clock.now_s()).count

    def launch_refusal(self) -> str:
        """Return why nothing is launched any more; empty if it is. A person at a terminal may always try."""
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
    """Return a key that tells this training from others of its script, in each attempt of the job."""
    if session.command is not None:
        # The launcher started us, so its place is ours, even if the supervisor was restarted.
        return run_key(place(session.folder, session.job.restart_count, os.getppid()))
    if session.attached is None:
        return ""
    return f"{STEP_MARK}{step_place(session.folder, session.job.restart_count, int(session.attached.step))}"


def load(folder: IncidentFolder) -> LineageMemory:
    """Return what earlier attempts left in the job's folder; an empty memory if it cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(folder.read(LINEAGE_FILE), type=LineageMemory)
    return LineageMemory()


def save(folder: IncidentFolder, key: str, lineage: Lineage | None, tally: Tally) -> None:
    """Keep the lineage of this run, None to forget it; a full disk only shortens the memory."""
    runs = {k: v for k, v in load(folder).runs.items() if k != key}
    if lineage is not None:
        runs[key] = lineage
    kept = dict(list(runs.items())[-_MAX_RUNS:])
    folder.write(LINEAGE_FILE, msgspec.json.encode(LineageMemory(key, kept, tally)))
