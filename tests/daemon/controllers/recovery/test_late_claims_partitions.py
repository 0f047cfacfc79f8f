"""A claim that is read late, of a job whose nodes are not all alike: it keeps its survivors all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds

from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim, render


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Ann's job runs on n1 and n2 of the partition main; n1 and n6 are in the partition short, too, n6 only there."""
    with worlds(tmp_path, World) as make:
        made = make("standby: {size: 0}", 6)
        nodes = made.slurm.state.nodes
        for name, partitions in (("n1", ("short", "main")), ("n6", ("short",))):
            nodes[name] = replace(nodes[name], partitions=partitions)
        made.slurm.run_job(("n1", "n2"), comment=render(Claim("watching", "line-1")))
        made.run(6)
        yield made


@pytest.mark.parametrize(("partition", "features"), [("short,main", ()), ("main", ("rack2",))])
def test_the_job_keeps_its_survivor(world: World, partition: str, features: tuple[str, ...]) -> None:
    """The suspect is in a partition in which the survivor is not; or the survivor is of another hardware class."""
    slurm, ref = world.slurm, JobRef(1)
    slurm.state.nodes["n2"] = replace(slurm.state.nodes["n2"], features=features)
    world.claim(1, ("n1",), conclusion="culprit", grade="strong")
    slurm.requeue(ref)
    slurm.pass_s(1)
    slurm.update_job(ref, exclude="n1")
    slurm.state.jobs[1] = replace(slurm.state.jobs[1], partition=partition)
    world.live()
    world.run(12)
    (row,) = world.journal.incidents()
    assert row.recovery is not None
    assert row.recovery.kept == ("n2",)
    assert row.recovery.standby == ("n3",)
