"""Takes stacks without an incident if something may be wrong (quiet captures). Only proven hangs are acted on.

A proven hang is acted on when its grade is due (`policy.job.consequences`), as with any other silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_robust.core.model import Conclusion, Grade, Signal, SignalKind, Verdict
from slurm_robust.core.text import shortened
from slurm_robust.localize.evidence import RankExit
from slurm_robust.localize.ranks import name
from slurm_robust.localize.stacks.motion import busy_waiting, moving
from slurm_robust.localize.votes.waiting_at_rest import resting_s
from slurm_robust.policy.job.consequences import FIRST_STEP, Silence, learnt_limit_s, patience_s
from slurm_robust.supervise.incident.dead_ranks import CAPTURES_AFTER_S, next_capture_in_s
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.reported.traffic import SILENT_S as TRAFFIC_SILENT_S
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.standstill import Standstill

_CAPTURES_AFTER_FINISHED = 6
"""How many captures follow if ranks are known to have finished: no rank is at fault, and it is not urgent."""
_CAPTURES_OF_STOPPED = 4
"""Two captures prove a stopped process; after this many, one in a debugger is captured as rarely as any other."""

_NO_RANK_AFTER_S = 300.0
"""A step without ranks is reported after this time: an image may take minutes, and a step may wait for another."""


@dataclass(frozen=True)
class ProvenSuspicion:
    """A proven hang: the time of the fault, the story's line about it, and the observation that proves it.

    Attributes:
        finished: Ranks are known to have ended with exit code 0; it is still to be judged whether others wait for them.
        silent_s: For how long nothing has moved; None if ranks have vanished and others wait for them.
    """

    investigation: Investigation
    fault_at_s: float
    text: str
    signal: Signal
    finished: bool = False
    silent_s: float | None = None


class QuietCaptures:
    """The quiet captures of one attempt.

    `investigate` makes an investigation without an incident.
    """

    def __init__(
        self,
        session: Session,
        attempt: AttemptState,
        start: AttemptStart,
        investigate: Callable[[Session, AttemptState], Investigation] = Investigation,
    ) -> None:
        self._session = session
        self._attempt = attempt
        self._start = start
        self._investigate = investigate
        self._no_rank_at_s = attempt.began_at_s + _NO_RANK_AFTER_S
        self._unmeasured: Investigation | None = None
        self._captured_at_s = 0.0
        self._told_traffic = False
        self._seen: Verdict | None = None
        """The verdict on the last capture of an unmeasured silence, if it may be acted on once the silence lasts."""
        self._stands_since_s = 0.0
        self._stopped_s = session.clock.stopped_s
        self._due_s = math.inf
        self._captures_of_stopped = 0
        self._vanished: Investigation | None = None
        self._vanished_at_s = 0.0
        self._captures_of_vanished = 0
        self._standstill = Standstill(session, attempt)

    async def poll(self) -> ProvenSuspicion | None:
        """Take the capture that is due, if any; return what it proves."""
        session, attempt, now_s = self._session, self._attempt, self._session.clock.now_s()
        if not attempt.fleet.ranks and session.srun_exit_code is None and now_s >= self._no_rank_at_s:
            self._no_rank_at_s = now_s + session.settings.action_limit_s
            waited_s, job_id = now_s - attempt.began_at_s, session.job.job_id
            session.folder.log_event("note", _no_rank(waited_s, job_id, session.allocation.silent_nodes))
        if not attempt.vanished or attempt.exits:
            self._vanished, self._captures_of_vanished = None, 0
        elif now_s >= self._vanished_at_s and (
            not attempt.reports or self._captures_of_vanished < len(CAPTURES_AFTER_S)
        ):
            return await self._capture_vanished()
        if attempt.fleet.alive and now_s < attempt.quiet_until_s and self._left_alone_due(now_s):
            self._captured_at_s = now_s
            await self._capture_left_alone()
        elif attempt.fleet.alive and now_s >= attempt.quiet_until_s and self._unmeasured_due(now_s):
            self._captured_at_s = now_s
            return await self._capture_unmeasured()
        return None

    def _unmeasured_due(self, now_s: float) -> bool:
        """Return whether to capture a silence that the attempt's own step times do not measure.

        There are no step times if the job reports no progress, too few in its first steps, and they do not measure an
        announced pause. A stopped process is not a pause, however long pauses may last.
        """
        settings, attempt = self._session.settings, self._attempt
        usual_s, silent_s = attempt.own_limit_s(settings), now_s - attempt.last_sign_s
        if attempt.reports and self._unmeasured is not None and self._moved(self._unmeasured):
            self._unmeasured, self._seen = None, None
            self._standstill.moved()
        if not attempt.fleet.stopped:
            self._captures_of_stopped = 0
        elif self._captures_of_stopped < _CAPTURES_OF_STOPPED:
            pause_s = settings.corroborate_after_s
            due = silent_s >= (usual_s or pause_s) and now_s - self._captured_at_s >= pause_s
            self._captures_of_stopped += due
            return due
        interval_s = settings.quiet_capture_interval_s
        if usual_s is not None:
            return False
        self._tell_no_traffic(now_s)
        unsure = self._seen is not None and not self._seen.corroborated
        pause_s = min(interval_s, settings.corroborate_after_s) if unsure else interval_s
        waited = now_s - self._captured_at_s >= pause_s or now_s >= self._due_s
        return silent_s >= interval_s and waited

    def _left_alone_due(self, now_s: float) -> bool:
        """Return whether to capture a job that hung, was left alone, and reports no progress, to see if it moves."""
        due = now_s - self._captured_at_s >= self._session.settings.quiet_capture_interval_s
        return due and not self._attempt.reports and self._attempt.left_alone_at_s > 0

    async def _capture_left_alone(self) -> None:
        found = self._unmeasured = self._unmeasured or self._investigate(self._session, self._attempt)
        await found.capture(keep=False)
        self._note_motion(found)

    def _note_motion(self, found: Investigation) -> None:
        """Withdraw the suspicion of a hang that was left alone, once most ranks have moved."""
        session, attempt = self._session, self._attempt
        if attempt.reports or not attempt.left_alone_at_s or len(found.captures) < 2:
            return
        ranks = {rank.rank for rank in attempt.fleet.alive}
        # A host that spins for its device uses a processor, but makes no progress.
        moved = set(moving(found.captures, ranks)) - busy_waiting(found.captures, ranks)
        if 2 * len(moved) > len(ranks):
            attempt.quiet_until_s = attempt.left_alone_at_s = 0.0
            session.folder.log_event("cleared", "its ranks move again by themselves; nothing was done")
            session.job.withdraw_suspicion()

    def _tell_no_traffic(self, now_s: float) -> None:
        """Note once for each silence that a job that trained over RDMA has not moved any data for long."""
        fleet = self._attempt.fleet
        silent_s = fleet.traffic.silent_s({rank.node for rank in fleet.alive}, now_s)
        still = silent_s >= TRAFFIC_SILENT_S
        if still and not self._told_traffic:
            text = f"silence suspected: no RDMA traffic on any node of the job for {silent_s:.0f} s"
            self._session.folder.log_event("note", f"{text}; its stacks are captured")
        self._told_traffic = still

    def _moved(self, investigation: Investigation) -> bool:
        """Return whether the job has shown progress since the first of these captures."""
        attempt, captures = self._attempt, investigation.captures
        return attempt.reports and bool(captures) and attempt.last_sign_s > captures[0].at_s

    async def _capture_vanished(self) -> ProvenSuspicion | None:
        """Capture after ranks have gone without a report of srun: other ranks' stacks show if they finished or died.

        A training that ends loses its ranks one by one, and a rank that has finished does not block other ranks.
        """
        session, vanished = self._session, self._attempt.vanished
        if self._vanished is None:
            self._vanished = self._investigate(session, self._attempt)
            text = f"{name(vanished)} ended while srun runs on and reports no exit: the others' stacks will show why"
            session.folder.log_event("note", text, ranks=sorted(vanished))
        found = self._vanished
        await found.capture(keep=False)
        self._captures_of_vanished += 1
        due_in_s = found.ended_are_waited_for_in_s()
        self._vanished_at_s = session.clock.now_s() + next_capture_in_s(self._captures_of_vanished, due_in_s)
        gone = list(self._attempt.vanished.values())
        finished = self._have_finished(gone)
        if not self._attempt.fleet.complete:
            return None  # others of its world are not in this step: they may be the ones that are waited for
        verdict = found.judge()
        if due_in_s or verdict.grade is Grade.WEAK or not _proves(verdict, finished=finished):
            return None
        self._vanished = None
        first = min(gone, key=lambda e: e.at_s)
        how = "exit status unknown" if first.exit_code is None else f"exit code {first.exit_code}"
        text = f"rank {first.rank} on {first.node} is gone ({how}), and the others wait for it"
        signal = Signal(SignalKind.RANK_EXITED, first.at_s, "watch", how, first.node, first.rank)
        return ProvenSuspicion(found, first.at_s, text, signal, finished)

    async def _capture_unmeasured(self) -> ProvenSuspicion | None:
        """Capture during a silence if only the stacks can tell whether the ranks work.

        No incident is opened and nothing is written before the stacks prove a hang, so any program may be supervised.
        """
        attempt = self._attempt
        found = self._unmeasured = self._unmeasured or self._investigate(self._session, attempt)
        await found.capture(keep=False)
        self._note_motion(found)
        others = {rank.rank for rank in attempt.fleet.alive} - {rank.rank for rank in attempt.fleet.stopped}
        attempt.seen_resting = self._session.clock.now_s(), resting_s(found.captures, others)
        verdict, now_s, stopped_s = found.judge(), self._session.clock.now_s(), self._session.clock.stopped_s
        # The time for which the job was suspended, and we with it, does not count as standing still.
        self._stands_since_s, self._stopped_s = self._stands_since_s + stopped_s - self._stopped_s, stopped_s
        stands = verdict.conclusion is not Conclusion.NONE and verdict.grade is not Grade.NONE
        if not stands or self._seen is None:
            self._stands_since_s = now_s
        self._seen = verdict if stands else None
        silent_s = now_s - (attempt.last_sign_s if attempt.reports else self._stands_since_s)
        silence = Silence.of(silent_s, attempt.pause_kind, self._start.pauses, self._session.settings)
        due_in_s = patience_s(verdict.grade, silence) - silent_s if verdict.corroborated else math.inf
        self._due_s = now_s + due_in_s
        if not _proves(verdict) or due_in_s > 0 or self._moved(found):
            self._standstill.look(found.captures, verdict, self._acted_on_in_s(verdict, silence, due_in_s))
            return None
        self._unmeasured, self._seen, self._due_s = None, None, math.inf
        since_s, why = found.captures[0].at_s, "the job reports no progress"
        if attempt.reports:
            since_s = attempt.last_sign_s
            why = f"no progress for {now_s - since_s:.1f} s"
        why += ", and its stacks do not move"
        signal = Signal(SignalKind.SILENCE, now_s, "stacks", why)
        return ProvenSuspicion(found, since_s, f"silence suspected: {why}", signal, silent_s=silent_s)

    def _acted_on_in_s(self, verdict: Verdict, silence: Silence, due_in_s: float) -> float:
        """Return in how many seconds the evidence, or the silence itself, is acted on; infinite for never."""
        attempt, settings = self._attempt, self._session.settings
        if not attempt.reports:  # a limit of silence needs progress that it is counted from
            return due_in_s
        # Until a log has `min_steps` lines, nothing tells how long they may be apart.
        begins = attempt.pause_kind == FIRST_STEP or not attempt.has_progress
        limit_s = settings.startup_limit_s if begins else settings.action_limit_s
        limit_s = max(limit_s, learnt_limit_s(attempt.pause_kind, self._start.pauses, settings))
        return min(due_in_s, limit_s - silence.silent_s)

    def _have_finished(self, gone: list[RankExit]) -> bool:
        """Return whether all of them ended with exit code 0 long enough ago: a rank waiting for them waits for ever."""
        return self._captures_of_vanished > _CAPTURES_AFTER_FINISHED and all(e.exit_code == 0 for e in gone)


def _proves(verdict: Verdict, *, finished: bool = False) -> bool:
    if finished and verdict.conclusion is Conclusion.USER_CODE:
        return True
    return verdict.conclusion is not Conclusion.NONE and verdict.corroborated


def _no_rank(waited_s: float, job_id: int, silent_nodes: Sequence[str]) -> str:
    text = f"no rank has been seen in {waited_s / 60:.0f} min: "
    if silent_nodes:
        return text + f"no agent answers on {shortened(', '.join(silent_nodes), 120)} either; see: sinfo -R"
    return text + (
        "srun waits for resources of another step of the job, or a prolog or a container's image takes its time; "
        f"see: squeue --steps --jobs {job_id}"
    )
