"""Tests the nodes of the job between two attempts, as a step of its own allocation. It does not decide anything.

If the tests fail in any way, the recovery goes on: then the tests have no result, and no node is blamed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from slurm_robust.core.model import Plan, TestName
from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.slurm import topology
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import TestReport
from slurm_robust.stoptime.run import Progress, TestRun, TestRunError, TestSettings, least_bandwidths
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.replay_settings import replay_spec
from slurm_robust.supervise.incident.verdict_of_tests import not_tested, outcome_of
from slurm_robust.supervise.recover import step_control
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.observer import Observer

_POLL_S = 0.1
_OVERTIME_S = 45.0
"""The tests keep their budget by themselves, and need a while to end their step; after this time they hang."""
_END_S = 16.0
"""For cancelled tests to end their step, by signals at last."""
_SLURM_CONF = "/etc/slurm/slurm.conf"


class NodesUnderTest(Protocol):
    """One run of the tests; `stoptime.run.TestRun`, or a test's own."""

    left_step: str
    left_replay: list[str]

    async def run(self) -> TestReport:
        """Carry out the tests; their step has ended when this returns or raises."""


StartTests = Callable[[StepTarget, Sequence[TestName], TestSettings, Progress], NodesUnderTest]


class NodeTests:
    """Carries out the tests of a plan.

    Attributes:
        log: The incidents; the results of the tests are written into the current one.
    """

    def __init__(self, session: Session, log: IncidentLog, observer: Observer, start: StartTests = TestRun) -> None:
        self._session = session
        self.log = log
        self._observer = observer
        self._start = start

    async def run(self, plan: Plan, attempt: AttemptState) -> TestOutcome:
        """Test the plan's nodes after the attempt has ended, and write the results into the incident."""
        clock = self._session.clock
        began_s = clock.monotonic_s()
        try:
            return await self._tested(plan, attempt, began_s)
        except TestRunError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 (a fault of ours in the tests must not end the recovery)
            why = f"the tests failed themselves: {error!r}; please report this"
        return not_tested(plan, why, clock.monotonic_s() - began_s)

    async def _tested(self, plan: Plan, attempt: AttemptState, began_s: float) -> TestOutcome:
        session, clock = self._session, self._session.clock
        left_out = await self._left_out(plan.test_nodes, attempt)
        nodes = tuple(node for node in plan.test_nodes if node not in left_out)
        if not nodes:
            raise TestRunError("no node can be tested: " + "; ".join(f"{n}: {why}" for n, why in left_out.items()))
        target = StepTarget(nodes, session.job.job_id, attempt.fleet.python or sys.executable)
        conf = session.config.slurm.conf or session.environment.get("SLURM_CONF", "") or _SLURM_CONF
        switches = await asyncio.to_thread(topology.read, conf)
        budget_s, replay = session.config.ladder.budget_s, None
        if TestName.REPLAY in plan.tests:
            budget_s, replay = session.config.ladder.replay_budget_s, replay_spec(session, attempt)
        least = least_bandwidths(session.config.nodecheck.options)
        settings = TestSettings(budget_s, switches, least, replay, layout=attempt.layout)
        run = self._start(target, plan.tests, settings, self._progress)
        report = await self._awaited(run, attempt, budget_s + _OVERTIME_S)
        self._keep(report)
        return outcome_of(report, left_out, clock.monotonic_s() - began_s)

    async def _left_out(self, nodes: Sequence[str], attempt: AttemptState) -> dict[str, str]:
        """Return nodes that cannot be tested, and why; processes of the ended attempt are killed there first."""
        session, allocation = self._session, self._session.allocation
        left_out = {n: "the job does not use it any more" for n in nodes if n not in allocation.nodes}
        left_out |= {n: "its agent does not answer" for n in nodes if n in allocation.silent_nodes}
        reachable = [n for n in nodes if n not in left_out]
        return left_out | await step_control.clear_nodes(session, attempt.fleet, reachable)

    def _progress(self, text: str) -> None:
        self._session.folder.log_event("testing", text, incident=self.log.incident.id)

    async def _awaited(self, run: NodesUnderTest, attempt: AttemptState, limit_s: float) -> TestReport:
        """Wait for the tests, as long as the launcher lives to start another attempt.

        Raises:
            TestRunError: the tests did not end, or were ended with the job.
        """
        session, clock = self._session, self._session.clock
        until_s = clock.monotonic_s() + limit_s
        task = asyncio.create_task(run.run())
        try:
            while not task.done():
                if session.launcher_gone:
                    raise TestRunError("the job ended during the tests")
                if clock.monotonic_s() > until_s:
                    raise TestRunError(f"the tests did not end within {limit_s:g} s")
                await clock.sleep(_POLL_S)
                # Meanwhile nodes may report faults, and agents that fell silent are started again.
                await self._observer.poll(attempt)
            return task.result()
        finally:
            await self._end(task, run)

    async def _end(self, task: asyncio.Task[TestReport], run: NodesUnderTest) -> None:
        """Have the tests' step end; if its agents do not end by themselves, by Slurm."""
        task.cancel()
        await asyncio.wait({task}, timeout=_END_S)
        job, folder = self._session.job, self._session.folder
        for step in filter(None, (*run.left_replay, run.left_step)):
            try:
                await asyncio.to_thread(job.client.signal, job.ref, "KILL", step.rpartition(".")[2])
            except SlurmError as error:
                folder.log_event("note", f"step {step} of the tests may still be there: {error}")

    def _keep(self, report: TestReport) -> None:
        """Write the whole report beside the incident, and the failures into the incident."""
        session, log = self._session, self.log
        incident = log.incident
        before = len(list((session.folder.path / incident.id).glob("tests-*.json")))
        text = json.dumps({"job": session.job.name, **report.to_json()}, ensure_ascii=False, indent=1)
        session.folder.write(f"{incident.id}/tests-{before + 1}.json", text + "\n")
        log.update(signals=(*incident.signals, *report.signals(session.clock.now_s())))
