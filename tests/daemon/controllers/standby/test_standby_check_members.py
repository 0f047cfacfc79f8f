"""Members of a standby pool pass the full check; one that fails it is never handed out as a seat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.slurm.values import expand


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A pool of two of six nodes; checks last for a quarter of an hour."""
    made = World(tmp_path, FakeSlurm(), parse("standby: {size: 2, check_max_age_h: 0.25}"))
    yield made
    made.journal.close()


def pool(world: World) -> set[str]:
    """The members."""
    return {n for r in world.slurm.state.reservations.values() if "standby" in r.name for n in expand(r.nodes)}


def checks(world: World) -> list[str]:
    """Nodes that were checked, in order."""
    jobs = world.slurm.state.jobs.values()
    return [j.name.rpartition("-")[2] for j in jobs if j.name.startswith("srobust-standby-check")]


def test_members_are_checked_when_they_join_and_again_later(world: World) -> None:
    """One after the other, so that one is ready at any time; the pool stays as it is; each again when it is time."""
    world.run(60)
    assert sorted(checks(world)) == ["n5", "n6"]
    assert pool(world) == {"n5", "n6"}
    (shown,) = published(world.daemon)["standby"]
    assert (shown["unchecked"], shown["short"]) == ("", 0)
    world.run(900)
    assert sorted(checks(world)) == ["n5", "n5", "n6", "n6"]
    assert pool(world) == {"n5", "n6"}


def test_who_joins_again_is_checked_again(world: World) -> None:
    """A member that was put to work comes back as a stranger."""
    world.run(60)
    world.slurm.run_job(("n6",))
    world.run(60)
    assert pool(world) == {"n4", "n5"}
    assert checks(world).count("n4") == 1
    job = next(j for j in world.slurm.state.jobs.values() if j.nodes == ("n6",))
    world.slurm.state.jobs[job.ref.job_id] = replace(job, state="COMPLETED", nodes=())
    world.slurm.drain("n5", "bad fan")
    world.run(60)
    assert pool(world) == {"n4", "n6"}
    assert checks(world).count("n6") == 2


def test_a_check_that_waits_keeps_no_member_that_got_a_job(world: World) -> None:
    """The node went into a seat as its check was submitted: its place is filled, and the check is called off."""
    world.slurm.keeps_jobs = "Resources"
    world.run(12)
    assert checks(world) == ["n5"]
    world.slurm.run_job(("n5",))
    world.run(30)
    assert pool(world) == {"n4", "n6"}
    ended = [j.state for j in world.slurm.state.jobs.values() if j.name == "srobust-standby-check-n5"]
    assert ended == ["CANCELLED"]


def test_member_that_fails_is_drained_and_replaced(tmp_path: Path) -> None:
    """With the check's own words; the breaker bounds what a check that fails everywhere can do."""
    slurm = FakeSlurm(nodes=20, recheck_exit="1:0")
    world = World(tmp_path, slurm, parse("standby: {size: 2}\nbreaker: {max_drains: 3, max_partition_share: 0.5}"))
    world.run(400)
    out = [n.name for n in slurm.state.nodes.values() if n.drained]
    assert 1 <= len(out) <= 4
    assert all(slurm.state.nodes[n].reason == "srobust: failed its recheck" for n in out)
    assert world.daemon.breaker.why_open
    before = len(checks(world))
    world.run(120)
    assert len(checks(world)) - before <= 2  # no check after the other on nodes that may not be drained
    world.journal.close()


def test_checked_member_is_taken_before_one_that_is_not(tmp_path: Path) -> None:
    """A job that asks while a member is still to be checked gets the other one, and a free node of none before it."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("standby: {size: 2}"))
    slurm.run_job(("n1", "n2", "n3"))
    world.run(60)
    world.daemon.ledger.standby_not_checked("n5", slurm.now_s, slurm.now_s + 600, 1, "could not tell")
    world.run(10)
    assert world.daemon.context.readings.unchecked == {"n5"}
    world.claim(1, ("n2",))
    world.run(20)
    assert set(slurm.state.jobs[1].nodes) == {"n1", "n3", "n6"}
    world.journal.close()


def test_check_that_cannot_tell_makes_no_node_unfit(tmp_path: Path) -> None:
    """Three tries, further and further apart; then it counts as checked until the next time."""
    slurm = FakeSlurm(recheck_exit="3:0")
    world = World(tmp_path, slurm, parse("standby: {size: 1}"))
    world.run(400)
    assert checks(world) == ["n6"] * 3
    assert pool(world) == {"n6"}
    assert not any(n.drained for n in slurm.state.nodes.values())
    assert not world.daemon.context.readings.unchecked
    world.journal.close()


def test_daemon_killed_while_a_check_runs_does_not_check_twice(world: World) -> None:
    """The next life finds it by its name, or in the journal."""
    world.run(60)
    world.slurm.recheck_ends_s = 30.0
    world.slurm.drain("n5", "bad fan")
    for _ in range(26):
        world.run(0.5)
        if "n4" in checks(world):
            break
    assert checks(world).count("n4") == 1
    world.daemon.ledger.standby_left("n4")  # killed before it could write the job down
    world.live()
    world.run(120)
    assert checks(world).count("n4") == 1
    assert pool(world) == {"n4", "n6"}


def test_switched_off(tmp_path: Path) -> None:
    """0 checks none, and then nobody counts as unchecked."""
    world = World(tmp_path, FakeSlurm(), parse("standby: {size: 2, check_max_age_h: 0}"))
    world.run(60)
    assert (checks(world), world.daemon.context.readings.unchecked) == ([], frozenset())
    world.journal.close()
