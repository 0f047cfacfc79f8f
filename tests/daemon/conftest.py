"""One small cluster for all of the daemon's tests with Slurm; each test gets a daemon and a journal of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene

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
