"""A run of the tests over agents that answer, fail or fall silent, without Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slurm_robust.stoptime import run as run_module
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import FindingKind, TestName, TestReport
from slurm_robust.stoptime.run import TestRun, TestRunError

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
GOOD = {"wrong": {"all_gather": 0}, "gb_per_s": {"all_gather": 2.0}}


class FakeStep:
    """Agents that answer at once; a test says what a node does otherwise."""

    def __init__(self, target: StepTarget, handler: Callable[[dict[str, Any]], None]) -> None:
        self.nodes, self.tell = target.nodes, handler
        self.ended, self.errors = asyncio.Event(), ["srun: error: Unable to allocate resources: nodes are busy"]
        self.orders: list[dict[str, Any]] = []
        self.ready: dict[str, Any] = {"gpus": 0, "busy": "", "reason": ""}
        self.answer: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda node, order: GOOD
        self.busy: frozenset[str] = frozenset()

    async def start(self, *, wait_s: float, limit_s: float) -> None:
        """All agents come up."""
        for index, node in enumerate(self.nodes):
            self.tell({"t": "hello", "node": node, "host": "vm", "step": "1.0", "index": index})
            busy = "cuda:0 (50 of 80 GiB in use)" if node in self.busy else ""
            self.tell({"t": "ready", "node": node, **self.ready, "busy": busy})

    def send(self, order: dict[str, Any]) -> None:
        """Each node of the order answers."""
        self.orders.append(order)
        if order["c"] == "cancel":
            return
        members = {index for group in order.get("groups", []) for index, _ in group[2]}
        for index, node in enumerate(self.nodes):
            if members and index not in members:
                continue
            answer = self.answer(node, order)
            if answer is not None:
                self.tell({"t": "result", "node": node, "id": order["id"], **answer})

    async def end(self) -> bool:
        """Nothing runs."""
        return True


def run_over(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[FakeStep], None], *tests: TestName, budget_s: float = 60.0
) -> tuple[TestReport, FakeStep]:
    """The report of a run over `NODES`, and the step that it used."""
    steps: list[FakeStep] = []

    def made(target: StepTarget, handler: Callable[[dict[str, Any]], None]) -> FakeStep:
        steps.append(FakeStep(target, handler))
        change(steps[0])
        return steps[0]

    monkeypatch.setattr(run_module, "AgentStep", made)

    async def whole() -> TestReport:
        return await TestRun(StepTarget(NODES), tests, budget_s, lambda _: None).run()

    return asyncio.run(whole()), steps[0]


def test_healthy_nodes_need_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pairs side by side, each with a port of its own."""
    report, step = run_over(monkeypatch, lambda _: None, TestName.PAIRS)
    assert (report.verdict, report.bandwidth) == ("passed", {"all_gather": 2.0})
    assert len(step.orders) == 1
    assert len({port for port, _, _ in step.orders[0]["groups"]}) == 3


def test_a_broken_node_is_named_and_the_node_of_a_used_gpu_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets n2 receives wrong numbers; n6 is left out from the beginning."""

    def broken(step: FakeStep) -> None:
        step.busy = frozenset({"n6"})

        def answer(node: str, order: dict[str, Any]) -> dict[str, Any]:
            group = next(g for g in order["groups"] if NODES.index(node) in [index for index, _ in g[2]])
            bad = 1 in [index for index, _ in group[2]]
            return {**GOOD, "wrong": {"all_gather": 7 if bad else 0}}

        step.answer = answer

    report, step = run_over(monkeypatch, broken, TestName.PAIRS)
    assert report.failed_nodes == ("n2",)
    untested = [f for f in report.findings if f.kind is FindingKind.UNTESTED]
    assert [(f.nodes, f.reason) for f in untested] == [
        (("n6",), "a GPU is in use by another process: cuda:0 (50 of 80 GiB in use)")
    ]
    assert all(5 not in [i for i, _ in g[2]] for order in step.orders for g in order.get("groups", []))


def test_a_full_check_that_cannot_tell_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfit fails with the check's own words; unknown, and a check that did not start, are untested."""
    said = {"n1": {"verdict": "unfit", "reason": "xid: XID 79"}, "n2": {"verdict": "unknown", "reason": "matmul: late"}}
    said["n3"] = {"error": "srobust check cannot be started"}

    def change(step: FakeStep) -> None:
        step.answer = lambda node, order: said.get(node, {"verdict": "fit"})

    report, _ = run_over(monkeypatch, change, TestName.IN_NODE)
    assert [(f.kind.value, f.nodes, f.reason) for f in report.findings] == [
        ("node", ("n1",), "xid: XID 79"),
        ("untested", ("n2",), "matmul: late"),
        ("untested", ("n3",), "srobust check cannot be started"),
    ]


def test_a_used_up_budget_is_said_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is left than a test needs: it is not begun."""
    report, step = run_over(monkeypatch, lambda _: None, TestName.PAIRS, TestName.ALIGNMENT, budget_s=5.0)
    assert report.verdict == "undecided"
    assert report.ended_early == "the budget of 5 s was used up before the test pairs"
    assert step.orders == []


def test_an_end_of_the_step_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the job ends, no node answers any more: that is no finding."""

    def ends(step: FakeStep) -> None:
        def answer(node: str, order: dict[str, Any]) -> None:
            step.ended.set()

        step.answer = answer

    report, _ = run_over(monkeypatch, ends, TestName.PAIRS, TestName.ALIGNMENT)
    assert (report.verdict, report.findings) == ("undecided", ())
    assert "the step ended during the test pairs" in report.ended_early


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileNotFoundError(2, "No such file or directory"), "srun cannot be started: No such file or directory"),
        (None, "no agent started, and srun ended: srun: error: Unable to allocate resources: nodes are busy"),
    ],
)
def test_srun_that_starts_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None, sentence: str
) -> None:
    """There is no srun, or Slurm refuses: with Slurm's own words."""

    def change(step: FakeStep) -> None:
        async def start(*, wait_s: float, limit_s: float) -> None:
            step.ended.set()
            if error is not None:
                raise error

        monkeypatch.setattr(step, "start", start)

    with pytest.raises(TestRunError, match=sentence.partition(":")[0]) as raised:
        run_over(monkeypatch, change, TestName.PAIRS)
    assert sentence in str(raised.value)
