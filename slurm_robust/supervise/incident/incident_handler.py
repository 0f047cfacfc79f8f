"""What is done about silence, a dead rank, or an srun that failed: evidence, verdict, plan.

The handler opens the incident, and returns the plan for the supervisor to execute.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from signal import SIGKILL, SIGTERM

from slurm_robust.diagnose.findings import matcher_with
from slurm_robust.localize.votes.node_signals import name_reported
from slurm_robust.model import Conclusion, Mode, Plan, Road, Signal, SignalKind, Verdict
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.node_faults import failure_of, settle_s
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident.situation import first_exit, lost_nodes, read_situation
from slurm_robust.supervise.launch import srun_refusal
from slurm_robust.supervise.outcome import ExecutePlan, Exit, Outcome
from slurm_robust.supervise.recover.attempt_start import AttemptStart
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch import drain_watch
from slurm_robust.supervise.watch.attempt_state import SILENT_AGENT_S, AttemptState, Observer
from slurm_robust.supervise.watch.fault_watch import FaultsDue, nodes_in_use, urgent_faults
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.quiet_captures import ProvenSuspicion
from slurm_robust.supervise.watch.suspicion import Assessment, SilenceLevel

_GRACE_S = 1.0
"""From the first rank's death to the verdict: the other ranks' last lines are on their way."""
_PAUSE_S = 0.1
_STACKS_S = 1.0
"""For the stacks of a job whose node is left at once."""
_EARLY_CAPTURES = 7
"""Captured often for the first half minute, which tells most hangs from pauses; then now and then."""
_WITHOUT_THE_DAEMON = (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION, Road.STOP, Road.ALERT_ONLY)
"""What the job does by itself is only reported. The other roads begin with a claim, which the daemon judges."""


def _as_cancelled(attempt: AttemptState) -> bool:
    """Whether each rank ended by a signal with which Slurm cancels steps.

    Slurm's word on it comes through srun's output, and that may go through a pipe.
    """
    ends = {e.signal for e in attempt.exits.values()}
    return bool(ends) and ends <= {SIGKILL, SIGTERM}


class IncidentHandler:
    """Handles the incidents of one supervisor."""

    def __init__(self, session: Session, log: IncidentLog, losses: Losses, observer: Observer) -> None:
        self._session = session
        self._log = log
        self._losses = losses
        self._observer = observer
        self._dead_nodes: list[str] = []

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
        last_reason, reported = "", False
        while True:
            early = investigation.rounds < _EARLY_CAPTURES
            pause_s = settings.corroborate_after_s if early else settings.recapture_s
            if await self._silence_ends(attempt, pause_s, assessment.level):
                self._drop(attempt)
                return None
            due = self._urgent_faults(attempt)
            if due is None:
                await investigation.capture()
            else:
                due = await self._capture_briefly(attempt, investigation)
            await self._find_dead_nodes(attempt)
            if attempt.raised:
                await self._read_rules()
            verdict = investigation.judge() if due is None else self._blame(attempt, investigation, due)
            assessment = attempt.assess(settings)
            if assessment.level is SilenceLevel.QUIET and due is None:
                self._drop(attempt)
                return None
            overdue = assessment.level is SilenceLevel.OVERDUE
            order = await self._decide(attempt, start, investigation, verdict, overdue=overdue)
            if order.plan.road is not Road.ALERT_ONLY:
                return await self._conclude(attempt, order)
            if overdue and not reported:
                # No action is allowed, and the job will not go on by itself: a person has to know.
                reported = True
                log.update(outcome="Alert only: nothing was done.")
                await session.job.report(log.incident, session.config.mode)
            log.save()
            if order.plan.reason != last_reason:
                last_reason = order.plan.reason
                session.folder.log_event("waiting", last_reason, incident=log.incident.id)

    async def _silence_ends(self, attempt: AttemptState, pause_s: float, level: SilenceLevel) -> bool:
        """Wait for the next capture; True as soon as the silence ends, by progress or by an exit.

        The wait is also over where the silence reaches a higher level than this one: an action at the limit must not
        wait for the next capture.
        """
        session, clock = self._session, self._session.clock
        deadline = clock.monotonic_s() + pause_s
        while clock.monotonic_s() < deadline:
            await clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)
            gone = session.launcher_gone or session.attached_srun_gone
            if gone or session.srun_exit_code is not None or attempt.exits:
                return True
            reached = attempt.assess(session.settings).level
            if reached is SilenceLevel.QUIET:
                return True
            if reached > level or self._urgent_faults(attempt) is not None:
                return False
        return False

    def _drop(self, attempt: AttemptState) -> None:
        """The silence ended by itself, or by an exit that is handled next."""
        session, log = self._session, self._log
        # The pause is a sample of its own now; another capture of the same pause would show nothing new.
        attempt.quiet_until_s = session.clock.now_s() + session.settings.corroborate_after_s
        incident = log.close("It went on by itself; nothing was done.")
        if not attempt.exits and session.srun_exit_code is None:
            session.folder.log_event("cleared", "training moves again; nothing was done", incident=incident.id)
            log.count_idle_suspicion()
        session.job.withdraw_suspicion()

    async def rank_died(self, attempt: AttemptState, start: AttemptStart) -> Outcome:
        """A rank died: read the others' last lines, take their stacks, judge."""
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
        if attempt.fleet.alive and session.srun_exit_code is None:
            await investigation.capture()
        return await self._judge_end(attempt, start, investigation)

    async def step_failed(self, attempt: AttemptState, start: AttemptStart, code: int) -> Outcome:
        """Srun has ended with this exit code: by a failure, or because somebody wanted it."""
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

    async def proven(self, attempt: AttemptState, start: AttemptStart, suspicion: ProvenSuspicion) -> Outcome:
        """Open the incident that quiet captures have proven, capture once more, and judge."""
        self._log.open(attempt.name, suspicion.fault_at_s, suspicion.text, suspicion.signal)
        investigation = Investigation(self._session, attempt, self._log)
        investigation.take_over(suspicion.investigation)
        await investigation.capture()
        verdict = investigation.judge()
        ended = suspicion.finished and verdict.conclusion is Conclusion.USER_CODE
        return await self._conclude(attempt, await self._decide(attempt, start, investigation, verdict, ended=ended))

    async def node_faults(self, attempt: AttemptState, start: AttemptStart, due: FaultsDue) -> Outcome:
        """Leave nodes for what they have reported, without waiting for a hang."""
        session, log = self._session, self._log
        text = due.text
        if due.only_announced and log.current is not None:
            # The open incident is that of the attempt before; it ends with the first new step.
            self._acknowledge(due)
            session.folder.log_event("note", text)
            return None
        log.open(attempt.name, min(s.at_s for s in due.signals), text, nodes=sorted(due.nodes))
        investigation = Investigation(session, attempt, log)
        self._dead_nodes = []  # of an earlier incident; Slurm is not asked, since nothing may delay this one
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
            order = await self._decide(attempt, start, investigation, verdict, ended=ended)
        return await self._conclude(attempt, order, of_nodes=True)

    async def _capture_briefly(self, attempt: AttemptState, investigation: Investigation) -> FaultsDue | None:
        """Take stacks, and wait for what other nodes report of the same event; returns what is due then."""
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
        """Nodes to leave at once; a storm is announced later."""
        due = urgent_faults(self._session, attempt)
        return due if due is not None and not due.storm else None

    def _blame(self, attempt: AttemptState, investigation: Investigation, due: FaultsDue) -> Verdict:
        """The verdict on nodes that have reported a fault; what they reported so far counts as handled."""
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
        await self._find_dead_nodes(attempt)
        order = await self._decide(attempt, start, investigation, investigation.judge(), ended=True)
        return await self._conclude(attempt, order)

    async def _read_rules(self) -> None:
        """Read the rules for the ranks' last lines, while those are still on their way: it takes 0.1 s."""
        session = self._session
        if session.rules is not None:
            return
        try:
            session.rules = await asyncio.to_thread(matcher_with, session.config.diagnose.rules)
        except Exception as error:  # noqa: BLE001 (a fault in a file of rules must not end the supervision)
            text = f"the site's rules are left out, the package's own are used: {error}"
            session.folder.log_event("note", f"{text}. Try: srobust diagnose rules --check FILE")

    async def _refusal(self, attempt: AttemptState, code: int) -> str:
        """Srun's message, where it has ended because it refuses its own options; else empty."""
        session = self._session
        if code != srun_refusal.REFUSED or session.command is None or attempt.fleet.ranks:
            return ""
        return await srun_refusal.refusal(session.command.options, session.environment)

    async def _gather_exits(self, attempt: AttemptState) -> None:
        """Wait a moment for the ends of other ranks, and for Slurm's word that somebody wanted them."""
        clock = self._session.clock
        reading = asyncio.create_task(self._read_rules())
        deadline = clock.monotonic_s() + _GRACE_S
        # Agents may report all ends before the last lines of the output are read.
        await self._observer.poll(attempt)
        while clock.monotonic_s() < deadline and not attempt.cancelled:
            if len(attempt.exits) >= attempt.fleet.world and not _as_cancelled(attempt):
                break
            await clock.sleep(_PAUSE_S)
            await self._observer.poll(attempt)
        attempt.add_last_lines()
        await reading

    async def _find_dead_nodes(self, attempt: AttemptState) -> None:
        """Ask Slurm which nodes are lost: the death of a rank with its node is the node's fault."""
        session, now_s = self._session, self._session.clock.now_s()
        try:
            used = nodes_in_use(session, attempt)
            drains = await asyncio.to_thread(drain_watch.read, session, used)
            answering = attempt.fleet.heard_within(now_s, SILENT_AGENT_S)
            self._dead_nodes = lost_nodes(session.allocation.nodes, drains.nodes, answering)
            drain_watch.take(session, drains, used)
            session.node_faults.pass_on(attempt.signals, session.folder)
        except SlurmError as error:
            session.folder.log_event("note", f"Slurm could not be asked about the job's nodes: {error}")
            self._dead_nodes = []
        # Rebuilt each time: a node that is back is no evidence any more.
        known = {x.node: x for x in attempt.signals if x.kind is SignalKind.NODE_DOWN}
        attempt.signals[:] = [x for x in attempt.signals if x.kind is not SignalKind.NODE_DOWN]
        text = "Slurm calls it down or not responding"
        for node in self._dead_nodes:
            signal = known.get(node) or Signal(SignalKind.NODE_DOWN, now_s, "slurm", text, node=node)
            attempt.signals.append(signal)

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def _decide(
        self,
        attempt: AttemptState,
        start: AttemptStart,
        investigation: Investigation,
        verdict: Verdict,
        *,
        overdue: bool = False,
        ended: bool = False,
    ) -> ExecutePlan:
        bad_loss, failure = await self._losses.bad(attempt), investigation.failure
        situation = await read_situation(
            self._session, attempt, start, verdict, failure=failure, dead_nodes=self._dead_nodes
        )
        over = ended and situation.over
        situation = replace(situation, bad_loss=bad_loss, action_limit_reached=overdue, ended=ended, over=over)
        plan = decide(situation)
        self._log.update(plan=plan)
        return ExecutePlan(verdict, plan, investigation.failure, situation.trains)

    async def _conclude(self, attempt: AttemptState, order: ExecutePlan, *, of_nodes: bool = False) -> Outcome:
        """Report verdict and plan; returns the plan where it is to be executed.

        `of_nodes`: nodes have reported faults, and nothing is known to be wrong with the training.
        """
        session, log, plan = self._session, self._log, order.plan
        self._report_verdict(order.verdict)
        log.set_time("decided")
        if session.attached_srun_gone:
            # The script owns its srun, and has gone on.
            text = "its srun has ended: there is no step left to recover"
            session.folder.log_event("note", text, incident=log.incident.id)
            return self._leave_alone(attempt, "The step's srun had ended: nothing was done.")
        if not session.acting:
            log.update(outcome="Observe mode: nothing was done.")
            log.save()
            await session.job.report(log.incident, Mode.OBSERVE)
            text = f"observe mode: would take {plan.road.value}: {plan.reason}"
            session.folder.log_event("observed", text, incident=log.incident.id)
            return self._leave_alone(attempt, log.incident.outcome, of_nodes=of_nodes)
        log.save()
        session.folder.log_event("decided", f"{plan.road.value}: {plan.reason}", road=plan.road.value, evict=plan.evict)
        if plan.road in _WITHOUT_THE_DAEMON:
            await session.job.report(log.incident, Mode.ACT)
        if plan.road is Road.ALERT_ONLY:
            outcome = "Alert only: nothing was done."
            return self._leave_alone(attempt, outcome, session.settings.recapture_s, of_nodes=of_nodes)
        return order

    def _report_verdict(self, verdict: Verdict) -> None:
        folder, incident = self._session.folder, self._log.incident.id
        text = f"{verdict.reason}: {verdict.detail}" if verdict.detail else verdict.reason
        folder.log_event("verdict", f"{verdict.conclusion.value}: {text}", incident=incident)
        for suspect in verdict.suspects:
            ranks = ",".join(map(str, suspect.ranks))
            text = f"suspect: rank {ranks} on {suspect.node}, confidence {suspect.confidence:.2f}"
            if suspect.why not in verdict.reason:
                text += f": {suspect.why}"
            folder.log_event(
                "suspect",
                text,
                node=suspect.node,
                ranks=suspect.ranks,
                confidence=suspect.confidence,
                why=suspect.why,
                incident=incident,
            )

    def _leave_alone(
        self, attempt: AttemptState, outcome: str, quiet_s: float | None = None, *, of_nodes: bool = False
    ) -> Exit | None:
        """Do nothing. For a while the same silence is not handled again: the result would be the same.

        The announced suspicion stays until training moves again, since nothing was done about it.
        """
        session = self._session
        self._log.close(outcome)
        if of_nodes:  # a silence or an end of the training is handled next
            session.job.withdraw_suspicion()
            return None
        self._log.count_idle_suspicion()
        attempt.exits.clear()
        quiet_s = session.settings.action_limit_s if quiet_s is None else quiet_s
        attempt.quiet_until_s = session.clock.now_s() + quiet_s
        return Exit(session.srun_exit_code) if session.srun_exit_code is not None else None
