"""What every back end does to nodes and reservations, and how it fails, on a live cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers import wait_until
from slurm_helpers import Jobs

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.devcluster import machine
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.marks.fault_marker import FaultMarker, parse, render
from slurm_robust.policy.cluster.node_states import drained_by_us, foreign
from slurm_robust.slurm.client import Node, Reservation, SlurmClient
from slurm_robust.slurm.errors import SlurmNotFoundError, SlurmRefusedError, SlurmTimeoutError, SlurmUnavailableError
from slurm_robust.slurm.factory import connect

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("clean")]

SEAT_FLAGS = ("FLEX", "IGNORE_JOBS", "OVERLAP", "NO_HOLD_JOBS_AFTER_END")

REASONS = (
    "srobust: XID 79 on gpu 3",
    """srobust: it's "5" State=IDLE Reason=x [root@1] | \\n 100% $HOME `id`; naïve 日本""",
    "srobust: a [root@17] Comment=srobust-drain-permit NodeName=n1",
    'srobust: ends in a quote"',
    "srobust: " + "x" * 2000,
)


def node(client: SlurmClient, name: str) -> Node:
    """One node of the list."""
    return next(found for found in client.nodes() if found.name == name)


def reservation(client: SlurmClient, name: str) -> Reservation | None:
    """One reservation of the list."""
    return next((found for found in client.reservations() if found.name == name), None)


def test_nodes_are_read_with_what_the_configuration_gives_them(cluster: DevCluster, client: SlurmClient) -> None:
    """Names, partitions, GPUs, CPUs, memory and boot time."""
    found = client.nodes()
    assert [n.name for n in found] == list(cluster.node_names)
    first = found[0]
    assert (first.partitions, first.gres, first.cpus, first.memory_mb) == (("main", "short"), "gpu:fake:2", 8, 2000)
    assert 0 < first.boot_at_s < time.time()
    assert (first.reason, first.comment, first.usable, first.drained) == ("", "", True, False)


def test_one_node_is_read_alone(client: SlurmClient) -> None:
    """The same as in the list; none if Slurm does not know it, and never several."""
    assert client.node("n2") == node(client, "n2")
    assert client.node("n77") is None
    assert client.node("n[1-2]") is None


def test_the_clusters_name(cluster: DevCluster, client: SlurmClient) -> None:
    """As slurm.conf says it."""
    assert client.cluster_name() == cluster.name


@pytest.mark.parametrize("reason", REASONS)
def test_drain_and_resume_keep_the_reason_as_it_was(client: SlurmClient, reason: str) -> None:
    """A folded list is drained with its reason, whatever stands in it; the other nodes are not; resume clears both."""
    client.set_node_comment("n2", "a comment of an admin")
    client.drain("n[1-2]", reason)
    for name in ("n1", "n2"):
        found = node(client, name)
        assert found.drained
        assert "DRAIN" in found.flags
        assert (found.reason, found.reason_user) == (reason, "root")
        assert abs(found.reason_at_s - time.time()) < 60
    assert node(client, "n2").comment == "a comment of an admin"
    assert not node(client, "n3").drained
    client.resume("n[1-2]")
    assert not any(n.drained for n in client.nodes())
    # Without accounting, the releases between keep the text beside a node that is back, whatever is asked.
    if not (24, 11) <= machine.slurm_version() < (26, 5):
        assert not any(n.reason or n.reason_at_s for n in client.nodes())


def test_a_persons_drain_that_is_over_holds_nothing(cluster: DevCluster, client: SlurmClient) -> None:
    """While it stands the node is theirs; once resumed it is not, though Slurm 24.11 to 25.11 keep the text."""
    cluster.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=bad fan (ann)"])
    assert foreign(node(client, "n1"))
    cluster.run(["scontrol", "update", "nodename=n1", "state=resume"])
    assert not foreign(node(client, "n1"))
    assert not node(client, "n1").drained
    client.drain("n1", "srobust: XID 79")
    found = node(client, "n1")
    assert (found.reason, drained_by_us(found)) == ("srobust: XID 79", True)


def test_down_ends_what_runs_there(client: SlurmClient, jobs: Jobs) -> None:
    """A node set DOWN loses its job, keeps the reason and comes back by resume."""
    ref = JobRef(jobs.submit("-w", "n3", "--no-requeue"))
    jobs.wait(ref, "RUNNING")
    client.set_down("n3", "srobust: does not end its job")
    found = node(client, "n3")
    assert (found.state, found.reason, found.drained, found.usable) == (
        "DOWN",
        "srobust: does not end its job",
        True,
        False,
    )
    jobs.wait(ref, "NODE_FAIL", "COMPLETING", "CANCELLED", "FAILED")
    assert node(client, "n3").state == "DOWN"
    client.resume("n3")
    wait_until(lambda: node(client, "n3").usable, 10, "n3 back")


