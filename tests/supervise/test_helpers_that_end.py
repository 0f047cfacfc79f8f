"""A helper rank ends while the others go on: an evaluator that has finished, a monitor. Nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervised import WAITS, World

from slurm_robust.localize.evidence import RankExit
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.dead_ranks import DeadRanks
from slurm_robust.supervise.incident.decider import Decider
from slurm_robust.supervise.incident.incident_handler import IncidentHandler
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.incident.quiet_captures import ProvenSuspicion, QuietCaptures
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.observer import Observer

NODES = ("n1", "n2", "n3", "n4")


class Training:
    """Four ranks whose steps stand in the log only; each capture finds all that run in a collective."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "slurm-5.out"
        self.log.write_text("")
        self.world = World(folder / "story", nodes=NODES)
        self.attempt = self.world.attempt(paths=(self.log,))
        self.world.finds_ranks(4, NODES)
        self.world.agents.stacks = WAITS
        self.world.agents.processes = self.process
        self.cpu_share = 1.0
        self.start = AttemptStart(self.world.session, self.attempt, LineageStore(self.world.session))
        self.quiet = QuietCaptures(self.world.session, self.attempt, self.start)
        self.step = 0

    def process(self, rank: int) -> list[dict[str, Any]]:
        """The process of a rank that is in a collective; the traffic of NCCL is not seen."""
        cpu_s = self.cpu_share * self.world.clock.at_s
        return [{"pid": 100 + rank, "cpu_s": cpu_s, "io_bytes": 1, "state": "S", "stack": "waits"}]

    def steps(self) -> None:
        """One more line of the log."""
        self.step += 1
        with self.log.open("a") as log:
            log.write(f"step {self.step}/5000 loss 1.23\n")

    def passes(self, seconds: float, each: Callable[[], None] = lambda: None) -> ProvenSuspicion | None:
        """Time passes, a second at a time; returns what the quiet captures prove."""

        async def polled() -> ProvenSuspicion | None:
            for _ in range(int(seconds)):
                self.world.clock.at_s += 1.0
                each()
                self.attempt.read_outputs()
                self.attempt.confirm_exits()
                self.attempt.note_vanished()
                if found := await self.quiet.poll():
                    return found
            return None

        return asyncio.run(polled())

    def helper_ends(self, *, code: int | None) -> None:
        """Rank 3 is gone; its exit code is known only with the SPANK plugin."""
        if code is not None:
            told = {"t": "exit", "n": "n4", "step_id": "0", "task": 3, "code": code, "sig": 0, "age_s": 0.1}
            self.attempt.fleet.feed(from_agent(told), self.world.clock.at_s)
        self.world.loses(3)


def handler_of(world: World) -> IncidentHandler:
    """A handler of incidents, with what it needs."""
    session = world.session
    log = IncidentLog(session)
    return IncidentHandler(session, log, Decider(session, log, Losses(session)), Observer(session))


@pytest.mark.parametrize("code", [None, 0])
def test_steps_that_go_on_wait_for_nobody(tmp_path: Path, code: int | None) -> None:
    """A step a second: each capture is of another step."""
    training = Training(tmp_path)
    assert training.passes(30, training.steps) is None
    training.helper_ends(code=code)
    assert training.passes(900, training.steps) is None


def test_steps_that_stop_wait_for_the_one_that_vanished(tmp_path: Path) -> None:
    """All others are at rest in a collective for longer than a step takes."""
    training = Training(tmp_path)
    training.cpu_share = 0.0
    assert training.passes(30, training.steps) is None
    training.helper_ends(code=None)
    found = training.passes(20)
    assert found is not None
    assert "the others wait for it" in found.text
    assert 5.0 <= training.world.clock.at_s - training.attempt.last_sign_s < 12.0


@pytest.mark.parametrize(("cpu_share", "after_s"), [(0.0, 300.0), (1.0, None)])
def test_a_job_that_reports_nothing_has_to_rest_for_long(
    tmp_path: Path, cpu_share: float, after_s: float | None
) -> None:
    """Two captures of a training that runs look like two of one that waits; a rest of five minutes does not."""
    training = Training(tmp_path)
    training.cpu_share = cpu_share
    assert training.passes(5) is None
    training.helper_ends(code=None)
    began_s = training.world.clock.at_s
    found = training.passes(900)
    assert (found is not None) is (after_s is not None)
    if after_s is not None:
        assert after_s <= training.world.clock.at_s - began_s < 400.0


def test_a_step_that_comes_at_the_last_moment_cancels_what_was_proven(tmp_path: Path) -> None:
    """The handler looks once more at the log before it decides."""
    training = Training(tmp_path)
    training.cpu_share = 0.0
    attempt = training.attempt
    training.passes(30, training.steps)
    training.helper_ends(code=None)
    found = training.passes(20)
    assert found is not None
    handler = handler_of(training.world)
    training.world.clock.at_s += 1.0
    training.steps()
    assert asyncio.run(handler.proven(attempt, training.start, found)) is None
    assert training.world.text("cleared") == "training moves again; nothing was done"
    assert "decided" not in training.world.kinds


@pytest.mark.parametrize("steps", [True, False])
def test_a_step_that_comes_before_a_death_is_judged_cancels_it(tmp_path: Path, steps: bool) -> None:
    """The others were seen to wait for a rank that had failed, and then one more step is done."""
    training = Training(tmp_path)
    training.cpu_share = 0.0
    world, attempt = training.world, training.attempt
    training.passes(30, training.steps)
    world.loses(3)
    attempt.exits[3] = RankExit(3, "n4", world.clock.at_s, 1)
    dead = DeadRanks(world.session, attempt)
    for _ in range(20):
        world.clock.at_s += 1.0
        if asyncio.run(dead.decide_now()):
            break
    assert dead.waited_for
    world.clock.at_s += 0.5
    if steps:
        training.steps()
    handled = handler_of(world).rank_died(attempt, training.start, dead.investigation, waited_for=True)
    asyncio.run(handled)
    assert ("verdict" not in world.kinds) is steps
