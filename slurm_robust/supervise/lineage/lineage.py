"""Remembers one training across its attempts and requeues: how far it came, and its failures since then.

Pure; `lineage_store` reads and writes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurm_robust.core.model import Failure, FailureCause
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.consequences import Pauses
from slurm_robust.policy.job.ladder import LadderMemory
from slurm_robust.policy.job.node_faults import FaultMemory

_MAX_FAILURES = 50
TALLY_S = 3600.0


@dataclass(frozen=True)
class Lineage:
    """One training.

    Attributes:
        id: Its name, equal in every attempt.
        reached: The highest step that it reached.
        fruitless: How many attempts in a row died before a new step.
        incident: Its open incident, or its last one.
        start_step: The checkpoint from which its last attempt died before a step of its own, -1 for none.
        failed_starts: How many attempts in a row died so from that checkpoint.
        failures: The failures since the last new step, oldest first.
        restarts_in_place: How often the step was restarted on the same nodes since the last new step.
        older: Error messages from before the last new step: if one comes again on the same node, the node is at fault.
        first_step: The step that its first attempt began with, -1 if it is not known.
        in_place: True if a restart in place is known to keep all that a requeue would keep, False if the program is
            known to start from the beginning again, None if it is not known.
        falls: Its steps fell within an attempt: each epoch counts anew, so steps do not show how an attempt started.
        counter: The counter of its log that showed its steps; empty if it reports them by calls, or not at all.
        epoch: The last epoch in its log.
        faults: What is remembered of its faulty nodes.
        code: The versions of its code.
        ladder: The rungs that it has climbed.
        pauses: The longest healthy pauses that it has shown.
    """

    id: str
    reached: int = -1
    fruitless: int = 0
    incident: str = ""
    start_step: int = -1
    failed_starts: int = 0
    failures: tuple[Failure, ...] = ()
    restarts_in_place: int = 0
    older: tuple[Failure, ...] = ()
    first_step: int = -1
    in_place: bool | None = None
    falls: bool = False
    counter: str = ""
    epoch: float = 0.0
    faults: FaultMemory = field(default_factory=FaultMemory)
    code: CodeState = field(default_factory=CodeState)
    ladder: LadderMemory = field(default_factory=LadderMemory)
    pauses: Pauses = field(default_factory=Pauses)

    def until(self, step: int) -> Lineage:
        """Return what counts of the lineage for an attempt that reached `step`: little, if the step is new."""
        if step <= self.reached:
            return self
        worded = [f for f in (*self.older, *self.failures) if f.cause is FailureCause.WORDS]
        return replace(
            self,
            reached=step,
            fruitless=0,
            start_step=-1,
            failed_starts=0,
            failures=(),
            restarts_in_place=0,
            older=tuple(worded[-_MAX_FAILURES:]),
            ladder=self.ladder.made_step(step),
        )

    def after(
        self,
        step: int,
        start_step: int,
        failure: Failure | None,
        *,
        in_place: bool,
        waited: bool = False,
        excused: bool = False,
    ) -> Lineage:
        """Return what is remembered once an attempt has ended.

        `start_step` is the checkpoint that it started from, -1 for none; `failure` is None if it cannot be compared.
        With `in_place` the step is restarted on the same nodes, with `waited` after a pause, for an outage. An
        `excused` attempt does not count as failed: it was ended because of reports of its nodes, or because another
        version of the code replaces its version.
        """
        if failure is not None and failure.cause is FailureCause.SLURM:
            return replace(self, failures=(*self.failures, failure)[-_MAX_FAILURES:])  # no attempt: nothing has run
        base = self.until(step)
        if waited and failure is not None:
            # Neither the program nor its checkpoint has failed.
            kept = (*base.failures, failure)[-_MAX_FAILURES:]
            return replace(base, fruitless=0 if step > self.reached else self.fruitless, failures=kept)
        if excused and step > start_step:
            return replace(base, start_step=-1, failed_starts=0)
        if excused:
            return base
        again = start_step >= 0 and step <= start_step
        return replace(
            base,
            fruitless=0 if step > self.reached else self.fruitless + 1,
            start_step=start_step if again else -1,
            failed_starts=(self.failed_starts if self.start_step == start_step else 0) + 1 if again else 0,
            failures=(*base.failures, *([failure] if failure is not None else []))[-_MAX_FAILURES:],
            restarts_in_place=base.restarts_in_place + in_place,
        )

    def began(self, first: int, offered: int, *, relaunched: bool) -> tuple[Lineage, bool]:
        """Return what is remembered once an attempt has reported its first step, and whether it started from zero.

        `offered` is the step of the checkpoint that it was given, -1 for none. An attempt that was `relaunched` in the
        allocation has begun without the batch script.
        """
        if self.first_step < 0 and offered < 0:
            return replace(self, first_step=first), False
        mine = self if self.first_step >= 0 else replace(self, first_step=first)
        # A checkpoint beyond all reported steps is counted in another unit than the steps.
        if self.falls or self.reached <= mine.first_step or offered > self.reached:
            return mine, False
        # It is not known when a program saves; within a tenth of the way it has hardly saved anything of value.
        limit = offered - 1 if offered >= 0 else mine.first_step + (self.reached - mine.first_step) // 10
        again = first <= limit
        # If the script was run again and that did not help either, a restart in place is no worse.
        return replace(mine, in_place=not (again and relaunched)), again


@dataclass(frozen=True)
class Tally:
    """The launches of a job that ended badly without a new step, in all its runs.

    Attributes:
        since_s: When the counted hour began, seconds since the epoch.
        count: How many such launches there were.
        step: The highest step of all launches that ended badly.
    """

    since_s: float = 0.0
    count: int = 0
    step: int = -1

    def at(self, now_s: float) -> Tally:
        """Return what counts of the tally now."""
        return self if 0 <= now_s - self.since_s < TALLY_S else Tally()

    def after(self, mine: Lineage, step: int, now_s: float) -> Tally:
        """Return the tally once a launch of this training has ended badly at `step`."""
        now = self.at(now_s)
        # For an unknown training each first step is new: a loop in the script would be an unknown training each time.
        new = step > now.step or (step > mine.reached >= 0)
        return Tally(now.since_s or now_s, now.count + (not new), max(now.step, step))


@dataclass(frozen=True)
class LineageMemory:
    """The memory of all runs of one batch script.

    Attributes:
        speaks: Key of the run that wrote the job's Comment last.
        runs: Key of a run → what it remembers.
        tally: The launches of all runs that made no new step.
    """

    speaks: str = ""
    runs: Mapping[str, Lineage] = field(default_factory=dict)
    tally: Tally = Tally()

    def of(self, key: str, claim: Claim, previous: Claim | None) -> Lineage:
        """Return what the run of this key remembers as it starts.

        `claim` is by the run that wrote it last; `previous` is that claim, or None if it is not of a failed attempt.
        """
        found = self.runs.get(key)
        if previous is not None and self.speaks in ("", key):
            known = found if found is not None and found.id == claim.lineage else Lineage(claim.lineage)
            # An attempt that resumed reports an older step than the training has reached.
            reached = max(known.reached, claim.step)
            # If a dead node ended the attempt before its claim was written, the Comment names an older incident.
            incident = max(claim.incident, known.incident, key=_opened_at_s)
            return replace(known, reached=reached, fruitless=claim.fruitless, incident=incident)
        # Another run's claim is not this run's memory.
        return found or Lineage(claim.lineage if previous is None else secrets.token_hex(6))


def _opened_at_s(incident: str) -> int:
    """Return when an incident was opened, by the end of its name (`12-r0-1795227617`); -1 for any other name."""
    number = incident.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else -1
