"""How the tests of a plan are carried out between two attempts: on which nodes, with what end, and what is kept."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from fake_tests import FakeTests, node_fails
from supervised import World

from slurm_robust.core.model import Plan, Road, SignalKind, TestName
from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.stoptime.conclusion import FindingKind, TestFinding
from slurm_robust.stoptime.run import TestRunError
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.recover.node_tests import NodeTests
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.observer import Observer

NODES = ("n1", "n2", "n3", "n4")
PLAN = Plan(Road.TEST, "nothing explains it", tests=(TestName.IN_NODE, TestName.PAIRS), test_nodes=NODES)


class Tested:
    """A job whose attempt has ended, and an open incident."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, command="-N4 python train.py", nodes=NODES)
        self.attempt: AttemptState = self.world.attempt()
        self.log = IncidentLog(self.world.session)

    def run(self, fake: FakeTests, plan: Plan = PLAN) -> TestOutcome:
        """The tests of a plan."""

        async def runs() -> TestOutcome:
            self.log.open("1.0.1.1", self.world.clock.at_s, "silence suspected")
            session = self.world.session
            return await NodeTests(session, self.log, Observer(session), fake).run(plan, self.attempt)

        return asyncio.run(runs())

    def report(self, number: int = 1) -> dict[str, object]:
        """What was kept of a run."""
        folder = self.world.session.folder.path / self.log.incident.id
        found: dict[str, object] = json.loads((folder / f"tests-{number}.json").read_text())
        return found


@pytest.fixture
def tested(tmp_path: Path) -> Tested:
    """Four nodes."""
    return Tested(tmp_path)


def test_what_fails_is_told_kept_and_a_signal_of_the_incident(tested: Tested) -> None:
    """The whole report stands beside the incident; each stage is in the story."""
    link = TestFinding(TestName.PAIRS, FindingKind.LINK, ("n1", "n2"), "wrong numbers")
    open_ = TestFinding(TestName.PAIRS, FindingKind.UNTESTED, ("n4",), "no PyTorch")
    found = tested.run(FakeTests((node_fails("n3", "wrong numbers"), link, open_)))
    assert found.failed == {"n3": "n3 fails the test pairs: wrong numbers"}
    assert found.links == {("n1", "n2"): "the link between n1 and n2 fails the test pairs: wrong numbers"}
    assert found.open == ("pairs of n4: no PyTorch",)
    assert (found.tests, found.nodes) == (PLAN.tests, NODES)
    assert (tested.report()["job"], tested.report()["failed_nodes"]) == (tested.world.job.name, ["n3"])
    failed = [s for s in tested.log.incident.signals if s.kind is SignalKind.TEST_FAILED]
    assert [s.node for s in failed] == ["n3", "n1", "n2"]
    assert tested.world.text("testing") == "starting an agent on 4 nodes"


def test_each_run_of_an_incident_is_kept(tested: Tested) -> None:
    """The second beside the first."""
    tested.run(FakeTests())
    session = tested.world.session
    again = NodeTests(session, tested.log, Observer(session), FakeTests((node_fails("n1", "x"),)))
    asyncio.run(again.run(PLAN, tested.attempt))
    assert (tested.report(1)["verdict"], tested.report(2)["verdict"]) == ("passed", "failed")


def test_nodes_that_cannot_be_reached_are_left_out_and_not_blamed(tested: Tested) -> None:
    """Evicted, its agent silent, or not clear of the attempt's processes."""
    world = tested.world
    world.session.allocation.evicted = {"n1"}
    world.session.allocation.silent_nodes = ["n2"]
    world.agents.still_running["n3"] = [4711]
    fake = FakeTests()
    found = tested.run(fake)
    assert [target.nodes for target, _, _ in fake.started] == [("n4",)]
    assert found.failed == {}
    assert found.open == (
        "n1: not tested: the job does not use it any more",
        "n2: not tested: its agent does not answer",
        "n3: not tested: processes [4711] outlive SIGKILL",
    )


def test_without_any_node_nothing_is_started(tested: Tested) -> None:
    """And nothing is known."""
    tested.world.session.allocation.evicted = set(NODES)
    fake = FakeTests()
    found = tested.run(fake)
    assert fake.started == []
    assert found.open[0].startswith("no node can be tested: n1: the job does not use it any more")


def test_the_tests_load_the_pytorch_of_the_ranks(tested: Tested) -> None:
    """By the Python of most ranks; by our own where no agent has seen one."""
    fake = FakeTests()
    tested.run(fake)
    for rank, python in enumerate(("/env/bin/python", "/other/bin/python", "/env/bin/python")):
        found = {"t": "rank", "n": "n1", "rank": rank, "pid": 100 + rank, "step_id": "0", "world": 3, "at": 1.0}
        tested.world.session.receive(from_agent({**found, "python": python}))
    tested.run(fake)
    assert [target.rank_python for target, _, _ in fake.started] == [sys.executable, "/env/bin/python"]
    assert fake.started[0][0].job_id == tested.world.job.job_id
    assert fake.started[0][2] == tested.world.session.config.ladder.budget_s


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TestRunError("no agent started, and srun ended"), "no agent started, and srun ended"),
        (ZeroDivisionError("x"), "the tests failed themselves: ZeroDivisionError('x'); please report this"),
    ],
    ids=["expected", "a bug"],
)
def test_a_run_that_fails_tells_nothing_and_stops_nothing(tested: Tested, error: Exception, why: str) -> None:
    """No node is blamed, and no report is kept."""
    found = tested.run(FakeTests((node_fails("n1", "x"),), raises=error))
    assert (found.failed, found.links, found.open) == ({}, {}, (why,))
    assert not list((tested.world.session.folder.path / tested.log.incident.id).glob("tests-*"))


def test_a_run_that_hangs_is_cancelled_and_its_step_killed(tested: Tested) -> None:
    """Its own budget is over: some fault of ours. What its agents leave is ended by Slurm."""
    fake = FakeTests(hangs=True, left_step="1.7")
    began_s = tested.world.clock.at_s
    found = tested.run(fake)
    budget_s = tested.world.session.config.ladder.budget_s
    assert found.open == (f"the tests did not end within {budget_s + 45:g} s",)
    assert tested.world.clock.at_s - began_s < budget_s + 60
    assert fake.cancelled == 1
    assert "signal 1" in tested.world.slurm.acts


def test_the_launchers_end_ends_the_tests(tested: Tested) -> None:
    """The job is over: nobody would start another attempt."""
    channel = tested.world.channel
    assert channel is not None
    fake = FakeTests(hangs=True, on_run=channel.gone.set)
    found = tested.run(fake)
    assert fake.cancelled == 1
    assert found.open == ("the job ended during the tests",)
