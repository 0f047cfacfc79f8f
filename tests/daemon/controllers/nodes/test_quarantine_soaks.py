"""Suspects that are checked again and again on idle time before they return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.daemon.store.node_ledger import NodeLedger


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes; the suspect n2 soaks for two hours, and has passed its first round."""
    made = World(tmp_path, FakeSlurm(), parse("{quarantine: {soak_h: 2}, nodetest: {tests: []}}"))
    made.slurm.run_job(("n1", "n2"))
    made.run(6)
    made.claim(1, ("n2",))
    made.run(90, step_s=1.0)
    yield made
    made.journal.close()


def soaking(world: World) -> int:
    """How many rounds n2 has passed in its quarantine; -1 where it is in service."""
    return next((q.soaked for q in NodeLedger(world.journal).quarantines() if q.node == "n2"), -1)


def test_rounds_follow_one_another_until_the_time_is_over(world: World) -> None:
    """Longer than a claim may keep a node unchecked; one strike in all, and a restarted daemon goes on."""
    assert soaking(world) >= 1
    world.run(3600, step_s=5.0)
    rounds = soaking(world)
    assert rounds > 10
    assert "srobust-quarantine-n2" in world.slurm.state.reservations
    world.live()
    world.run(3700, step_s=5.0)
    assert soaking(world) == -1
    assert not world.slurm.state.reservations
    assert len(NodeLedger(world.journal).strikes("n2", 0)) == 1


def test_a_round_that_fails_drains_the_node(world: World) -> None:
    """That is what it soaks for."""
    world.slurm.recheck_exit = "1:0"
    world.run(300, step_s=1.0)
    assert soaking(world) == -1
    assert world.slurm.state.nodes["n2"].drained


@pytest.mark.parametrize(("partition", "reason", "ends"), [
    ("main", "Resources", True), ("other,main", "Priority", True), ("other", "Resources", False),
    ("main", "Dependency", False),
])  # fmt: skip
def test_it_costs_no_waiting_job_a_node(world: World, partition: str, reason: str, ends: bool) -> None:
    """A job of its partition that waits for nodes ends it; others do not."""
    job = world.slurm.run_job(())
    later_s = int(world.slurm.now_s) + 3600
    waits = replace(job, state="PENDING", reason=reason, partition=partition, start_at_s=later_s)
    world.slurm.state.jobs[job.ref.job_id] = waits
    world.run(150, step_s=1.0)
    assert (soaking(world) == -1) is ends