@pytest.mark.parametrize("reason", ["", "bad disk", "srobust: two\nNodeName=n4 State=DOWN", "srobust: nul\0"])
def test_a_reason_that_is_not_ours_or_not_one_line_is_refused(client: SlurmClient, reason: str) -> None:
    """Nothing is drained."""
    with pytest.raises(SlurmRefusedError, match="not passed to Slurm"):
        client.drain("n1", reason)
    assert not any(n.drained for n in client.nodes())


@pytest.mark.parametrize("nodes", ["", "ALL", "all", "n1 Reason=x", "n1\nn2", "-n1", "n1;n2", "@group"])
def test_what_is_no_node_list_is_refused(client: SlurmClient, nodes: str) -> None:
    """Least of all ALL, which Slurm takes for every node."""
    with pytest.raises(SlurmRefusedError, match="not a list of node names"):
        client.drain(nodes, "srobust: x")
    assert not any(n.drained for n in client.nodes())


def test_an_unknown_node_is_not_found(client: SlurmClient) -> None:
    """With Slurm's words."""
    with pytest.raises(SlurmNotFoundError, match="Invalid node name"):
        client.drain("n77", "srobust: x")


def test_a_nodes_comment_is_written_and_cleared(client: SlurmClient) -> None:
    """The breaker's marker; empty clears."""
    client.set_node_comment("n[1-4]", 'srobust-drain-permit {"until": 17, "x": "y"}')
    assert {n.comment for n in client.nodes()} == {'srobust-drain-permit {"until": 17, "x": "y"}'}
    client.set_node_comment("n[1-4]", "")
    assert {n.comment for n in client.nodes()} == {""}


def test_a_nodes_extra_text_is_written_beside_the_comment_and_cleared(client: SlurmClient) -> None:
    """The fault marker's place: neither text is part of the other, and a drain's reason leaves both."""
    marker = FaultMarker(1_790_000_000, "xid", (0, 1), """XID 79: it's "off" the bus, 100% $HOME | Comment=x""")
    text = render(marker, "rack 7")
    client.set_node_comment("n2", "a comment of an admin")
    client.set_node_extra("n[1-2]", text)
    client.drain("n2", "srobust: Extra=no")
    assert [n.extra for n in client.nodes()] == [text, text, "", ""]
    assert parse(node(client, "n1").extra) == marker
    second = node(client, "n2")
    assert (second.comment, second.reason) == ("a comment of an admin", "srobust: Extra=no")
    client.set_node_extra("n[1-2]", "")
    assert {n.extra for n in client.nodes()} == {""}
    assert node(client, "n2").comment == "a comment of an admin"
    client.set_node_comment("n2", "")
    client.resume("n2")


def test_the_gpus_of_a_job_are_named_by_node(client: SlurmClient, jobs: Jobs) -> None:
    """By Slurm's numbers; a job without GPUs has none, and one that Slurm does not know has none either."""
    one = JobRef(jobs.submit("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1"))
    two = JobRef(jobs.submit("--nodes=1", "--nodelist=n1", "--gres=gpu:1"))
    none = JobRef(jobs.submit("--nodes=1"))
    for job in (one, two, none):
        jobs.wait(job, "RUNNING")
    of_one, of_two = client.job_gpus(one), client.job_gpus(two)
    assert len(of_one) == 2
    assert set(of_two) == {"n1"}
    assert all(len(numbers) == 1 and numbers <= {0, 1} for numbers in (*of_one.values(), *of_two.values()))
    if "n1" in of_one:
        assert not of_one["n1"] & of_two["n1"]
    assert list(client.job_gpus(none).values()) == [frozenset()]
    assert client.job_gpus(JobRef(99_999)) == {}


def test_a_seat_is_made_changed_and_deleted(client: SlurmClient) -> None:
    """Flags, users, nodes and length are as asked; nodes and length change on an active reservation."""
    client.create_reservation("srobust-seat-1", "n[1-2]", ("root", "daemon"), 10, SEAT_FLAGS)  # 26.05 refuses "nobody"
    seat = reservation(client, "srobust-seat-1")
    assert seat is not None
    assert (seat.nodes, set(seat.users), seat.state) == ("n[1-2]", {"root", "daemon"}, "ACTIVE")
    assert set(SEAT_FLAGS) <= seat.flags
    assert seat.end_at_s - seat.start_at_s == 600
    assert abs(seat.start_at_s - time.time()) < 5
    client.create_reservation("over.it", "n2", ("root",), 5, ("FLEX", "IGNORE_JOBS", "OVERLAP"))
    client.update_reservation("srobust-seat-1", nodes="n[1-3]", duration_min=20)
    seat = reservation(client, "srobust-seat-1")
    assert seat is not None
    assert (seat.nodes, seat.end_at_s - seat.start_at_s) == ("n[1-3]", 1200)
    client.delete_reservation("over.it")
    client.delete_reservation("srobust-seat-1")
    assert client.reservations() == []


