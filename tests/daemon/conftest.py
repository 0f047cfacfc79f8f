"""Worlds for the daemon's tests: one small cluster for all that need Slurm, and simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene
from daemon_world import World
from fake_slurm import FakeSlurm
from faults_world import WIDE, Faults, Make

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import Mode
from slurm_robust.devcluster.cluster import DevCluster, Spec


@pytest.fixture(scope="session")
def daemon_cluster(devcluster_factory: Callable[[Spec], DevCluster]) -> DevCluster:
    """Four nodes, no prolog, a short KillWait and a short SlurmdTimeout."""
    return devcluster_factory(Spec(nodes=4, gpus_per_node=0, prolog=False, kill_wait_s=2, slurmd_timeout_s=6))


@pytest.fixture
def scene(daemon_cluster: DevCluster, tmp_path: Path) -> Iterator[Scene]:
    """The cluster with no job, no reservation and every node up; afterwards again."""
    stage = Scene(daemon_cluster, tmp_path / "state")
    yield stage
    stage.clean_up()


@pytest.fixture
def fault_world(tmp_path: Path) -> Iterator[Make]:
    """Makes a simulated world of six nodes whose daemon has read everything once."""
    made: list[Faults] = []

    def make(text: str = WIDE, *, nodes: int = 6, mode: Mode = Mode.ACT) -> Faults:
        one = Faults(tmp_path / str(len(made)), FakeSlurm(nodes), parse(text), mode)
        made.append(one)
        one.run(8)
        return one

    yield make
    for one in made:
        one.journal.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job on n1 to n3 (of six nodes) that has been listened to; a module may have a world of its own."""
    made = World(tmp_path, FakeSlurm(), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    yield made
    made.journal.close()
