"""The campaign's simulator: schedules come to their end, and what stands still stands where real trainings do."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from campaign.cases import BLAMELESS, CLASSES, make_case  # type: ignore[import-not-found]
from campaign.engine import World  # type: ignore[import-not-found]
from campaign.faults import Fault, arm  # type: ignore[import-not-found]
from campaign.layout import Layout  # type: ignore[import-not-found]
from campaign.programs import Job, program  # type: ignore[import-not-found]

JOBS = (
    Job("megatron", Layout(tp=2, pp=4, dp=4), microbatches=8),
    Job("megatron", Layout(tp=2, pp=4, dp=2), microbatches=4, chunks=2, p2p_sync=False),
    Job("megatron", Layout(tp=2, pp=2, dp=4, ep=4), moe=True, moe_sync=True, sequence_parallel=True, depth=8),
    Job("megatron", Layout(pp=8, dp=2), microbatches=8, depth=1000, log_every=2),
    Job("megatron", Layout(tp=2, cp=2, pp=2, dp=2), depth=4),
    Job("megatron", Layout(tp=2, pp=4, dp=2), microbatches=8, depth=0),
    Job(
        "megatron", Layout(tp=2, pp=2, dp=4, ep=4), moe=True, sequence_parallel=True, chunks=2, depth=0, p2p_sync=False
    ),
    Job("fsdp", Layout(dp=16), layers=6),
    Job("ddp", Layout(dp=8), depth=0),
)


def world_of(job: Job) -> World:
    """A fresh world that runs this job."""
    return World(job.layout, lambda rank: program(job, rank), job.depth, None)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.framework}-{job.chunks}-{job.depth}")
def test_without_a_fault_every_schedule_ends(job: Job) -> None:
    """No rank waits for ever, and no operation is left open."""
    world = world_of(job)
    world.run(1000.0)
    assert {host.step for host in world.hosts.values()} == {job.steps}
    assert all(len(op.items) == len(op.members) for op in world.ops())


def test_groups_are_in_megatrons_order() -> None:
    """Tensor fastest, pipeline slowest: the groups that a real dump of 16 ranks with tp=4, pp=2 carries."""
    layout = Layout(tp=4, dp=2, pp=2)
    assert layout.group("tp", 5).ranks == (4, 5, 6, 7)
    assert layout.group("dp", 0).ranks == (0, 4)
    assert layout.group("pp", 5).ranks == (5, 13)
    assert layout.group("mp", 0).ranks == (0, 1, 2, 3, 8, 9, 10, 11)


def test_one_held_rank_holds_all_and_launch_ahead_hides_it() -> None:
    """The victims stand at the next synchronisation, far from the collective that the held rank never entered."""
    job = Job("megatron", Layout(tp=2, pp=2, dp=2, per_node=2), depth=1000, p2p_sync=False)
    world = world_of(job)
    fault = Fault("stopped", (3,), step=1, nth=2)
    arm(world, fault, random.Random(1))
    world.run(1000.0)
    assert {host.step for host in world.hosts.values()} == {1}
    assert {host.act.kind for host in world.hosts.values() if host.rank != 3} == {"sync"}
    open_ops = [op for op in world.ops() if 3 in op.members and 3 not in op.items]
    assert open_ops


def test_interlocked_sends_wait_for_their_receivers() -> None:
    """A stage that is held holds the stage before it in a send, as a rendezvous does."""
    job = Job("megatron", Layout(pp=2, per_node=1), microbatches=4, depth=4)
    world = world_of(job)
    arm(world, Fault("p2p", (1,), step=0, nth=1), random.Random(1))
    world.run(1000.0)
    assert world.hosts[0].act.place.startswith("p2p")
    assert world.hosts[0].step == 0


@pytest.mark.parametrize("kind", CLASSES)
def test_a_seed_is_a_case(kind: str) -> None:
    """The same seed twice gives the same evidence; the next one gives another."""
    first, again, other = make_case(kind, 7, 32), make_case(kind, 7, 32), make_case(kind, 8, 32)
    assert (first.scenes, first.recorders, first.truth) == (again.scenes, again.recorders, again.truth)
    assert first.scenes != other.scenes


@pytest.mark.parametrize("kind", CLASSES)
def test_what_may_be_named(kind: str) -> None:
    """Nodes where somebody is at fault, and evidence that tells them unless the class says otherwise."""
    for seed in range(4):
        truth = make_case(kind, seed, 32).truth
        assert bool(truth.nodes) == (kind not in ("code", "code like a group", "no fault"))
        assert truth.identifiable == (kind not in BLAMELESS)
        assert truth.nodes <= truth.group_nodes


@pytest.mark.parametrize("kind", CLASSES)
def test_replicas_that_are_alike_need_one_simulation(kind: str) -> None:
    """A case in which one replica stands for many is, to the last counter, the case in which all are simulated."""
    for seed in range(3):
        short, whole = make_case(kind, seed, 64), make_case(kind, seed, 64, whole=True)
        assert (short.scenes, short.recorders, short.truth) == (whole.scenes, whole.recorders, whole.truth)
