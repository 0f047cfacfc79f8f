"""A node is lost, the daemon brings its job back, and the job's own claim about the same loss comes too late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, held
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim, render


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A watched job on n1 and n2; n1 is lost, and the daemon has planned what follows."""
    made = World(tmp_path, FakeSlurm(6), parse("standby: {size: 1}"))
    made.slurm.run_job(("n1", "n2"))
    made.claim(1, (), "", state="watching")
    made.run(6)
    nodes = made.slurm.state.nodes
    nodes["n1"] = replace(nodes["n1"], flags=frozenset(("NOT_RESPONDING",)))
    made.run(4)
    assert [row.kind for row in made.journal.incidents()] == ["node_lost"]
    yield made
    made.journal.close()


def asks_too_late(world: World, evict: tuple[str, ...]) -> None:
    """Slurm gives the node up and requeues the job; what its supervisor wrote as it was ended is read after that."""
    world.slurm.requeue(JobRef(1))
    world.claim(1, evict, "i1", restart=0)
    for _ in range(60):
        world.run(1)
        if world.slurm.state.jobs[1].state == "RUNNING":
            break
    world.run(4)
    asked = Claim("watching", "line-1", 1, "i1", evict=evict, asked=0, why="hang")
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], comment=render(asked))
    world.run(8)


def test_one_loss_is_one_incident(world: World) -> None:
    """The claim says nothing that the daemon has not acted on; the first new step closes the loss."""
    asks_too_late(world, ("n1",))
    (row,) = world.journal.incidents()
    assert (row.kind, row.outcome) == ("node_lost", "running")
    told = Claim("watching", "line-1", 1, "i1", times={"first_new_step": world.slurm.now_s}, step=30)
    world.slurm.state.jobs[1] = replace(world.slurm.state.jobs[1], comment=render(told))
    world.run(8)
    (row,) = world.journal.incidents()
    assert row.outcome == "resumed"


def test_a_claim_that_names_another_node_is_weighed(world: World) -> None:
    """It knows of a fault that the daemon has not seen."""
    asks_too_late(world, ("n1", "n2"))
    assert sorted(row.kind for row in world.journal.incidents()) == ["claim", "node_lost"]
    assert "n2" in held(world) | {a.target for row in world.journal.incidents() for a in world.journal.actions(row.key)}
