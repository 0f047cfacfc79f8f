"""A live cluster for the contract, and each back end that can be imported here."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from helpers import wait_until
from pyslurm_world import World
from slurm_helpers import Jobs

from slurm_robust.config.site import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.devcluster.spec import Spec
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import BACKENDS, connect
from slurm_robust.slurm.pyslurm_backend import PyslurmClient

IMPORTABLE = [name for name in BACKENDS if name == "commands" or importlib.util.find_spec(name)]


@pytest.fixture(scope="session")
def cluster(devcluster_factory: Callable[[Spec], DevCluster]) -> DevCluster:
    """Four nodes; slurmctld that does not answer is noticed after three seconds instead of ten.

    With `ReturnToService=2`, the devcluster's own, a node set DOWN is back before anyone looks.
    """
    extra = "MessageTimeout=3\nReturnToService=1\nPartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE\n"
    extra += "PartitionName=short Nodes=ALL MaxTime=60 DefaultTime=5\n"
    return devcluster_factory(Spec(nodes=4, gpus_per_node=2, prolog=False, kill_wait_s=2, slurm_conf_extra=extra))


@pytest.fixture(scope="session", params=IMPORTABLE)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a back end."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def config(cluster: DevCluster, backend: str) -> SlurmConfig:
    """How the back end reaches the cluster."""
    return msgspec.convert({"backend": backend, "conf": str(cluster.layout.slurm_conf), "timeout_s": 20.0}, SlurmConfig)


@pytest.fixture(scope="session")
def client(config: SlurmConfig) -> Iterator[SlurmClient]:
    """A client of the back end under test; one of pyslurm must have done all that it is not declared to leave."""
    made = connect(config)
    yield made
    if isinstance(made, PyslurmClient):
        about = made.about()
        made.close()
        assert (about.problem, about.lacking) == ("", ())


@pytest.fixture
def jobs(cluster: DevCluster, client: SlurmClient) -> Iterator[Jobs]:
    """A test's jobs; they are gone, and every node is back, when the next test begins."""
    yield Jobs(cluster, client)
    nobody(cluster)


def nobody(cluster: DevCluster) -> None:
    """End all jobs there are: a controller that was killed remembers some that had ended since it last wrote."""

    def gone() -> bool:
        told = cluster.run(["squeue", "-h", "-o", "%i"], check=False)
        if not told.returncode and not told.stdout.strip():
            return True
        # A controller that was killed or frozen a moment ago may hear neither of the first two.
        cluster.run(["scancel", *{re.split(r"[_+]", job)[0] for job in told.stdout.split()}], check=False)
        return False

    wait_until(gone, 30, "all jobs to go", poll_s=0.2)


@pytest.fixture
def clean(cluster: DevCluster, client: SlurmClient) -> Iterator[None]:
    """Undoes what a test did to nodes and reservations."""
    yield
    nobody(cluster)
    for reservation in client.reservations():
        delete = ["scontrol", "delete", f"reservation={reservation.name}"]
        wait_until(lambda delete=delete: not cluster.run(delete, check=False).returncode, 15, " ".join(delete))
    for node in client.nodes():
        if node.drained:
            with contextlib.suppress(SlurmError):
                client.resume(node.name)
        if node.comment:
            cluster.run(["scontrol", "update", f"nodename={node.name}", "comment="])
    wait_until(lambda: all(node.usable for node in client.nodes()), 15, "every node usable again")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of its own."""
    made = World(tmp_path, monkeypatch)
    yield made
    made.close()
