"""What a back end reads cheaply, or of several at once, is what it reads in full, on a live cluster."""

from __future__ import annotations

import pytest
from helpers import wait_until
from slurm_helpers import Jobs

from slurm_robust.core.model import JobRef
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.marks.fault_marker import FaultMarker, render
from slurm_robust.policy.cluster.node_picture import line_of
from slurm_robust.slurm.client import NodeListing, SlurmClient
from slurm_robust.slurm.errors import SlurmNotFoundError

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("clean")]


def in_full(client: SlurmClient) -> NodeListing:
    """What the listing should show, by a reading of all nodes."""
    found: dict[object, frozenset[str]] = {}
    for node in client.nodes():
        found[line_of(node)] = found.get(line_of(node), frozenset()) | {node.name}
    return found  # type: ignore[return-value]


def alike(client: SlurmClient) -> None:
    """Both readings show the same, once Slurm is at rest between the two."""
    wait_until(lambda: client.node_listing() == in_full(client), 10, f"{client.node_listing()}\n{in_full(client)}")


def test_the_listing_shows_what_nodes_show(cluster: DevCluster, client: SlurmClient, jobs: Jobs) -> None:
    """States, reasons, comments, markers, used GPUs: of idle, drained, silent, reserved and busy nodes."""
    alike(client)
    assert frozenset(cluster.node_names) in client.node_listing().values(), "at first all are alike"
    busy = JobRef(jobs.submit("-w", "n1", "--gres=gpu:1"))
    jobs.wait(busy, "RUNNING")
    client.drain("n[1-2]", """srobust: it's "5" State=IDLE | a [root@17] Comment=x; naïve 日本""")
    client.set_node_comment("n2", "a comment of an admin")
    client.set_node_extra("n3", render(FaultMarker(1000, "xid", (0,), "XID 79 on GPU 0"), "rack 7"))
    client.create_reservation("srobust-listed", "n4", ("root",), 5, ())
    alike(client)
    assert sorted(len(names) for names in client.node_listing().values()) == [1, 1, 1, 1]
    cluster.run(["scontrol", "update", "nodename=n3", "state=down", "reason=two words"])
    cluster.run(["scontrol", "update", "nodename=n2", "state=fail", "reason=none"])
    alike(client)
    client.set_node_extra("n3", "")


def test_a_frozen_node_is_silent_in_both(cluster: DevCluster, client: SlurmClient) -> None:
    """As soon as slurmctld shows it."""
    cluster.freeze_slurmd("n4")
    try:
        client.set_node_comment("n4", "frozen")
        alike(client)
    finally:
        cluster.thaw_slurmd("n4")


def test_nodes_by_name(client: SlurmClient) -> None:
    """The same values as in the whole list; an unknown one is an error, since nobody knows what else is wrong."""
    nodes = {node.name: node for node in client.nodes()}
    assert client.nodes_named(["n3", "n1"]) == [nodes["n1"], nodes["n3"]]
    with pytest.raises(SlurmNotFoundError):
        client.nodes_named(["n1", "n77"])


def test_several_jobs_are_read_as_one_by_one(client: SlurmClient, jobs: Jobs) -> None:
    """In the order in which they were asked for, with their exclusions; None for one that Slurm does not know."""
    first = JobRef(jobs.submit("-N1", "-x", "n4"))
    second = JobRef(jobs.submit("-N1", "--hold"))
    array = jobs.submit("-N1", "--array=1-3", "-x", "n[1-2]")
    for ref in (first, JobRef(array)):
        jobs.wait(ref, "RUNNING")
    task = JobRef.parse(f"{array}_2")
    asked = [second, JobRef(999_999), task, first]
    wait_until(lambda: (job := client.job(task)) is not None and job.state == "RUNNING", 20, "the task runs")
    found = client.jobs_named(asked)
    assert found == [client.job(ref) for ref in asked]
    assert [job and job.exclude for job in found] == ["", None, "n[1-2]", "n4"]
    assert client.jobs_named([]) == []
    assert client.jobs_named([JobRef(999_998), JobRef(999_999)]) == [None, None]
