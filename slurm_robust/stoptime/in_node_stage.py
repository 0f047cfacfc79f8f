"""Runs the stages of the test within the nodes: the full check, the devices, and NVIDIA's own tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_robust.core.model import TestName
from slurm_robust.stoptime import in_node, node_tools
from slurm_robust.stoptime.agent_state import AgentState
from slurm_robust.stoptime.conclusion import FindingKind, TestFinding, count_of, untested

DEVICES_S = 60.0
AGAIN_DEADLINE_S = 30.0
"""Of each check that came to no answer in the first run: a busy node needs longer."""


@dataclass(frozen=True)
class Orders:
    """The functions and facts with which a stage gives orders to the nodes.

    Attributes:
        states: The state of each node of the run.
        gone: Node that left the test → the reason.
        there: Returns the nodes that have not left.
        able: Returns the nodes that can run ranks, and why the others cannot.
        limit: Returns how long a stage may take, up to the given time; 0 if the budget leaves too little.
        order: Gives an order to some nodes, waits for their answers, and returns the order's number.
        progress: Tells the user a sentence.
    """

    budget_s: float
    states: Mapping[str, AgentState]
    gone: Mapping[str, str]
    there: Callable[[], list[str]]
    able: Callable[[], tuple[list[str], dict[str, str]]]
    limit: Callable[[float], float]
    order: Callable[[Iterable[str], float, dict[str, Any]], Awaitable[int]]
    progress: Callable[[str], None]


class InNodeStage:
    """One run of the test within the nodes.

    Attributes:
        findings: The findings of the stages so far.
        notes: Sentences about tests that were not made, without blame for a node.
        ended_early: Why the test was not finished; empty if it was.
    """

    def __init__(self, orders: Orders, least_gb_per_s: Mapping[str, float] | None = None, *, eud: bool = False) -> None:
        self._orders = orders
        self._eud = eud
        self._least_gb_per_s = least_gb_per_s or {}
        self.findings: list[TestFinding] = []
        self.notes: list[str] = []
        self.ended_early = ""

    def with_gpus(self) -> list[str]:
        """Return nodes whose GPUs can be tested."""
        return [node for node in self._orders.able()[0] if self._orders.states[node].gpus]

    async def checks(self) -> None:
        """Run the full check of each node; a check without an answer is tried once more, with more time."""
        self._orders.progress(f"in-node: the full check of {count_of(self._orders.there())}")
        limit_s = self._orders.limit(self._orders.budget_s)
        number = await self._orders.order(self._orders.there(), limit_s, {"c": "check"})
        unknown = [
            n
            for n in self._orders.there()
            if self._orders.states[n].answers.get(number, {}).get("verdict") == "unknown"
        ]
        last = dict.fromkeys(self._orders.there(), number)
        if unknown and (again_s := self._orders.limit(self._orders.budget_s)):
            self._orders.progress(f"in-node: once more what {count_of(unknown)} could not answer")
            only = [self._orders.states[node].index for node in unknown]
            order = {"c": "check", "again": True, "deadline_s": AGAIN_DEADLINE_S, "only": only}
            last |= dict.fromkeys(unknown, await self._orders.order(unknown, again_s, order))
        reasons = dict(self._orders.gone)
        for node in self._orders.there():
            answer = self._orders.states[node].answers.get(last[node], {})
            if answer.get("verdict") == "unfit":
                self.findings.append(
                    TestFinding(TestName.IN_NODE, FindingKind.NODE, (node,), str(answer.get("reason", "")))
                )
            elif answer.get("verdict") != "fit":
                late = f"the check did not end within {limit_s:.0f} s"
                reasons[node] = answer.get("error") or answer.get("reason") or late
        self.findings += untested(TestName.IN_NODE, reasons)

    async def devices(self) -> None:
        """Test known answers, copies and the all-to-all on the devices of each node."""
        nodes, troubles = self._orders.able()
        limit_s = self._orders.limit(DEVICES_S)
        if not limit_s:
            self.ended_early = f"the budget of {self._orders.budget_s:g} s was used up before the devices were tested"
            return
        self._orders.progress(f"in-node: the devices of {count_of(nodes)}")
        only = [self._orders.states[node].index for node in nodes]
        number = await self._orders.order(nodes, limit_s, {"c": "devices", "only": only})
        told = {}
        for node in nodes:
            late = self._orders.gone.get(node) or self._orders.states[node].answers.get(number, {}).get("error", "")
            told[node] = self._orders.states[node].ranks.get(number) or [{"device": "its test", "error": late}]
        verdict = in_node.judge(told, least=self._least_gb_per_s)
        known = {node for finding in self.findings for node in finding.nodes}
        self.findings += [TestFinding(TestName.IN_NODE, FindingKind.NODE, (n,), w) for n, w in verdict.broken.items()]
        without = {n for n in troubles if not self._orders.states[n].has_torch}
        reasons = {n: why for n, why in (troubles | verdict.untested).items() if n not in known | without}
        self.findings += untested(TestName.IN_NODE, reasons)
        for finding in untested(TestName.IN_NODE, {n: why for n, why in troubles.items() if n in without}):
            self.notes.append(f"no devices were tested on {', '.join(finding.nodes)}: {finding.reason}")

    async def tools(self) -> None:
        """Run NVIDIA's own tests on nodes with GPUs, in the rest of the budget."""
        nodes = self.with_gpus()
        limit_s = self._orders.limit(node_tools.WITH_EUD_S if self._eud else node_tools.WANTED_S)
        if limit_s < node_tools.LEAST_S:
            self.notes.append(
                f"dcgmi diag and nvbandwidth were not begun: they need {node_tools.LEAST_S:.0f} s or more, "
                f"{limit_s:.0f} s were left of the budget"
            )
            return
        self._orders.progress(f"in-node: dcgmi diag and nvbandwidth on {count_of(nodes)}")
        only = [self._orders.states[node].index for node in nodes]
        number = await self._orders.order(nodes, limit_s, {"c": "tools", "only": only, "eud": self._eud})
        answers = {node: self._orders.states[node].answers.get(number, {}) for node in nodes}
        findings, notes = in_node.of_tools(answers)
        self.findings += [TestFinding(TestName.IN_NODE, FindingKind.NODE, (n,), why) for n, why in findings.items()]
        self.notes += notes
