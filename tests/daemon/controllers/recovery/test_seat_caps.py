"""What keeps a user's jobs from seats: fruitless ones, not bad luck; and people are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.core.model import Attempt, Incident
from slurm_robust.daemon.api.needs import needs
from slurm_robust.daemon.store.journal import IncidentRow

CAPS = "seat: {max_per_user_day: 3, max_per_job_day: 100}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes, and at most three fruitless seats of a user in a day."""
    made = World(tmp_path, FakeSlurm(6), parse(CAPS))
    yield made
    made.journal.close()


def seats(world: World, outcome: str, number: int) -> None:
    """So many of ann's recoveries came to this an hour ago."""
    at_s = world.slurm.now_s - 3600
    for n in range(number):
        key = f"{outcome} {n}"
        attempt = Attempt("c", f"{100 + n}", 0, int(at_s))
        incident = Incident(id=f"i{n}", job=attempt.job, attempt=attempt.key, opened_at_s=at_s)
        world.journal.add_incident(IncidentRow(key, incident, attempt, 100 + n, "ann", "claim", "act", seat=True))
        world.journal.close_incident(key, outcome, "said so", at_s)


def claims(world: World) -> int:
    """A running job of ann's asks for a way back."""
    number = world.slurm.run_job(("n1", "n2")).ref.job_id
    world.run(4)
    world.claim(number, ("n2",), conclusion="culprit", grade="strong")
    world.run(4)
    return number


def test_a_bad_day_keeps_no_job_from_its_seat(world: World) -> None:
    """Seats after which training went on are what the daemon is for."""
    seats(world, "resumed", 10)
    seats(world, "not_started", 2)
    claims(world)
    assert "refused" not in world.outcomes()
    assert world.daemon.context.troubles == {}


def test_people_are_told_of_a_cap_until_it_is_over(world: World) -> None:
    """In status, with what to type; a day later nothing is left of it."""
    seats(world, "not_started", 3)
    claims(world)
    assert world.outcomes()[-1] == "refused"
    state = published(world.daemon)
    (said,) = needs(state, state["at_s"])
    assert said.startswith("user ann gets no seat (3 seats of the user brought no new step within a day")
    assert "raise the cap in robust.yaml and reload srobustd" in said
    world.slurm.pass_s(86_400 - 3600 + 10)
    world.run(2)
    assert world.daemon.context.troubles == {}


def test_what_jobs_say_of_their_steps_is_not_believed_without_end(world: World) -> None:
    """Five times as many in all: a user who only says that training goes on does not get seats for ever."""
    seats(world, "resumed", 15)
    claims(world)
    assert world.outcomes()[-1] == "refused"
