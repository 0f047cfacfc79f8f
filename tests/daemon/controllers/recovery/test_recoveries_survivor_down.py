"""Nodes that are in service, and hold up the end of a job that is brought back: its survivors, and suspects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.daemon.store.node_ledger import NodeLedger


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Job 1 on three of six nodes asks to leave n2, and n1 falls silent as it ends."""
    made = World(tmp_path, FakeSlurm(), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    made.claim(1, ("n2",))
    while not made.slurm.state.jobs[1].completing:
        made.run(0.5)
    silence(made, "n1")
    yield made
    made.journal.close()


def silence(world: World, name: str, *, ended: bool = False) -> None:
    """Slurm has no answer of that node; or has one again."""
    node = world.slurm.state.nodes[name]
    flag = frozenset(("NOT_RESPONDING",))
    world.slurm.state.nodes[name] = replace(node, flags=node.flags - flag if ended else node.flags | flag)


def test_slurmd_that_starts_anew_costs_nothing(world: World) -> None:
    """It answers again after ten seconds: nothing was done to it, and the job runs on it."""
    world.run(10)
    assert world.slurm.state.jobs[1].completing
    silence(world, "n1", ended=True)
    world.run(30)
    job = world.slurm.state.jobs[1]
    assert (job.state, "n1" in job.nodes) == ("RUNNING", True)
    assert not [act for act in world.slurm.acts if act.startswith("set_down")]


def test_what_was_set_down_is_checked_and_brought_back(world: World) -> None:
    """It answers too late: set DOWN, and then it is in quarantine like any other, and back once it has passed."""
    while "set_down n1" not in world.slurm.acts:
        world.run(0.5)
    world.live()
    silence(world, "n1", ended=True)
    world.run(60)
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert world.slurm.acts.count("resume n1") == 1
    assert world.slurm.state.nodes["n1"].usable
    assert not NodeLedger(world.journal).quarantines()
    assert [j.name for j in world.slurm.state.jobs.values()].count("srobust-recheck-n1") == 1


def test_survivor_that_stays_silent_is_drained(world: World) -> None:
    """It has failed before our eyes, and does not stay DOWN without anybody to answer for it."""
    world.run(90)
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert "does not respond" in world.slurm.state.nodes["n1"].reason
    assert not NodeLedger(world.journal).quarantines()


def test_a_suspect_that_is_kept_in_service_is_not_set_down_since_its_job_ends_slowly(tmp_path: Path) -> None:
    """Its user can see to that, for `KillWait`. What is stuck for longer is set DOWN, checked, and brought back."""
    world = World(tmp_path, FakeSlurm(), parse("quarantine: {max_per_user_hour: 0}"))
    slurm = world.slurm
    slurm.run_job(("n1", "n2"))
    world.run(6)
    slurm.stuck.add("n2")
    world.claim(1, ("n2",))
    world.run(40)
    assert slurm.state.jobs[1].completing
    assert "set_down n2" not in slurm.acts
    world.run(15)
    assert slurm.acts.count("set_down n2") == 1
    world.run(60)
    assert slurm.state.jobs[1].state == "RUNNING"
    assert slurm.state.nodes["n2"].usable
    assert not NodeLedger(world.journal).quarantines()
    world.journal.close()
