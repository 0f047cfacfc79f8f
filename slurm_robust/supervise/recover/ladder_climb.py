"""Climbs a rung with tests: ends the attempt, has its nodes tested, and has the incident decided again.

The rung is remembered before the tests begin: if the supervisor is killed during the tests, they do not begin again.
"""

from __future__ import annotations

from slurm_robust.core.model import Road
from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.supervise.incident.decider import Decider
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.outcome import ExecutePlan, Outcome
from slurm_robust.supervise.recover.node_tests import NodeTests
from slurm_robust.supervise.recover.plan_executor import PlanExecutor
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState


class LadderClimb:
    """Carries out plans whose road is TEST, until another road is the plan."""

    def __init__(
        self, session: Session, store: LineageStore, decider: Decider, executor: PlanExecutor, tests: NodeTests
    ) -> None:
        self._session = session
        self._store = store
        self._log = tests.log
        self._decider = decider
        self._executor = executor
        self._tests = tests

    async def climb(self, order: ExecutePlan, attempt: AttemptState) -> Outcome:
        """Test until the plan takes another road; return that plan, or None if the job ended meanwhile."""
        await self._executor.end_attempt(order.plan, attempt)
        outcome: Outcome = order
        while isinstance(outcome, ExecutePlan) and outcome.plan.road is Road.TEST:
            found = await self._one_rung(outcome, attempt)
            if self._session.launcher_gone:
                return None
            outcome = await self._decider.decide_again(outcome, attempt, found, self._store.lineage.ladder)
        return outcome

    async def _one_rung(self, order: ExecutePlan, attempt: AttemptState) -> TestOutcome:
        session, log, plan = self._session, self._log, order.plan
        self._store.climbed(order)
        log.set_time("tests_started")
        log.save()
        names, count = ", ".join(test.value for test in plan.tests), len(plan.test_nodes)
        text = f"testing {count} node{'' if count == 1 else 's'}: {names}"
        session.folder.log_event(
            "testing", text, incident=log.incident.id, tests=[test.value for test in plan.tests], nodes=plan.test_nodes
        )
        # These values are of an earlier plan; the daemon would take them for this incident's.
        self._store.update_claim(road="", mode="", suspects=(), evict=(), conclusion="", grade="", confidence=0.0)
        session.job.tell(incident=log.incident.id, why=f"{text}: {plan.reason}", times=dict(log.incident.times))
        found = await self._tests.run(plan, attempt)
        self._store.climbed(order, found)
        log.move_time("tests_done")
        log.add_note(f"{found.sentence[0].upper()}{found.sentence[1:]}.")
        log.save()
        session.folder.log_event(
            "tested", found.sentence, incident=log.incident.id, failed=sorted(found.failed), took_s=found.took_s
        )
        return found
