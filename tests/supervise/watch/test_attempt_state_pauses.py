"""Which pauses of a training are learnt, and as what."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import World, from_agent

from slurm_robust.policy.job.consequences import FIRST_STEP, Pauses
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.watch.attempt_state import AttemptState

NODES = ("n1", "n2", "n3", "n4")


def says(world: World, rank: int, step: int, phase: str = "train") -> None:
    """One report of progress of one rank."""
    message = {"t": "p", "n": NODES[rank], "r": [[rank, step, phase, 0.0, step + 2, None, None, None]]}
    world.attempt_state.fleet.feed(from_agent(message), world.clock.at_s)
    world.attempt_state.note_pauses()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job of four ranks, of which none has reported anything."""
    made = World(tmp_path / "site", nodes=NODES)
    made.attempt_state = made.attempt()
    made.finds_ranks(4, NODES)
    return made


def test_the_start_up_ends_with_the_first_step_and_not_with_the_first_sign(world: World) -> None:
    """A phase is told after 8 s, a compilation takes ten minutes: eight seconds say nothing about the next start."""
    state: AttemptState = world.attempt_state
    world.clock.at_s += 8.0
    says(world, 0, -1, "startup")
    assert state.pause_kind == FIRST_STEP
    assert state.pauses == Pauses()
    world.clock.at_s += 600.0
    says(world, 0, 0)
    assert state.pauses.longest_s == {FIRST_STEP: pytest.approx(600.0)}


def test_the_time_between_the_first_two_steps_is_no_measure_of_the_later_ones(world: World) -> None:
    """Step 0 is told before a second compilation of four minutes."""
    says(world, 0, 0)
    world.clock.at_s += 240.0
    for step in range(1, 10):
        says(world, 0, step)
        world.clock.at_s += 1.0
    assert world.attempt_state.pauses.longest_s == {FIRST_STEP: pytest.approx(240.0), "train": pytest.approx(1.0)}


def test_a_rank_that_makes_no_steps_does_not_keep_the_job_in_its_start_up(world: World) -> None:
    """A monitor announces a phase and nothing more; the others train."""
    says(world, 3, -1, "startup")
    says(world, 0, 5)
    assert world.attempt_state.pause_kind == "train"


def test_nothing_is_overdue_before_three_times_a_healthy_pause(world: World) -> None:
    """A training with steps of 25 minutes is not acted on after 30; only the program's own word is shorter."""
    state, config = world.attempt_state, world.session.settings
    for step in range(12):
        world.clock.at_s += 1500.0
        says(world, 0, step)
    world.clock.at_s += 4400.0
    assert state.assess(config).level.name != "OVERDUE"
    world.clock.at_s += 200.0
    assert state.assess(config).level.name == "OVERDUE"


def test_an_attempt_knows_the_pauses_of_those_before_it(world: World) -> None:
    """A checkpoint took 1,000 s in an earlier attempt: 3,000 s are no reason to act, whatever the site says."""
    session, store = world.session, LineageStore(world.session)
    store.paused(Pauses({"checkpoint": 1000.0}))
    AttemptStart(session, world.attempt_state, store)
    says(world, 0, 5)
    says(world, 0, 6, "checkpoint")
    world.clock.at_s += 2900.0
    assert world.attempt_state.assess(session.settings).level.name != "OVERDUE"
    world.clock.at_s += 200.0
    assert world.attempt_state.assess(session.settings).level.name == "OVERDUE"
