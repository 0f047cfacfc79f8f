"""A run of the tests over agents that answer, fail or fall silent, without Slurm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.core.model import TestName
from slurm_robust.stoptime import run as run_module
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import FindingKind, TestReport
from slurm_robust.stoptime.run import TestRun, TestRunError, TestSettings

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
WELL: dict[str, Any] = {"wrong": {"products": 0, "memory": 0}, "gb_per_s": {"memory": 8.0}}
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
        self.torchless: frozenset[str] = frozenset()

    async def start(self, *, wait_s: float, limit_s: float) -> None:
        """All agents come up."""
        for index, node in enumerate(self.nodes):
            self.tell({"t": "hello", "node": node, "host": "vm", "step": "1.0", "index": index})
            if node in self.torchless:
                self.tell({"t": "no_torch", "node": node, "reason": "python cannot load PyTorch"})
                continue
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
            if "only" in order and index not in order["only"]:
                continue
            answer = self.answer(node, order)
            if answer is not None:
                if order["c"] == "devices":
                    self.tell({"t": "rank", "node": node, "id": order["id"], "device": "cpu", **WELL, **answer})
                if order["c"] == "step":
                    same = {"device": "cpu", "hardware": "one", "digests": ["d"] * order["repeats"]}
                    self.tell({"t": "digests", "node": node, "id": order["id"], **same})
                self.tell({"t": "result", "node": node, "id": order["id"], **answer})

    async def end(self) -> bool:
        """Nothing runs."""
        return True


def run_over(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[FakeStep], None],
    *tests: TestName,
    budget_s: float = 60.0,
    layout: dict[str, int] | None = None,
) -> tuple[TestReport, FakeStep]:
    """The report of a run over `NODES`, and the step that it used."""
    steps: list[FakeStep] = []

    def made(target: StepTarget, handler: Callable[[dict[str, Any]], None]) -> FakeStep:
        steps.append(FakeStep(target, handler))
        change(steps[0])
        return steps[0]

    monkeypatch.setattr(run_module, "AgentStep", made)

    async def whole() -> TestReport:
        settings = TestSettings(budget_s, layout=layout or {})
        return await TestRun(StepTarget(NODES), tests, settings, lambda _: None).run()

    return asyncio.run(whole()), steps[0]


def test_healthy_nodes_need_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pairs side by side, each with a port of its own."""
    report, step = run_over(monkeypatch, lambda _: None, TestName.PAIRS)
    assert (report.verdict, report.bandwidth) == ("passed", {"all_gather": 2.0})
    assert len(step.orders) == 2
    assert len({port for port, _, _ in step.orders[0]["groups"]}) == 3


def test_alignment_has_nodes_meet_only_in_the_shapes_of_a_known_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, and with nothing but data parallelism, each device is tested alone."""
    for layout in ({}, {"dp": 6, "tp": 1}):
        report, step = run_over(monkeypatch, lambda _: None, TestName.ALIGNMENT, layout=layout)
        assert (report.verdict, [order["c"] for order in step.orders]) == ("passed", ["step"])
    report, step = run_over(monkeypatch, lambda _: None, TestName.ALIGNMENT, layout={"ep": 4, "tp": 2, "dp": 3})
    assert (report.verdict, report.bandwidth) == ("passed", {})
    assert [order["shape"] for order in step.orders if order["c"] == "pairs"] == [["tp", "ep"]] * 2

    def broken(step: FakeStep) -> None:
        def answer(node: str, order: dict[str, Any]) -> dict[str, Any]:
            groups = [{step.nodes[index] for index, _ in group[2]} for group in order.get("groups", ())]
            wrong = any({"n2", node} <= group for group in groups)
            return {**GOOD, "wrong": {"a tensor-parallel step": 7}} if wrong else GOOD

        step.answer = answer

    report, _ = run_over(monkeypatch, broken, TestName.ALIGNMENT, layout={"tp": 2})
    assert report.failed_nodes == ("n2",)
    (finding,) = report.findings
    assert (finding.test, finding.kind) == (TestName.ALIGNMENT, FindingKind.NODE)
    assert "7 wrong numbers in a tensor-parallel step" in finding.reason


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
        step.answer = lambda node, order: said.get(node, {"verdict": "fit"}) if order["c"] == "check" else {}

    report, step = run_over(monkeypatch, change, TestName.IN_NODE)
    assert [(f.kind.value, f.nodes, f.reason) for f in report.findings] == [
        ("node", ("n1",), "xid: XID 79"),
        ("untested", ("n2",), "matmul: late"),
        ("untested", ("n3",), "srobust check cannot be started"),
    ]
    asked = [(order["c"], order.get("again"), order.get("only")) for order in step.orders]
    assert asked[:2] == [("check", None, None), ("check", True, [1])], "only what is unknown is tried again"


def test_a_check_that_answers_the_second_time_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe's deadline passed on a busy node; with more time it answers."""

    def change(step: FakeStep) -> None:
        def answer(node: str, order: dict[str, Any]) -> dict[str, Any]:
            late = order["c"] == "check" and node in ("n2", "n5") and not order.get("again")
            return {"verdict": "unknown" if late else "fit", "reason": "shm: did not answer within 5 s" if late else ""}

        step.answer = answer

    report, step = run_over(monkeypatch, change, TestName.IN_NODE)
    assert (report.verdict, report.findings) == ("passed", ())
    assert step.orders[1] | {"id": 0, "limit_s": 0.0} == {
        "c": "check", "again": True, "deadline_s": 30.0, "only": [1, 4], "id": 0, "limit_s": 0.0
    }  # fmt: skip


