"""Standby nodes that join a pool are tested with another before they count as checked; a simulated Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import PAIR_TEST, FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.policy.cluster.tested_pairs import PairReport
from slurm_robust.slurm.values import expand

TEXT = "standby: {size: 2}\nbreaker: {max_partition_share: 1.0}\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A pool of two of six nodes."""
    made = World(tmp_path, FakeSlurm(), parse(TEXT))
    yield made
    made.journal.close()


def met(world: World) -> list[tuple[str, ...]]:
    """The nodes of each test of two, in order."""
    jobs = world.slurm.state.jobs.values()
    return [expand(job.req_nodes) for job in jobs if job.name.startswith(PAIR_TEST)]


def events(world: World, what: str) -> list[str]:
    """What was said."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = ?", (what,))]


def unchecked(world: World) -> frozenset[str]:
    """Members that do not count as checked."""
    return world.daemon.context.readings.unchecked


def drained(world: World) -> list[str]:
    """Nodes out of service."""
    return [n.name for n in world.slurm.state.nodes.values() if n.drained]


def until_met(world: World, times: int) -> None:
    """Until so many tests have begun."""
    for _ in range(400):
        if len(met(world)) >= times:
            return
        world.run(0.5)
    pytest.fail(f"{met(world)}")


def test_members_meet_once_and_then_count_as_checked(world: World) -> None:
    """In their pool's own reservation; unchecked until then; the daily check of each is the full one alone."""
    until_met(world, 1)
    assert unchecked(world) == {"n5", "n6"}
    assert not any("pair" in name for name in world.slurm.state.reservations)
    world.run(60)
    assert (met(world), unchecked(world)) == ([("n5", "n6")], frozenset())
    world.run(100_000, step_s=20.0)
    assert met(world) == [("n5", "n6")]


def test_who_joins_later_meets_one_that_is_proven(world: World) -> None:
    """And one that has booted meets another again."""
    world.run(120)
    world.slurm.drain("n5", "bad fan")
    world.run(120)
    assert met(world) == [("n5", "n6"), ("n4", "n6")]
    world.slurm.booted("n6")
    world.run(120)
    assert met(world)[2:] == [("n6", "n4")]
    assert unchecked(world) == frozenset()


def test_the_only_node_of_a_pool_has_its_full_check(tmp_path: Path) -> None:
    """Which is said once; it does not stay unchecked."""
    world = World(tmp_path, FakeSlurm(), parse("standby: {size: 1}"))
    world.run(600)
    assert (met(world), unchecked(world)) == ([], frozenset())
    (said,) = events(world, "alone_in_pool")
    assert "the only node of its pool: its full check counts alone" in said
    world.journal.close()


def test_a_member_whose_partner_is_never_free_is_not_held_back(tmp_path: Path) -> None:
    """The other one's full check never tells anything: half an hour later this one counts."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT))
    until_met(world, 1)
    world.run(30)
    world.daemon.ledger.standby_met("n5", 0.0, "")
    node = world.slurm.state.nodes["n6"]
    for _ in range(70):
        world.slurm.state.nodes["n6"] = replace(node, gres_used="gpu:1", state="IDLE")
        world.run(30, step_s=5.0)
    assert unchecked(world) == frozenset()
    world.journal.close()


def test_tests_that_cannot_run_hold_nobody_back(world: World) -> None:
    """No PyTorch: told once, however many nodes; the full check counts."""
    world.slurm.pair_reports[frozenset()] = PairReport(untested="pairs: PyTorch cannot be loaded")
    world.run(120)
    world.slurm.drain("n5", "bad fan")
    world.run(120)
    assert len(met(world)) == 2
    assert (unchecked(world), drained(world)) == (frozenset(), ["n5"])
    assert len(events(world, "pair_test.untested")) == 1


def test_a_member_that_fails_by_itself_is_quarantined_and_replaced(world: World) -> None:
    """There it proves that it is broken, with the evidence of its second test; the other one counts as checked."""
    world.slurm.pair_reports[frozenset(("n5",))] = PairReport(failed={"n5": "in-node: XID 79"})
    world.run(400)
    assert drained(world) == ["n5"]
    assert "XID 79" in world.slurm.state.nodes["n5"].reason
    assert unchecked(world) == frozenset()
    assert {n for r in world.slurm.state.reservations.values() for n in expand(r.nodes)} == {"n4", "n6"}


def test_two_that_fail_together_are_not_ready_and_nobody_is_drained(world: World) -> None:
    """Only they are there: tried again after a while, until the link is whole."""
    world.slurm.pair_reports[frozenset(("n5", "n6"))] = PairReport(together="pairs: wrong numbers")
    world.run(300)
    assert len(met(world)) == 1
    assert unchecked(world) == {"n5", "n6"}
    world.run(1200, step_s=2.0)
    assert len(met(world)) > 1
    assert drained(world) == []
    world.slurm.pair_reports.clear()
    world.run(1200, step_s=2.0)
    assert (unchecked(world), drained(world)) == (frozenset(), [])


def test_who_fails_with_two_others_is_named(tmp_path: Path) -> None:
    """A pool of three: n4 fails with both, which pass with each other."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT.replace("2", "3")))
    world.slurm.pair_reports[frozenset(("n4",))] = PairReport(together="pairs: wrong numbers")
    world.run(4000, step_s=2.0)
    assert drained(world) == ["n4"]
    assert (
        "failed together" in world.slurm.state.nodes["n4"].reason
        or "fails with" in world.slurm.state.nodes["n4"].reason
    )
    assert "n4" not in {n for r in world.slurm.state.reservations.values() for n in expand(r.nodes)}
    world.journal.close()
