"""Tests of nodes that end as a test wants, in place of `stoptime.run.TestRun`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurm_robust.core.model import TestName
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.conclusion import FindingKind, StageTime, TestFinding, TestReport
from slurm_robust.stoptime.run import Progress, TestSettings


@dataclass
class FakeTests:
    """Starts runs that report what a test wants.

    Attributes:
        findings: What runs find, each by its own test.
        raises: What each run raises instead.
        hangs: No run ends before it is cancelled.
        left_step: The step that each run leaves.
        on_run: Called as a run begins.
        started: (target, tests, budget in seconds) of each run.
        cancelled: How many runs were.
    """

    findings: Sequence[TestFinding] = ()
    raises: Exception | None = None
    hangs: bool = False
    left_step: str = ""
    on_run: Callable[[], None] = lambda: None
    started: list[tuple[StepTarget, tuple[TestName, ...], float]] = field(default_factory=list)
    cancelled: int = 0
    settings: list[TestSettings] = field(default_factory=list)

    def __call__(
        self, target: StepTarget, tests: Sequence[TestName], settings: TestSettings, progress: Progress
    ) -> FakeRun:
        """As the class that it stands for."""
        self.settings.append(settings)
        self.started.append((target, tuple(tests), settings.budget_s))
        return FakeRun(self, progress)


class FakeRun:
    """One run.

    Attributes:
        left_step: As told, once it has ended.
    """

    def __init__(self, tests: FakeTests, progress: Progress) -> None:
        self.left_step = ""
        self.left_replay: list[str] = []
        self._tests = tests
        self._progress = progress

    async def run(self) -> TestReport:
        """As told."""
        told = self._tests
        target, tests, _ = told.started[-1]
        self._progress(f"starting an agent on {len(target.nodes)} nodes")
        told.on_run()
        try:
            if told.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.cancelled += 1
            raise
        finally:
            self.left_step = told.left_step
        if told.raises is not None:
            raise told.raises
        found = tuple(f for f in told.findings if f.test in tests and set(f.nodes) & set(target.nodes))
        return TestReport(target.nodes, tests, found, (StageTime("start", 0.5),))


def node_fails(node: str, why: str, test: TestName = TestName.PAIRS) -> TestFinding:
    """This node fails."""
    return TestFinding(test, FindingKind.NODE, (node,), why)
