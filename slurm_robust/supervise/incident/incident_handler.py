"""Handles silence, a dead rank, or an srun that failed: evidence, verdict, plan.

The handler opens the incident, and returns the plan for the supervisor to execute.
"""

from __future__ import annotations

import asyncio
import math
from signal import SIGKILL, SIGTERM

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.core.model import Conclusion, Failure, Grade, Plan, Road, Signal, SignalKind, Verdict
from slurm_robust.diagnose.findings import matcher_with
from slurm_robust.localize.ranks import name
from slurm_robust.localize.votes.node_signals import name_reported
from slurm_robust.policy.job.node_faults import failure_of, settle_s
from slurm_robust.supervise.incident.dead_nodes import find_dead_nodes
from slurm_robust.supervise.incident.decider import Decider, Judged
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident.left_alone import due_in_s_of, nobody_may_act, seen_in_vain, tell_seen
from slurm_robust.supervise.incident.quiet_captures import ProvenSuspicion
from slurm_robust.supervise.incident.situation import first_exit
from slurm_robust.supervise.launch import srun_refusal
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.outcome import ExecutePlan, Exit, Outcome
from slurm_robust.supervise.reported.suspicion import Assessment, SilenceLevel
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import FaultsDue, urgent_faults
from slurm_robust.supervise.watch.observer import Observer

_GRACE_S = 1.0
"""From the first rank's death to the verdict: the other ranks' last lines are on their way."""
_CANCEL_GRACE_S = 3.0
"""A longer wait if all ranks ended like those of a cancelled step: on a busy node Slurm's message comes late."""
_PAUSE_S = 0.1
_STACKS_S = 1.0
"""The limit of a capture of a job whose node is left at once."""
_LOST_LOSS = "loss: not finite"
"""The signature of a training that goes on with a loss of NaN or infinity."""
_WAITING_AGAIN_S = 60.0
"""While nothing changes, the story says so often what is waited for."""
_EARLY_CAPTURES = 7
_LATER_CAPTURES = 14
"""Captured often for the first half minute, less often for the next two, and then now and then."""
_LATER = 4


def _pause_s(rounds: int, settings: SuperviseConfig) -> float:
    """Return the time from one capture of a silence to the next: short at first, since most hangs soon show as such."""
    if rounds < _EARLY_CAPTURES:
        return settings.corroborate_after_s
    return min(settings.recapture_s, _LATER * settings.corroborate_after_s if rounds < _LATER_CAPTURES else math.inf)


def _as_cancelled(attempt: AttemptState) -> bool:
    """Return whether each rank ended by a signal with which Slurm cancels steps.

    Slurm's message about a cancellation comes through srun's output, which may go through a pipe.
    """
    ends = {e.signal for e in attempt.exits.values()}
    return bool(ends) and ends <= {SIGKILL, SIGTERM}


