"""Makes a plan from a verdict: asks the policy, and reports and writes down the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurm_robust.core.model import Mode, Plan, Road, Verdict, road_words
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.consequences import Silence
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.eviction import by_tests
from slurm_robust.policy.job.ladder import LadderMemory, TestOutcome
from slurm_robust.supervise.incident.dead_nodes import find_dead_nodes
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.incident.ladder_state import ladder_options, too_late
from slurm_robust.supervise.incident.left_alone import due_in_s_of, nobody_may_act
from slurm_robust.supervise.incident.situation import named_nodes, read_situation
from slurm_robust.supervise.incident.verdict_of_tests import verdict_after
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.outcome import ExecutePlan, Exit, Outcome
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use
from slurm_robust.supervise.watch.losses import Losses

_WITHOUT_THE_DAEMON = (Road.RESTART_IN_PLACE, Road.SPARE_IN_ALLOCATION, Road.STOP, Road.ALERT_ONLY)
"""Roads that are only reported, since the job takes them by itself. Other roads begin with a claim to the daemon."""


_AGAIN = "a restart from the newest checkpoint would come to the same"


@dataclass(frozen=True)
class Judged:
    """The facts that a decision is made from.

    Attributes:
        verdict: The verdict on who is at fault.
        dead_nodes: Nodes that Slurm calls lost.
        overdue: The silence is over the action limit.
        ended: The attempt has ended by itself.
        bad_loss: Why the loss of an attempt that goes on is bad; empty if the incident is not about a bad loss.
        slow: Why the attempt is slow, with no node known to be the slow one; empty if the incident is not about that.
        silent_s: How long the attempt has made no progress; None if the incident is not about a silence.
        to_be_continued: Stopped ranks that get a SIGCONT, before anything else is done.
    """

    verdict: Verdict
    dead_nodes: tuple[str, ...] = ()
    overdue: bool = False
    ended: bool = False
    bad_loss: str = ""
    slow: str = ""
    silent_s: float | None = None
    to_be_continued: frozenset[int] = frozenset()


class Decider:
    """Decides about the current incident."""

    def __init__(self, session: Session, log: IncidentLog, losses: Losses) -> None:
        self._session = session
        self._log = log
        self._losses = losses

    async def decide(
        self, attempt: AttemptState, start: AttemptStart, investigation: Investigation, judged: Judged
    ) -> ExecutePlan:
        """Ask the policy for a plan; nothing is reported yet."""
        bad_loss, failure = await self._losses.bad(attempt), investigation.failure
        if bad_loss is None and judged.bad_loss:
            bad_loss = BadLoss(judged.bad_loss, limit=self._session.config.checkpoint.rollbacks)
        situation = await read_situation(
            self._session, attempt, start, judged.verdict, failure=failure, dead_nodes=judged.dead_nodes
        )
        over = judged.ended and situation.over
        silence = None
        if judged.silent_s is not None:
            silence = Silence.of(judged.silent_s, attempt.pause_kind, start.pauses, self._session.settings)
        named = {rank for suspect in judged.verdict.suspects for rank in suspect.ranks}
        continues = bool(named) and named <= judged.to_be_continued
        situation = replace(
            situation,
            continue_after_s=self._session.settings.continue_stopped_after_s if continues else 0.0,
            bad_loss=bad_loss,
            action_limit_reached=judged.overdue,
            ended=judged.ended,
            over=over,
            apart_nodes=investigation.apart.nodes,
            apart_group=investigation.apart.group,
            slow=judged.slow,
            silence=silence,
        )
        plan = decide(situation)
        if judged.bad_loss and not _changes_something(plan):
            plan = Plan(Road.ALERT_ONLY, f"{judged.bad_loss}. Nothing is done while the training goes on: {_AGAIN}")
        self._log.update(plan=plan)
        return ExecutePlan(judged.verdict, plan, failure, situation.trains, situation)

    async def decide_again(
        self, order: ExecutePlan, attempt: AttemptState, found: TestOutcome, ladder: LadderMemory
    ) -> Outcome:
        """Ask the policy again about an attempt that was ended for tests, with the results of the tests.

        Otherwise only the nodes' reports since then are new.
        """
        session, log, before = self._session, self._log, order.situation
        assert before is not None
        dead = await find_dead_nodes(session, attempt)
        nodes = session.allocation.nodes
        faulty = session.node_faults.faulty(nodes, nodes_in_use(session, attempt)).all
        linked = {node for pair in found.links for node in pair}
        unusable = {*dead, *faulty, *session.allocation.silent_nodes}
        situation = replace(
            before,
            tested=(*before.tested, found),
            ladder=ladder,
            ladder_options=ladder_options(session, attempt),
            dead_nodes=dead,
            faulty_nodes=faulty,
            excluded_named=before.excluded_named | named_nodes(session, {*dead, *faulty, *found.failed, *linked}),
            healthy_spares=tuple(node for node in before.healthy_spares if node not in unusable),
            now_s=session.clock.now_s(),
        )
        verdict = order.verdict
        if by_tests(situation):  # so many nodes that they share a cause are called no culprits
            verdict = verdict_after(verdict, found, attempt.fleet.rank_nodes)
        plan = decide(situation)
        if plan.road is Road.ALERT_ONLY:
            # The attempt was ended for the tests: it cannot be left alone any more.
            plan = replace(plan, road=Road.RESTART_IN_PLACE)
        log.update(plan=plan)
        if verdict != order.verdict:
            log.set_verdict(verdict)
            self._report_verdict(verdict)
        return await self.conclude(attempt, replace(order, verdict=verdict, plan=plan, situation=situation))

    async def conclude(self, attempt: AttemptState, order: ExecutePlan, *, goes_on: bool = False) -> Outcome:
        """Report verdict and plan; return the plan if it is to be executed.

        `goes_on`: the incident is about faults of nodes or a bad loss, so without an action the attempt goes on.
        """
        session, log, plan = self._session, self._log, order.plan
        # An attempt that was ended for tests must get a successor, whatever has changed meanwhile.
        committed = order.situation is not None and bool(order.situation.tested)
        if not committed:
            self._report_verdict(order.verdict)
        if plan.rung and (why := too_late(session)):
            session.folder.log_event("note", why, incident=log.incident.id)
        log.set_time("decided")
        if session.attached_srun_gone:
            # The script owns its srun, and has gone on.
            text = "its srun has ended: there is no step left to recover"
            session.folder.log_event("note", text, incident=log.incident.id)
            return self._leave_alone(attempt, "The step's srun had ended: nothing was done.")
        if not session.acting and not committed:
            why = session.why_idle
            log.update(outcome=f"{why[0].upper()}{why[1:]}: nothing was done.")
            log.save()
            await session.job.report(log.incident, Mode.OBSERVE)
            text = f"{why}: would take {road_words(plan.road.value)}: {plan.reason}"
            session.folder.log_event("observed", text, incident=log.incident.id)
            return self._leave_alone(attempt, log.incident.outcome, goes_on=goes_on)
        log.save()
        text = f"{road_words(plan.road.value)}: {plan.reason}"
        session.folder.log_event("decided", text, road=plan.road.value, evict=plan.evict)
        if plan.road in _WITHOUT_THE_DAEMON:
            await session.job.report(log.incident, Mode.ACT)
        if plan.road is Road.ALERT_ONLY:
            # Where nobody may act, the same evidence a little later would be another incident of the same hang.
            final = nobody_may_act(order, due_in_s_of(order))
            quiet_s = session.settings.action_limit_s if final else session.settings.recapture_s
            return self._leave_alone(attempt, "Alert only: nothing was done.", quiet_s, goes_on=goes_on)
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
        self, attempt: AttemptState, outcome: str, quiet_s: float | None = None, *, goes_on: bool = False
    ) -> Exit | None:
        """Do nothing. For a while this silence is not handled again, unless training moves and then is silent again.

        The announced suspicion stays until training moves again, since nothing was done about it.
        """
        session = self._session
        self._log.close(outcome)
        if goes_on:  # a silence or an end of the training is handled next
            session.job.withdraw_suspicion()
            return None
        self._log.count_idle_suspicion()
        attempt.exits.clear()
        quiet_s = session.settings.action_limit_s if quiet_s is None else quiet_s
        attempt.left_alone_at_s = session.clock.now_s()
        attempt.quiet_until_s = attempt.left_alone_at_s + quiet_s
        return Exit(session.srun_exit_code) if session.srun_exit_code is not None else None


def _changes_something(plan: Plan) -> bool:
    """Return whether the next start of an attempt that goes on would differ from its last start."""
    return bool(plan.rung or plan.evict or plan.roll_back or plan.code) or plan.road in (Road.STOP, Road.TEST)
