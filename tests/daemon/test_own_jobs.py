"""The daemon's own jobs on a site whose partitions ask for accounts or QOS, against a simulated Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.daemon.api.needs import needs

Make = Callable[..., World]
POOL = "standby: {size: 2}\n"
NO_ACCOUNT = "Invalid account or account/partition combination specified"
NOT_PERMITTED = "Job's account not permitted to use this partition (main allows train not root)"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world of six nodes."""
    worlds: list[World] = []

    def make(text: str = POOL) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), FakeSlurm(6), parse(text)))
        return worlds[-1]

    yield make
    for world in worlds:
        world.journal.close()


def told(world: World) -> str:
    """What the first line of status says."""
    state = published(world.daemon)
    return "; ".join(needs(state, state["at_s"]))


def suspected(world: World) -> int:
    """A job claims that n1 is at fault."""
    number = world.slurm.run_job(("n1", "n2")).ref.job_id
    world.run(4)
    world.claim(number, ("n1",), grade="strong")
    return number


def test_every_job_of_ours_says_what_the_site_asks_for(made: Make) -> None:
    """Account, QOS and partition: of the recheck, the check of a standby node, and the test of two nodes."""
    world = made(POOL + "own_jobs: {account: ops, qos: checks, partition: maint}")
    for name, node in world.slurm.state.nodes.items():
        world.slurm.state.nodes[name] = type(node)(name, "IDLE", partitions=("main", "maint"))
    suspected(world)
    world.run(60)
    names = {word.partition("=")[2].rpartition("-")[0] for args in world.slurm.submitted for word in args[:1]}
    assert names == {"srobust-recheck", "srobust-standby-check", "srobust-pair-test"}
    for args in world.slurm.submitted:
        assert {"--account=ops", "--qos=checks", "--partition=maint"} <= set(args)


def test_a_partition_that_a_node_is_not_in_is_not_asked_for(made: Make) -> None:
    """Another hardware class may have another partition: its own is taken."""
    world = made(POOL + "own_jobs: {partition: maint}")
    world.run(20)
    assert world.slurm.submitted
    assert all("--partition=main" in args for args in world.slurm.submitted)


@pytest.mark.parametrize("how", ["refuses_jobs", "keeps_jobs"])
def test_refused_jobs_are_told_and_not_asked_for_every_second(made: Make, how: str) -> None:
    """Slurm refuses them at once, or takes them and never starts them, as EnforcePartLimits has it."""
    world = made()
    setattr(world.slurm, how, NO_ACCOUNT if how == "refuses_jobs" else NOT_PERMITTED)
    world.run(120)
    assert 1 <= len(world.slurm.submitted) <= 6
    said = told(world)
    assert "partition main" in said
    assert "account" in said
    assert "own_jobs" in said
    assert "srobust doctor" in said
    assert published(world.daemon)["standby"][0]["unchecked_count"] == 2
    setattr(world.slurm, how, "")
    world.run(700)
    assert told(world) == ""
    assert published(world.daemon)["standby"][0]["unchecked_count"] == 0


def test_a_suspect_that_cannot_be_checked_goes_back_with_a_strike(made: Make) -> None:
    """Unknown is not unhealthy: the site's settings must not keep a node out for ever, and a person is told."""
    world = made("standby: {size: 0}")
    world.slurm.refuses_jobs = NO_ACCOUNT
    suspected(world)
    world.run(20)
    assert "partition main" in told(world)
    assert len(world.slurm.submitted) <= 2
    world.run(1000)
    assert world.daemon.ledger.quarantines() == []
    assert len(world.daemon.ledger.strikes("n1", 0)) == 1
    assert len(world.slurm.submitted) <= 6


def test_a_check_of_ours_is_not_brought_back_as_a_users_job_is(made: Make) -> None:
    """Its controller asks for it again; a job of that name, but of a user, is brought back like any other."""
    world = made("daemon: {protect: all}")
    own = world.slurm.run_job(("n1",), user="root")
    ours = replace(own, name="srobust-recheck-n1")
    world.run(4)
    protected = world.daemon.node_failures.protected
    assert protected(own)
    assert not protected(ours)
    assert protected(replace(ours, user="ann"))