def test_a_job_takes_its_seat_and_leaves_it(client: SlurmClient, jobs: Jobs) -> None:
    """A seat in use cannot be deleted; out of it, the running job goes on."""
    client.create_reservation("seat", "n[3-4]", ("root",), 10, SEAT_FLAGS)
    ref = JobRef(jobs.submit("-N2", "-H"))
    client.update_job(ref, reservation="seat")
    jobs.release(ref)
    assert jobs.wait(ref, "RUNNING").nodes == ("n3", "n4")
    with pytest.raises(SlurmRefusedError):
        client.delete_reservation("seat")
    client.update_job(ref, reservation="")
    client.delete_reservation("seat")
    assert jobs.wait(ref, "RUNNING").reservation == ""


def test_an_unknown_reservation_is_not_found(client: SlurmClient, jobs: Jobs) -> None:
    """By delete, by update, and as a job's own."""
    ref = JobRef(jobs.submit("-H"))
    for act in (
        lambda: client.delete_reservation("nope"),
        lambda: client.update_reservation("nope", nodes="n1"),
        lambda: client.update_job(ref, reservation="nope"),
    ):
        with pytest.raises(SlurmNotFoundError, match="reservation is invalid"):
            act()


def test_an_unknown_flag_or_user_is_refused(client: SlurmClient) -> None:
    """By Slurm or before it is asked; no reservation stays behind."""
    for users, flags in ((("root",), ("BOGUS",)), (("nobody-here",), ()), ((), ()), (("root",), ("FLEX Nodes=ALL",))):
        with pytest.raises(SlurmRefusedError):
            client.create_reservation("bad", "n1", users, 5, flags)
    assert client.reservations() == []


def test_a_drain_shows_with_its_reason(client: SlurmClient) -> None:
    """As soon as the nodes are read again."""
    client.drain("n4", "srobust: confirmed")
    wait_until(lambda: node(client, "n4").drained, 10, "n4 drained")
    assert node(client, "n4").reason == "srobust: confirmed"


AS_USER = """
import json, sys
from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm.factory import connect
import msgspec
client = connect(msgspec.convert(json.loads(sys.argv[1]), SlurmConfig))
ref = JobRef(int(sys.argv[2]))
for act in (
    lambda: client.drain("n1", "srobust: x"),
    lambda: client.create_reservation("mine", "n1", ("nobody",), 5, ("FLEX",)),
    lambda: client.requeue(ref),
    lambda: client.cancel(ref),
    lambda: client.update_job(ref, comment="forged"),
    lambda: client.update_job(ref, admin_comment="forged"),
):
    try:
        act()
        print(json.dumps(["nothing", ""]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def test_an_ordinary_user_is_refused_with_slurms_words(
    cluster: DevCluster, client: SlurmClient, backend: str, jobs: Jobs
) -> None:
    """Nodes, reservations and other people's jobs; nothing changes."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    ref = JobRef(jobs.submit("--comment", "old"))
    jobs.wait(ref, "RUNNING")
    config = json.dumps({"backend": backend, "conf": str(cluster.layout.slurm_conf)})
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    # The interpreter may lie where only root can read: that one right is kept, and none of Slurm's depends on it.
    become = ["setpriv", "--reuid=nobody", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    argv = [*become, sys.executable, "-c", AS_USER, config, str(ref.job_id)]
    said = [json.loads(line) for line in cluster.run(argv, env=here).stdout.splitlines()]
    assert [kind for kind, _ in said] == ["SlurmRefusedError"] * 6
    for _, words in said:
        assert "Invalid user id" in words or "permission denied" in words
    assert jobs.wait(ref, "RUNNING").comment == "old"
    assert client.reservations() == []


def test_a_dead_controller_is_unavailable_and_a_frozen_one_times_out(
    cluster: DevCluster, client: SlurmClient, config: SlurmConfig
) -> None:
    """Neither is an empty answer; both end within their deadlines, and all is well once it is back."""
    quick = connect(SlurmConfig(backend=config.backend, conf=config.conf, timeout_s=1.0))
    assert len(quick.nodes()) == 4
    cluster.kill_slurmctld()
    try:
        for call in (client.nodes, lambda: client.drain("n1", "srobust: x")):
            with pytest.raises(SlurmUnavailableError):
                call()
    finally:
        cluster.start_slurmctld()
        cluster.wait_ready()
    pid = cluster.slurmctld_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        with pytest.raises(SlurmTimeoutError, match="within 1 s"):
            quick.nodes()
        assert time.monotonic() - began_s < 30
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: len(quick.nodes()) == 4, 5, "answers again")
