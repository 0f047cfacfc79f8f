"""What one supervisor reports of its training, without a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from supervised import World

from slurm_robust.marks.claim import STATE_DONE
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.supervisor import Supervisor


@pytest.fixture
def world(tmp_path: Path) -> World:
    """`srobust attach`, beside a job of two nodes whose agents have not found anything so far."""
    made = World(tmp_path / "story")
    made.job.can_claim = False
    made.agents.present = True
    return made


def finds(world: World, rank: int) -> None:
    """An agent finds this rank of four, at step 7."""
    node = f"n{rank // 2 + 1}"
    world.finds(rank, node, world=4)
    world.session.receive(from_agent({"t": "p", "n": node, "r": [[rank, 7, "train", 0.0, 7, None, None, None]]}))


def test_ranks_are_counted_when_all_are_found(world: World) -> None:
    """Agents of a job that already runs find its ranks one after the other: "1 ranks on n1" would be no count."""
    supervisor = Supervisor(world.session)
    for rank in range(4):
        assert "training at step" not in world.text("training"), rank
        finds(world, rank)
        assert asyncio.run(supervisor.poll()) is None
    assert "training at step 7, 4 ranks on n1,n2" in world.text("training")


def test_a_job_whose_ranks_are_never_all_found_is_reported_all_the_same(world: World) -> None:
    """After ten seconds, with those that were found."""
    supervisor = Supervisor(world.session)
    finds(world, 2)
    asyncio.run(supervisor.poll())
    assert world.text("training") == ""
    world.clock.at_s += 11
    asyncio.run(supervisor.poll())
    assert "training at step 7, 1 of 4 ranks on n2" in world.text("training")


def test_a_job_that_has_ended_ends_the_watch(world: World) -> None:
    """Slurm no longer knows it as running, and its agents have gone with it: no exit code is known."""
    supervisor = Supervisor(world.session)
    finds(world, 0)
    assert asyncio.run(supervisor.poll()) is None
    world.agents.present = False
    world.slurm.cancel(world.job.ref)
    world.clock.at_s += 2
    assert asyncio.run(supervisor.poll()) == 0


def test_a_finished_training_is_reported_and_claimed_done(tmp_path: Path) -> None:
    """Exit code 0, the last step, and a claim that says that nothing is open."""
    world = World(tmp_path, command="python train.py")
    assert world.channel is not None
    supervisor = Supervisor(world.session)

    def ends() -> None:
        assert world.channel is not None
        if world.channel.launched and not world.session.fleet.ranks:
            world.finds_ranks()
            world.steps(41)
        elif world.clock.at_s > 1_000_010:
            world.channel.ended = 0

    world.clock.on_sleep = ends
    assert asyncio.run(supervisor.run()) == 0
    assert world.kinds == ["training", "finished"]
    assert world.text("finished") == "finished at step 41"
    assert (world.job.claim.state, world.job.claim.step) == (STATE_DONE, 41)
    assert world.channel.orders == ["exit 0"]
    assert world.agents.stops == 1