class IncidentHandler:
    """Handles the incidents of one supervisor."""

    def __init__(self, session: Session, log: IncidentLog, decider: Decider, observer: Observer) -> None:
        self._session = session
        self._log = log
        self._decider = decider
        self._observer = observer

    # -- what happened ------------------------------------------------------------------------------------------------

    async def silent(self, attempt: AttemptState, start: AttemptStart, assessment: Assessment) -> Outcome:
        """Capture, wait, capture again; act only on a pattern that explains the waiting, or past the limit."""
        session, log, settings = self._session, self._log, self._session.settings
        now_s = session.clock.now_s()
        signal = Signal(SignalKind.SILENCE, now_s, "progress", assessment.why)
        text = f"silence suspected: {assessment.why}"
        log.open(attempt.name, now_s - assessment.silent_s, text, signal, ranks=assessment.ranks)
        investigation = Investigation(session, attempt, log)
        await investigation.capture()
        last_reason, reported, due_in_s, dead_before = "", False, math.inf, len(attempt.exits)
        told_s, seen, told = -math.inf, False, False
        while True:
            pause_s = min(_pause_s(investigation.rounds, settings), max(due_in_s, _PAUSE_S))
            if await self._silence_ends(attempt, pause_s, assessment.level, dead_before):
                await self._drop(attempt)
                return None
            due = self._urgent_faults(attempt)
            if due is None:
                await investigation.capture()
            else:
                due = await self._capture_briefly(attempt, investigation)
            dead = await find_dead_nodes(session, attempt)
            if attempt.exits or attempt.raised:
                attempt.add_last_lines()
                dead_before = len(attempt.exits)  # torchrun's table makes several of one
                await self._read_rules()
            verdict = investigation.judge() if due is None else self._blame(attempt, investigation, due)
            assessment = attempt.assess(settings)
            if assessment.level is SilenceLevel.QUIET and due is None:
                await self._drop(attempt)
                return None
            overdue = assessment.level is SilenceLevel.OVERDUE
            all_gone = not attempt.fleet.runs and not attempt.awaits_reports
            died = bool(attempt.exits) and (verdict.corroborated or all_gone)
            silent_s = None if due is not None else session.clock.now_s() - attempt.last_sign_s
            stopped = self._observer.stopped_ranks.to_be_continued(attempt.fleet)
            case = Judged(verdict, dead, overdue=overdue, ended=died, silent_s=silent_s, to_be_continued=stopped)
            order = await self._decider.decide(attempt, start, investigation, case)
            if order.plan.road is not Road.ALERT_ONLY:
                return await self._decider.conclude(attempt, order)
            due_in_s = due_in_s_of(order)
            seen_before, seen = seen, seen_in_vain(order, due_in_s, investigation.captures)
            if (overdue or nobody_may_act(order, due_in_s)) and not reported:
                # No action is allowed, and the job will not go on by itself: a person has to know.
                reported = True
                log.update(outcome="Alert only: nothing was done.")
                await session.job.report(log.incident, session.config.mode)
            elif seen_before and seen and not reported and not told:
                told = True
                await tell_seen(session, log.incident, assessment)
            log.save()
            if order.plan.reason != last_reason or session.clock.monotonic_s() - told_s >= _WAITING_AGAIN_S:
                last_reason, told_s = order.plan.reason, session.clock.monotonic_s()
                text = f"no progress for {silent_s:.0f} s; {last_reason}" if silent_s is not None else last_reason
                session.folder.log_event("waiting", text, incident=log.incident.id)

    async def _silence_ends(self, attempt: AttemptState, pause_s: float, level: SilenceLevel, dead_before: int) -> bool:
        """Wait for the next capture; return True as soon as the silence ends, by progress or by one more death.

        The wait is also over if the silence reaches a higher level than `level`: an action at the limit must not wait
        for the next capture.
        """
        session, clock = self._session, self._session.clock
        deadline = clock.monotonic_s() + pause_s
        while clock.monotonic_s() < deadline:
            await clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)
            gone = session.launcher_gone or session.attached_srun_gone or session.user_end
            if gone or session.srun_exit_code is not None or len(attempt.exits) > dead_before:
                return True
            reached = attempt.assess(session.settings).level
            if reached is SilenceLevel.QUIET:
                return True
            if reached > level or self._urgent_faults(attempt) is not None:
                return False
        return False

    async def _drop(self, attempt: AttemptState) -> None:
        """Drop the incident: the silence ended by itself, or by an exit that is handled next."""
        session, log = self._session, self._log
        while self._observer.stopped_ranks.awaits_an_answer() and not attempt.exits and session.srun_exit_code is None:
            # Steps may come before the agent's word that it continued the rank; without it the story would be wrong.
            await session.clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)
        # The pause counts as a sample now; another capture of the same pause would not show anything new.
        attempt.quiet_until_s = session.clock.now_s() + session.settings.corroborate_after_s
        continued = self._observer.stopped_ranks.continued_since(log.incident.opened_at_s)
        what = (
            f"{name(continued)} had been stopped by a signal, until we sent SIGCONT"
            if continued
            else "nothing was done"
        )
        incident = log.close(f"It went on{'' if continued else ' by itself'}; {what}.")
        if not attempt.exits and session.srun_exit_code is None:
            session.folder.log_event("cleared", f"training moves again; {what}", incident=incident.id)
            if not continued:
                log.count_idle_suspicion()
        session.job.withdraw_suspicion()

    async def rank_died(
        self, attempt: AttemptState, start: AttemptStart, seen: Investigation | None = None, *, waited_for: bool = False
    ) -> Outcome:
        """Handle a rank's death: read the other ranks' last lines, take their stacks, judge.

        `seen` has earlier captures of the other ranks. If only these captures show that the ranks wait (`waited_for`),
        a new step since then cancels the incident.
        """
        session = self._session
        session.job.announce_suspicion()
        await self._gather_exits(attempt)
        if attempt.cancelled:
            attempt.exits.clear()  # somebody cancelled the step; srun's end follows
            session.job.withdraw_suspicion()
            return None
        first = first_exit(attempt)
        assert first is not None
        how = f"signal {first.signal}" if first.signal else f"exit code {first.exit_code}"
        signal = Signal(SignalKind.RANK_EXITED, first.at_s, "srun", how, first.node, first.rank)
        self._log.open(attempt.name, first.at_s, f"rank {first.rank} on {first.node} ended with {how}", signal)
        investigation = Investigation(session, attempt, self._log)
        if seen is not None:
            investigation.take_over(seen)
        if attempt.fleet.alive and session.srun_exit_code is None:
            await investigation.capture()
            if waited_for and seen is not None and seen.progress_since:
                await self._drop(attempt)
                return None
        return await self._judge_end(attempt, start, investigation)

    async def step_failed(self, attempt: AttemptState, start: AttemptStart, code: int) -> Outcome:
        """Handle an srun that has ended with this exit code: by a failure, or because somebody wanted it to end."""
        session = self._session
        if refused := await self._refusal(attempt, code):
            text = f"srun did not start the step: {refused}; exit code {code}, nothing is started anew"
            session.folder.log_event("refused", text)
            return Exit(code)
        session.job.announce_suspicion()
        fault_at_s = attempt.last_sign_s
        attempt.confirm_exits(ended=True)
        await self._gather_exits(attempt)
        if attempt.cancelled:
            session.folder.log_event("cancelled", f"the step was cancelled; exit code {code}")
            return Exit(code)
        if not attempt.exits:
            attempt.add_step_exit(code)
        attempt.add_last_lines()
        self._log.open(attempt.name, fault_at_s, f"the training step ended with exit code {code}")
        return await self._judge_end(attempt, start, Investigation(session, attempt, self._log))

    async def ended_by_user(self, by: str) -> Outcome:
        """End after a signal by which the user ended the step: nothing is started again."""
        session = self._session
        code = session.srun_exit_code
        assert code is not None
        if self._log.current is not None:
            self._log.close(f"The user ended the step ({by}).")
        session.job.withdraw_suspicion()
        session.folder.log_event("cancelled", f"the user ended the step ({by}); exit code {code}")
        return Exit(code)

    async def proven(self, attempt: AttemptState, start: AttemptStart, suspicion: ProvenSuspicion) -> Outcome:
        """Open the incident that quiet captures have proven, capture once more, and judge."""
        self._log.open(attempt.name, suspicion.fault_at_s, suspicion.text, suspicion.signal)
        investigation = Investigation(self._session, attempt, self._log)
        investigation.take_over(suspicion.investigation)
        await investigation.capture()
        await self._observer.poll(attempt)
        if suspicion.investigation.progress_since:
            await self._drop(attempt)
            return None
        verdict = investigation.judge()
        waited_for = not investigation.ended_are_waited_for_in_s()
        ended = suspicion.finished and verdict.conclusion is Conclusion.USER_CODE and waited_for
        ended = ended or (bool(attempt.exits) and verdict.corroborated)
        case = Judged(verdict, ended=ended, silent_s=suspicion.silent_s)
        order = await self._decider.decide(attempt, start, investigation, case)
        return await self._decider.conclude(attempt, order)

    async def node_faults(self, attempt: AttemptState, start: AttemptStart, due: FaultsDue) -> Outcome:
        """Leave nodes for what they have reported, without waiting for a hang."""
        session, log = self._session, self._log
        text = due.text
        if due.only_announced and log.current is not None:
            # The open incident belongs to the attempt before; it ends with the first new step.
            self._acknowledge(due)
            session.folder.log_event("note", text)
            return None
        log.open(attempt.name, min(s.at_s for s in due.signals), text, nodes=sorted(due.nodes))
        investigation = Investigation(session, attempt, log)
        if due.urgent and not due.only_announced:
            due = await self._capture_briefly(attempt, investigation) or due
        log.update(signals=due.signals)
        if attempt.cancelled or session.srun_exit_code == 0:
            log.close("The step was over meanwhile; nothing was done.")
            session.job.withdraw_suspicion()
            return None
        verdict = self._blame(attempt, investigation, due)
        ended = session.srun_exit_code is not None
        if due.only_announced:
            plan = Plan(Road.ALERT_ONLY, due.text)
            log.update(plan=plan)
            order = ExecutePlan(verdict, plan, None)
        else:
            # Slurm is not asked for dead nodes: nothing may delay this one.
            order = await self._decider.decide(attempt, start, investigation, Judged(verdict, ended=ended))
        return await self._decider.conclude(attempt, order, goes_on=True)

    async def bad_loss(self, attempt: AttemptState, start: AttemptStart, why: str) -> Outcome:
        """Handle a training that goes on with a lost loss, so that each further step is wasted. No stacks are taken."""
        session, now_s = self._session, self._session.clock.now_s()
        signal = Signal(SignalKind.BAD_LOSS, now_s, "progress", why)
        self._log.open(attempt.name, now_s, f"the loss is bad: {why}", signal)
        investigation = Investigation(session, attempt, self._log)
        verdict = Verdict(Conclusion.UNDETERMINED, why, corroborated=True, grade=Grade.STRONG)
        investigation.conclude(verdict, Failure(_LOST_LOSS))
        order = await self._decider.decide(attempt, start, investigation, Judged(verdict, bad_loss=why))
        return await self._decider.conclude(attempt, order, goes_on=True)

    async def slow(self, attempt: AttemptState, start: AttemptStart, why: str) -> Outcome:
        """Have the nodes tested of a slow training that has just saved, and whose step times do not name a node."""
        session, now_s = self._session, self._session.clock.now_s()
        self._log.open(attempt.name, now_s, why, Signal(SignalKind.SLOW, now_s, "timings", why))
        investigation = Investigation(session, attempt, self._log)
        verdict = Verdict(Conclusion.UNDETERMINED, why)
        investigation.conclude(verdict, None)
        order = await self._decider.decide(attempt, start, investigation, Judged(verdict, slow=why))
        return await self._decider.conclude(attempt, order, goes_on=True)

    async def _capture_briefly(self, attempt: AttemptState, investigation: Investigation) -> FaultsDue | None:
        """Take stacks, and wait for reports of other nodes about the same event; return what is due then."""
        due = urgent_faults(self._session, attempt)
        within_s = settle_s(due.signals if due is not None else ())
        await asyncio.gather(investigation.capture(within_s=_STACKS_S), self._settle(attempt, within_s))
        return urgent_faults(self._session, attempt)

    async def _settle(self, attempt: AttemptState, within_s: float) -> None:
        """Wait until the reports of other nodes about the same event are here."""
        clock = self._session.clock
        deadline = clock.monotonic_s() + within_s
        while clock.monotonic_s() < deadline:
            await clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)

    def _urgent_faults(self, attempt: AttemptState) -> FaultsDue | None:
        """Return nodes to leave at once; None in a storm, which is announced later."""
        due = urgent_faults(self._session, attempt)
        return due if due is not None and not due.storm else None

    def _blame(self, attempt: AttemptState, investigation: Investigation, due: FaultsDue) -> Verdict:
        """Return the verdict on nodes that have reported a fault; their reports so far then count as handled."""
        self._acknowledge(due)
        if due.only_announced:
            verdict = Verdict(Conclusion.UNDETERMINED, due.text, missing=("what these nodes share",))
            investigation.conclude(verdict, None)
            return verdict
        verdict = name_reported(attempt.fleet.rank_nodes, due.nodes)
        investigation.conclude(verdict, failure_of(due.nodes))
        return verdict

    def _acknowledge(self, due: FaultsDue) -> None:
        faults = self._session.node_faults
        if due.storm:
            faults.announced(due.signals)
        else:
            faults.handled(due.nodes)

    async def _judge_end(self, attempt: AttemptState, start: AttemptStart, investigation: Investigation) -> Outcome:
        dead = await find_dead_nodes(self._session, attempt)
        case = Judged(investigation.judge(), dead, ended=True)
        order = await self._decider.decide(attempt, start, investigation, case)
        return await self._decider.conclude(attempt, order)

    async def _read_rules(self) -> None:
        """Read the rules for the ranks' last lines while these lines are still on their way: it takes 0.1 s."""
        session = self._session
        if session.rules is not None:
            return
        try:
            session.rules = await asyncio.to_thread(matcher_with, session.config.diagnose.rules)
        except Exception as error:  # noqa: BLE001 (a fault in a file of rules must not end the supervision)
            text = f"the site's rules are left out, the package's own are used: {error}"
            session.folder.log_event("note", f"{text}. Try: srobust diagnose rules --check FILE")

    async def _refusal(self, attempt: AttemptState, code: int) -> str:
        """Return srun's message if srun ended because it refuses its own options; else an empty text."""
        session = self._session
        if code != srun_refusal.REFUSED or session.command is None or attempt.fleet.ranks:
            return ""
        return await srun_refusal.refusal(session.command.options, session.environment)

    async def _gather_exits(self, attempt: AttemptState) -> None:
        """Wait a moment for the ends of other ranks, and for Slurm's message that somebody ended them."""
        clock = self._session.clock
        reading = asyncio.create_task(self._read_rules())
        began_s = clock.monotonic_s()
        # Agents may report all ends before the last lines of the output are read.
        await self._observer.poll(attempt)
        while not attempt.cancelled:
            all_ended = len(attempt.exits) >= attempt.fleet.world
            as_cancelled = all_ended and _as_cancelled(attempt)
            waited_s = clock.monotonic_s() - began_s
            if (all_ended and not as_cancelled) or waited_s >= (_CANCEL_GRACE_S if as_cancelled else _GRACE_S):
                break
            await clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)
        attempt.add_last_lines()
        await reading
