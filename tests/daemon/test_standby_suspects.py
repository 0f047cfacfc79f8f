"""A suspect that stays in service is the last choice for a pool and for a seat, and only after its full check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_world import World, held, worlds
from snapshots import published

from slurm_robust.cli.commands.standby import suspects
from slurm_robust.slurm.values import expand

KEPT = "quarantine: {max_per_user_hour: 0}\nstandby: {size: 1}"
"""The cap per user and hour is reached at once: every suspect stays in service."""
Make = Callable[[str, int], World]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world that has read everything once."""
    with worlds(tmp_path, World) as make:
        yield make


def pool(world: World) -> set[str]:
    """The members."""
    return {n for r in world.slurm.state.reservations.values() if "standby" in r.name for n in expand(r.nodes)}


def left(world: World, *nodes: str, checks_wait: bool = False) -> int:
    """A job on these nodes has left its first one, which stays in service."""
    number = world.slurm.run_job(nodes).ref.job_id
    world.run(30)
    world.slurm.keeps_jobs = "Resources" if checks_wait else ""
    world.claim(number, nodes[:1])
    world.run(12)
    assert nodes[0] not in world.slurm.state.jobs[number].nodes
    assert not held(world)
    return number


def test_the_only_standby_node_is_a_suspect_and_waits_for_its_check(made: Make) -> None:
    """A seat seconds later does not take it: its job waits, and gets it as soon as it has passed."""
    world = made(KEPT, 4)
    second = world.slurm.run_job(("n2", "n3"), user="ben").ref.job_id
    left(world, "n1", checks_wait=True)
    world.claim(second, ("n2",))
    world.run(200)  # longer than `seat.start_timeout_s`
    assert pool(world) == {"n1"}
    assert world.slurm.state.jobs[second].state == "PENDING"
    shown = published(world.daemon)["standby"]
    (line,) = suspects(shown)
    assert line.startswith("n1: job 3 suspected it at ")
    assert "not checked in full since" in line
    world.slurm.keeps_jobs = ""
    world.run(40)
    assert world.slurm.state.jobs[second].state == "RUNNING"
    assert set(world.slurm.state.jobs[second].nodes) == {"n1", "n3"}


def test_a_check_that_never_comes_holds_a_job_for_a_while_only(made: Make) -> None:
    """`quarantine.claim_limit_s` bounds what a claim can do: afterwards a seat takes the suspect."""
    world = made(KEPT.replace("0}", "0, claim_limit_s: 60}"), 4)
    second = world.slurm.run_job(("n2", "n3"), user="ben").ref.job_id
    left(world, "n1", checks_wait=True)
    world.claim(second, ("n2",))
    world.run(20)
    assert world.slurm.state.jobs[second].state == "PENDING"
    world.run(100)
    assert set(world.slurm.state.jobs[second].nodes) == {"n1", "n3"}


def test_where_slurm_refuses_the_check_nothing_waits_for_it(made: Make) -> None:
    """It could only wait for what cannot come."""
    world = made(KEPT, 4)
    second = world.slurm.run_job(("n2", "n3"), user="ben").ref.job_id
    world.slurm.run_job(("n1",))
    world.run(30)
    world.slurm.refuses_jobs = "Invalid account or account/partition combination specified"
    world.claim(3, ("n1",))
    world.run(14)
    world.claim(second, ("n2",))
    world.run(20)
    assert set(world.slurm.state.jobs[second].nodes) == {"n1", "n3"}


def test_a_job_of_one_node_takes_what_there_is(made: Make) -> None:
    """Without any node there is no seat: the job would wait for the very node that the pool holds."""
    world = made(KEPT, 3)
    second = world.slurm.run_job(("n2",), user="ben").ref.job_id
    left(world, "n1", checks_wait=True)
    world.claim(second, ("n2",))
    world.run(20)
    assert world.slurm.state.jobs[second].nodes == ("n1",)


def test_others_come_first(made: Make) -> None:
    """The pool fills with nodes that nobody suspected, and a seat takes these; a day later all are alike."""
    world = made(KEPT, 6)
    number = left(world, "n6", "n1")  # n5 was the pool's, and the seat has taken it
    world.run(20)
    assert pool(world) == {"n4"}
    assert suspects(published(world.daemon)["standby"]) == []
    world.claim(number, ("n1",), "i2", restart=1)
    world.run(30)
    assert set(world.slurm.state.jobs[number].nodes) == {"n4", "n5"}
    assert pool(world) == {"n3"}
    world.run(20)
    world.slurm.drain("n3", "fan")
    world.slurm.drain("n2", "fan")
    world.run(30)
    (line,) = suspects(published(world.daemon)["standby"])
    assert "checked in full since" in line
    assert pool(world) in ({"n6"}, {"n1"})
    world.run(90_000, step_s=30)
    assert suspects(published(world.daemon)["standby"]) == []


def test_a_member_that_is_suspected_is_checked_again_or_gives_way(made: Make) -> None:
    """It was in the pool when its job failed, before the pool was compared: what it passed before says nothing."""
    world = made(KEPT, 4)
    world.run(40)
    assert pool(world) == {"n4"}
    checked_s = world.daemon.ledger.standby_checks()["n4"].passed_at_s
    number = world.slurm.run_job(("n4", "n3")).ref.job_id
    world.run(1)
    world.claim(number, ("n4",))
    for node in ("n1", "n2"):
        world.slurm.drain(node, "fan")
    world.run(2)
    world.slurm.cancel(world.slurm.state.jobs[number].ref)
    world.run(40)
    assert pool(world) == {"n4"}
    assert world.daemon.ledger.standby_checks()["n4"].passed_at_s > checked_s
    (shown,) = published(world.daemon)["standby"]
    assert [s["node"] for s in shown["suspected"]] == ["n4"]
    assert shown["suspected"][0]["checked_at_s"] > shown["suspected"][0]["at_s"]


def test_a_quarantined_suspect_was_checked_there(made: Make) -> None:
    """It passed its full check before it came back: nothing is held against it, beside its strike."""
    world = made("standby: {size: 1}", 6)
    number = world.slurm.run_job(("n6", "n1")).ref.job_id
    world.run(30)
    world.claim(number, ("n6",))
    world.run(90)
    assert world.daemon.ledger.strikes("n6", 0)
    assert world.daemon.ledger.suspected(0) == {}