def test_a_device_that_computes_wrongly_names_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full check is fit, the known answer is not."""

    def change(step: FakeStep) -> None:
        def answer(node: str, order: dict[str, Any]) -> dict[str, Any]:
            if order["c"] == "check":
                return {"verdict": "fit", "reason": ""}
            return {"wrong": {"products": 2, "memory": 0}} if node == "n4" else {}

        step.answer = answer

    report, _ = run_over(monkeypatch, change, TestName.IN_NODE)
    assert report.failed_nodes == ("n4",)
    assert report.findings[0].reason == "cpu computes wrong products: 2 numbers or sums in 5 products"


def test_a_node_without_pytorch_is_checked_and_its_devices_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full check runs all the same; what was not computed is said."""

    def change(step: FakeStep) -> None:
        step.answer = lambda node, order: {"verdict": "fit", "reason": ""} if order["c"] == "check" else {}
        step.torchless = frozenset({"n2"})

    report, _ = run_over(monkeypatch, change, TestName.IN_NODE)
    assert (report.verdict, report.findings) == ("passed", ())
    assert report.notes == ("no devices were tested on n2: python cannot load PyTorch",)


def test_nvidias_own_tests_run_last_on_nodes_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing diagnosis names its node with its own sentence; a tool that is missing is said once for all nodes."""
    diagnosis = "dcgmi diag memory fails on GPU 3: page retirement"

    def change(step: FakeStep) -> None:
        step.ready = {"gpus": 8, "busy": "", "reason": ""}

        def answer(node: str, order: dict[str, Any]) -> dict[str, Any]:
            if order["c"] == "tools":
                return {"failed": diagnosis if node == "n3" else "", "notes": "", "missing": "nvbandwidth"}
            return {"verdict": "fit", "reason": ""}

        step.answer = answer

    report, step = run_over(monkeypatch, change, TestName.IN_NODE, budget_s=120.0)
    assert [(f.nodes, f.reason) for f in report.findings] == [(("n3",), diagnosis)]
    assert report.notes == ("not installed: nvbandwidth (n1, n2, n3, n4, n5, n6)",)
    assert (step.orders[-1]["c"], step.orders[-1]["eud"]) == ("tools", False)
    report, step = run_over(monkeypatch, change, TestName.IN_NODE, budget_s=39.0)
    assert "were not begun: they need 40 s or more" in report.notes[0]
    assert "tools" not in {order["c"] for order in step.orders}


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


def test_a_command_that_was_not_scheduled_takes_no_node_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still for 20 s; when it runs again one node's words are read first, and the others' a moment later."""
    late = {"s": 0.0}
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late["s"]))

    def change(step: FakeStep) -> None:
        def answer(node: str, order: dict[str, Any]) -> None:
            def stand_still() -> None:
                late["s"] = 20.0
                step.tell({"t": "beat", "node": "n1"})

            loop = asyncio.get_running_loop()
            if node == "n1":
                loop.call_later(0.05, stand_still)
            loop.call_later(0.2, step.tell, {"t": "result", "node": node, "id": order["id"], **GOOD})

        step.answer = answer

    report, _ = run_over(monkeypatch, change, TestName.PAIRS)
    assert (report.verdict, report.findings) == ("passed", ())


def test_a_replay_without_the_size_of_its_groups_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run on a guess."""
    with pytest.raises(TestRunError, match="how many nodes one group has"):
        run_over(monkeypatch, lambda _: None, TestName.REPLAY)


def test_a_round_that_the_budget_cuts_short_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """n2 needs longer than the seconds that are left, and would need less than a round may take."""

    def change(step: FakeStep) -> None:
        step.answer = lambda node, order: {"late": True} if node == "n2" else GOOD

    report, _ = run_over(monkeypatch, change, TestName.PAIRS, budget_s=10.0)
    assert (report.verdict, report.failed_nodes) == ("undecided", ())
    untested = next(f for f in report.findings if f.kind is FindingKind.UNTESTED)
    assert "s that the budget left" in untested.reason


def test_pytorch_that_does_not_load_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes are tested meanwhile; where nothing is left of the budget, no test is begun."""
    monkeypatch.setattr(run_module, "LOAD_S", 0.3)

    def silent(step: FakeStep) -> None:
        start = step.start

        async def without_n2(*, wait_s: float, limit_s: float) -> None:
            tell, step.tell = step.tell, lambda m: None if (m["t"], m["node"]) == ("ready", "n2") else tell(m)
            await start(wait_s=wait_s, limit_s=limit_s)
            step.tell = tell

        monkeypatch.setattr(step, "start", without_n2)

    report, _ = run_over(monkeypatch, silent, TestName.PAIRS, TestName.ALIGNMENT)
    assert [stage.name for stage in report.stages] == ["start", "load PyTorch", "pairs", "alignment", "end"]
    assert report.findings[0].nodes == ("n2",)
    monkeypatch.setattr(run_module, "LOAD_S", 3.0)
    report, step = run_over(monkeypatch, silent, TestName.PAIRS, budget_s=10.0)
    assert report.ended_early == "the budget of 10 s was used up before the test pairs"
    assert step.orders == []


def test_a_step_that_waits_says_slurms_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for, beside idle nodes, is not resources."""

    class Waits(FakeStep):
        async def start(self, **_: float) -> None:
            self.errors = ["srun: job 11 queued and waiting for resources"]

    monkeypatch.setattr(run_module, "AgentStep", Waits)
    monkeypatch.setattr(run_module, "START_S", 0.1)

    async def whole() -> None:
        why = {"11": " (QOSNotAllowed)"}.__getitem__
        await TestRun(StepTarget(NODES), (TestName.PAIRS,), TestSettings(60.0), lambda _: None, why).run()

    with pytest.raises(TestRunError, match=r"queued and waiting for resources \(QOSNotAllowed\)"):
        asyncio.run(whole())
