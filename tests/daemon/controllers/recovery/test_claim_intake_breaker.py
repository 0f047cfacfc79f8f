"""What a claim gets while the breaker keeps nodes in service: a seat that leaves the suspect out, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.marks.claim import parse_answer
from slurm_robust.slurm.values import expand


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Nine nodes, the defaults but for the mode, and a job on two nodes."""
    made = World(tmp_path, FakeSlurm(nodes=9), Config())
    made.slurm.run_job(("n1", "n2"))
    made.run(6)
    yield made
    made.journal.close()


def left_alone(world: World, node: str) -> bool:
    """Nothing of ours keeps the node from other jobs."""
    slurm = world.slurm.state
    held = {name for r in slurm.reservations.values() for name in expand(r.nodes)}
    return slurm.nodes[node].usable and node not in held and world.daemon.ledger.quarantines() == []


def test_second_node_out_of_nine_leaves_the_breaker_closed(world: World) -> None:
    """A fifth of nine is one; a partition that loses one node by a fault may lose another one."""
    for name in ("n8", "n9"):
        world.slurm.drain(name, "srobust: XID 79")
        world.run(10)
    assert not world.daemon.breaker.why_open
    world.slurm.drain("n7", "srobust: XID 79")
    world.run(10)
    assert "partition main" in world.daemon.breaker.why_open


def test_open_breaker_still_gives_a_seat_without_the_suspect(world: World) -> None:
    """The job is back at once on other nodes; its suspect is neither quarantined nor drained, and everyone is told."""
    for name in ("n7", "n8", "n9"):
        world.slurm.drain(name, "srobust: XID 79")
    world.run(10)
    assert world.daemon.breaker.why_open
    world.claim(1, ("n2",))
    world.run(6)
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count, set(expand(job.exclude or ""))) == ("RUNNING", 1, {"n2"})
    assert len(job.nodes) == 2
    assert "n2" not in job.nodes
    world.run(60)
    assert left_alone(world, "n2")
    assert world.outcomes() == ["running"]
    (row,) = world.journal.incidents()
    assert row.incident.plan is not None
    assert "breaker is open" in row.incident.plan.reason
    assert "n2 stays in service" in row.incident.plan.reason
    answer = parse_answer(job.admin_comment)
    assert answer is not None
    assert (answer.state, "n2 stays in service" in answer.why) == ("accepted", True)


def test_claim_whose_drain_would_pass_the_breakers_bound_gets_a_seat(tmp_path: Path) -> None:
    """`quarantine.claims: drain` past the bound: the node stays in service, the job moves, the breaker stays closed."""
    text = "breaker: {max_drains: 1}\nquarantine: {claims: drain}"
    world = World(tmp_path, FakeSlurm(nodes=9), parse(text))
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    world.slurm.drain("n9", "srobust: XID 79")
    world.run(10)
    world.claim(1, ("n2",))
    world.run(6)
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count, "n2" in job.nodes) == ("RUNNING", 1, False)
    assert not world.daemon.breaker.why_open, "claims keep no broken node in service"
    assert left_alone(world, "n2")
    world.journal.close()
