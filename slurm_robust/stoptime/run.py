"""Runs the tests: starts the step, gives its agents orders, waits within the budget, and has the answers judged."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.core.model import TestName
from slurm_robust.stoptime import alignment, pairing, shape_rank
from slurm_robust.stoptime.agent_state import AgentState
from slurm_robust.stoptime.agent_step import AgentStep, StepTarget
from slurm_robust.stoptime.conclusion import (
    StageTime,
    TestFinding,
    TestReport,
    count_of,
    environment_note,
    in_words,
    of_alignment,
    of_pairs,
    of_replay,
    untested,
)
from slurm_robust.stoptime.in_node_stage import InNodeStage, Orders
from slurm_robust.stoptime.pair_stage import MARGIN_S, PairChannel, PairStage
from slurm_robust.stoptime.pairing import GroupResult
from slurm_robust.stoptime.replay_run import ReplayPlace, ReplayRun, ReplaySpec, TestSurroundings

LEAST_BUDGET_S = 20.0
START_S = 30.0
"""Time for srun to start the agents, and to get an allocation of its own."""
LOAD_S = 60.0
"""For PyTorch to be loaded, from a slow file system too."""
GLANCE_S = 10.0
"""Time for a start that only finds out whether another process uses the GPUs."""
STEP_S = 30.0
LEAST_STAGE_S = 8.0
"""With less of the budget left, a stage is not begun: if it did not end, that would not tell anything."""
_SILENT_S = 15.0
"""An agent sends a message every second; a node without messages for so long, while we listen, has left."""
_OF_RANKS = (TestName.PAIRS,)
"""Tests in which NCCL's variables matter."""
REPEATS = 5

Progress = Callable[[str], None]


class TestRunError(Exception):
    """The tests could not be started; the message is for the user."""

    __test__ = False


@dataclass(frozen=True)
class TestSettings:
    """The settings of the tests.

    Attributes:
        budget_s: The budget of all tests together, seconds.
        switches: Nodes of each switch, as `topology.read` gives them: neighbours meet first.
        least_gb_per_s: Way of a copy (`h2d`, `d2h`, `d2d`) → the least bandwidth of a healthy GPU; 0 for no limit.
        replay: The spec of the test replay.
        eud: Whether NVIDIA's Extended Utility Diagnostics are part of the test within the nodes.
        layout: Parallel sizes of the job, as far as known: the alignment test makes steps in this shape, too.
    """

    __test__ = False

    budget_s: float
    switches: Sequence[Sequence[str]] = ()
    least_gb_per_s: Mapping[str, float] = field(default_factory=dict)
    replay: ReplaySpec | None = None
    eud: bool = False
    layout: Mapping[str, int] = field(default_factory=dict)


def least_bandwidths(options: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the site's least bandwidths, from `nodecheck.options` of its configuration."""
    chosen = options.get("bandwidth", {})
    return {way: float(chosen.get(f"{way}_min_gb_per_s", 0.0)) for way in ("h2d", "d2h", "d2d")}


class TestRun:
    """One run of the tests of some nodes.

    Attributes:
        step_ended: The step ended before the tests did.
        left_step: A step such as `12.3` whose agents did not end by themselves, so that Slurm must be told to end it.
        left_replay: Steps of a replay that Slurm must be told to end, too.
    """

    __test__ = False

    def __init__(
        self,
        target: StepTarget,
        tests: Sequence[TestName],
        settings: TestSettings,
        progress: Progress,
        why_waits: Callable[[str], str] = lambda _: "",
    ) -> None:
        budget_s = settings.budget_s
        self._replayed = settings.replay
        self._shape = tuple(kind for kind in shape_rank.KINDS if settings.layout.get(kind, 1) > 1)
        self.nodes = pairing.ordered(target.nodes, settings.switches)
        self.tests = tuple(test for test in TestName if test in tests)
        self.step_ended = False
        self.left_step = ""
        self.left_replay: list[str] = []
        self._step_id = ""
        self._progress, self._why_waits = progress, why_waits
        self._beside_a_job = target.job_id is not None
        self._step = AgentStep(target, self._told)
        self._states = {node: AgentState() for node in self.nodes}
        self._gone: dict[str, str] = {}
        self._news = asyncio.Event()
        self._end_s = time.monotonic() + budget_s
        self._budget_s = budget_s
        self._orders = 0
        self._findings: list[TestFinding] = []
        self._stages: list[StageTime] = []
        self._bandwidth: dict[str, float] = {}
        self._notes: list[str] = []
        orders = Orders(
            budget_s, self._states, self._gone, self._there, self._able, self._limit, self._order, self._progress
        )
        self._in_node = InNodeStage(orders, settings.least_gb_per_s, eud=settings.eud)
        self._ended_early = ""

    async def run(self) -> TestReport:
        """Run all tests, one after the other; the step has ended when this returns or raises.

        Raises:
            TestRunError: srun could not start any agent.
        """
        try:
            async with self._stage("start"):
                await self._start()
            for test in self.tests:
                await self._one_test(test)
            if TestName.IN_NODE in self.tests and self._in_node.with_gpus() and not self._ended_early:
                async with self._stage("tools"):
                    await self._in_node.tools()
                self._findings += [f for f in self._in_node.findings if f not in self._findings]
            self.step_ended = self._step.ended.is_set()
        finally:
            async with self._stage("end"):
                clean = await self._step.end()
                self.left_step = "" if clean else self._step_id
        if self._beside_a_job and any(test in self.tests for test in _OF_RANKS):
            self._notes.append(environment_note({node: state.of_job for node, state in self._states.items()}))
        return TestReport(
            self.nodes, self.tests, tuple(self._findings), tuple(self._stages), self._ended_early, self._bandwidth,
            (*self._in_node.notes, *self._notes),
        )  # fmt: skip

    # -- the channel ------------------------------------------------------------------------------------------------

    def _told(self, message: dict[str, Any]) -> None:
        self._news.set()
        state = self._states.get(message["node"])
        if state is None:
            return
        state.heard_s = time.monotonic()
        state.take(message)
        self._step_id = state.step or self._step_id
        if state.gone:
            self._gone[message["node"]] = state.gone

    async def _until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Wait until `done`, the limit, or the step's end; nodes that fall silent are noted as gone."""
        end_s = time.monotonic() + limit_s
        while not done():
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._step.ended.is_set():
                return done()
            self._news.clear()
            listened_s = time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left_s, 1.0))
            # On a busy machine this process is late itself, and messages of the nodes are still unread.
            late_s = time.monotonic() - listened_s - 1.0
            for node, state in self._states.items():
                state.heard_s += max(0.0, late_s)
                if state.index >= 0 and time.monotonic() - state.heard_s > _SILENT_S:
                    self._gone.setdefault(node, f"{node} left the test: nothing heard from it for {_SILENT_S:.0f} s")
        return True

    def _there(self) -> list[str]:
        return [node for node in self.nodes if node not in self._gone]

    async def _order(self, nodes: Iterable[str], limit_s: float, order: dict[str, Any]) -> int:
        """Give an order and wait for the answers of these nodes, while the nodes are there; return its number."""
        asked = list(nodes)
        number = self._send(order, limit_s)
        await self._until(
            lambda: all(node in self._gone or number in self._states[node].answers for node in asked),
            limit_s + MARGIN_S,
        )
        return number

    def _send(self, order: dict[str, Any], limit_s: float) -> int:
        self._orders += 1
        self._step.send({**order, "id": self._orders, "limit_s": limit_s})
        return self._orders

    def _limit(self, wanted_s: float) -> float:
        """Return how long a stage may take; 0 if the budget leaves too little."""
        left_s = self._end_s - time.monotonic()
        return min(wanted_s, left_s) if left_s >= LEAST_STAGE_S else 0.0

    @contextlib.asynccontextmanager
    async def _stage(self, name: str) -> AsyncIterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._stages.append(StageTime(name, time.monotonic() - began_s))

    def _last_words(self) -> str:
        """Return srun's last lines, preferably errors."""
        lines = self._step.errors
        return "; ".join([line for line in lines if "error" in line][-2:] or lines[-1:])

    # -- the stages -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        limit_s = min(START_S, self._budget_s)
        self._progress(f"starting an agent on {count_of(self.nodes)}")
        try:
            await self._step.start(wait_s=limit_s, limit_s=self._budget_s)
        except OSError as error:
            raise TestRunError(f"srun cannot be started: {error.strerror}; install Slurm's commands") from None
        states = self._states
        await self._until(lambda: all(s.index >= 0 or n in self._gone for n, s in states.items()), limit_s)
        started = [node for node, state in states.items() if state.index >= 0]
        if not started:
            errors = self._last_words()
            if queued := re.search(r"\bjob (\d+) queued", errors):
                errors += await asyncio.to_thread(self._why_waits, queued[1])
            after = "srun ended" if self._step.ended.is_set() else f"{limit_s:.0f} s are over"
            raise TestRunError(f"no agent started, and {after}{': ' + errors if errors else ''}")
        for node in self.nodes:
            if node not in started:
                self._gone.setdefault(node, f"no agent started on {node} within {limit_s:.0f} s")

    async def _one_test(self, test: TestName) -> None:
        if self._ended_early:
            return
        used_up = f"the budget of {self._budget_s:g} s was used up before the test {test.value}"
        if not self._limit(LEAST_STAGE_S):
            self._ended_early = used_up
            return
        work = {
            TestName.IN_NODE: self._devices,
            TestName.PAIRS: self._pairs,
            TestName.ALIGNMENT: self._alignment,
            TestName.REPLAY: self._replay,
        }[test]
        if test is TestName.IN_NODE:
            async with self._stage("full check"):
                await self._in_node.checks()
        # Nodes that did not load in time are not waited for again, but take part if they have loaded meanwhile.
        if not all(s.loaded or s.trouble for n, s in self._states.items() if n not in self._gone):
            async with self._stage("load PyTorch"):
                own = test is TestName.REPLAY and self._replayed is not None and self._replayed.command
                await self._load(GLANCE_S if own else LOAD_S)
            if not self._limit(LEAST_STAGE_S):
                self._ended_early = used_up
                return
        async with self._stage(test.value):
            await work()
        if self._step.ended.is_set():
            errors = self._last_words()
            self._ended_early = f"the step ended during the test {test.value}{': ' + errors if errors else ''}"
            # Effects of the step's end on the nodes are not findings about the nodes.
            self._findings = [f for f in self._findings if f.test is not test]
        elif not self._ended_early:
            self._progress(f"{test.value}: {in_words(f for f in self._findings if f.test is test)}")

    async def _load(self, wanted_s: float) -> None:
        self._progress("loading PyTorch on the nodes")
        limit_s = self._limit(wanted_s)
        await self._until(lambda: all(s.loaded for n, s in self._states.items() if n not in self._gone), limit_s)
        for state in self._states.values():
            if not state.loaded and not state.trouble:
                state.trouble = f"PyTorch was not loaded within {limit_s:.0f} s"

    async def _devices(self) -> None:
        await self._in_node.devices()
        self._findings += self._in_node.findings
        self._ended_early = self._in_node.ended_early

    def _able(self) -> tuple[list[str], dict[str, str]]:
        """Return nodes that can run ranks, and why the others cannot."""
        troubles = {node: state.trouble for node, state in self._states.items() if not state.ready} | self._gone
        return [node for node in self.nodes if node not in troubles], troubles

    async def _pairs(self) -> None:
        nodes, troubles = self._able()
        rounds = await self._rounds(nodes)
        for operation in rounds[0][0].gb_per_s if rounds else ():
            found = [r.gb_per_s[operation] for r in rounds[0] if operation in r.gb_per_s]
            self._bandwidth[operation] = statistics.median(found)
        self._findings += of_pairs(pairing.judge(nodes, rounds))
        self._findings += untested(TestName.PAIRS, troubles)

    async def _rounds(self, nodes: list[str], shape: Sequence[str] = ()) -> list[tuple[GroupResult, ...]]:
        over, tell = self._step.ended.is_set, self._step.send
        stage = PairStage(
            PairChannel(self._states, self._gone, self._limit, self._send, tell, self._until, over, self._progress)
        )
        rounds = await stage.rounds(nodes, shape)
        if stage.cut_after is not None:
            what = "steps in the shape of the job" if shape else "pairs"
            used_up = f"the budget of {self._budget_s:g} s was used up after round {stage.cut_after} of the {what}"
            self._ended_early = used_up
        return rounds

    async def _alignment(self) -> None:
        nodes, troubles = self._able()
        limit_s = self._limit(STEP_S)
        self._progress(f"alignment: one step on each device of {count_of(nodes)}, {REPEATS} times")
        by_gpus: dict[int, list[str]] = defaultdict(list)
        for node in nodes:
            by_gpus[self._states[node].gpus].append(node)
        for gpus, some in by_gpus.items():
            only = [self._states[node].index for node in some]
            await self._order(some, limit_s, {"c": "step", "devices": gpus, "repeats": REPEATS, "only": only})
        found, errors = [], []
        for node in nodes:
            for told in self._states[node].digests:
                device = told["device"]
                if "digests" in told:
                    found.append(alignment.StepDigests(node, device, told["hardware"], tuple(told["digests"])))
                else:
                    text = told.get("error") or f"no end within {limit_s:.0f} s"
                    errors.append(alignment.StepError(node, device, text))
            if not self._states[node].digests:
                troubles.setdefault(node, self._gone.get(node, f"no result within {limit_s:.0f} s"))
        verdict = alignment.judge(found, errors)
        self._findings += of_alignment(verdict)
        self._findings += untested(TestName.ALIGNMENT, troubles)
        # A node that gets wrong bits alone is found without a partner.
        sound = [node for node in nodes if node not in troubles and node not in verdict.broken]
        if self._shape and len(sound) > 1 and not self._step.ended.is_set():
            rounds = await self._rounds(sound, self._shape)
            self._findings += of_pairs(pairing.judge(sound, rounds), TestName.ALIGNMENT)

    async def _replay(self) -> None:
        if self._replayed is None:
            raise TestRunError("the test replay needs to know how many nodes one group has")
        nodes, troubles = self._able()
        if self._replayed.command:  # its ranks bring their own PyTorch, or need none; but a GPU may be in use
            troubles = {node: why for node, why in troubles.items() if node in self._gone or self._states[node].gpus}
            nodes = [node for node in self.nodes if node not in troubles]
        by_index = sorted(self._states.items(), key=lambda item: item[1].index)
        hosts = {node: state.host for node, state in by_index}
        gpus = min((self._states[node].gpus for node in nodes), default=0)
        place = ReplayPlace(self._step_id.partition(".")[0], hosts, gpus, self._step.target.rank_python)
        left_s, over = lambda: self._end_s - time.monotonic(), self._step.ended.is_set
        run = ReplayRun(self._replayed, place, TestSurroundings(self._until, self._gone, left_s, self._progress, over))
        self.left_replay = run.left_steps
        self._findings += [*of_replay(await run.run(nodes)), *untested(TestName.REPLAY, troubles)]
        self._ended_early = run.ended_early
