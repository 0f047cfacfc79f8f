"""`srobust test` on a real Slurm with real PyTorch; a hook puts faults into the ranks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from helpers import wait_until
from stoptime_cluster import TestedCluster

from slurm_robust.devcluster.cluster import DevCluster, Spec

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
RANKS = "pairs,alignment"


@pytest.fixture(scope="module")
def tested() -> Iterator[TestedCluster]:
    """Five nodes: pairs and a triple."""
    cluster = DevCluster.up(Spec(nodes=5))
    yield TestedCluster(cluster)
    cluster.down()


@pytest.fixture
def job(tested: TestedCluster) -> Iterator[str]:
    """A job on all nodes that takes all of their processors."""
    cluster = tested.cluster
    said = cluster.layout.work / "ranks.out"
    said.unlink(missing_ok=True)
    ranks = ["--wrap", "srun sh -c 'echo up; exec sleep 600'"]
    job = cluster.run(["sbatch", "--parsable", "-N5", "--exclusive", f"--output={said}", *ranks]).stdout.strip()
    wait_until(lambda: said.exists() and said.read_text().count("up") == 5, 30, "each rank of the job")
    yield job
    cluster.run(["scancel", job], check=False)
    wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 30, "the job has ended")


def test_healthy_nodes_pass_every_test_beside_the_jobs_own_step(tested: TestedCluster, job: str) -> None:
    """All three tests, with the times of each stage; the job goes on."""
    code, report = tested.test("--job", job)
    assert (code, report["verdict"], report["findings"]) == (0, "passed", []), report
    stages = [stage["name"] for stage in report["stages"] if stage["name"] != "load PyTorch"]
    assert stages == ["start", "full check", "in-node", "pairs", "alignment", "end"]
    assert set(report["gb_per_s"]) == {"all_gather", "all_reduce"}
    assert report["notes"] == ["the tests had the NCCL_, UCX_ and GLOO_ variables of the job's own ranks"]
    assert "RUNNING" in tested.cluster.run(["squeue", "-h", "-o", "%T", "-j", job]).stdout


def test_a_wrong_bit_names_its_node_and_a_corrupting_link_its_ends(tested: TestedCluster, job: str) -> None:
    """Two faults at once: n3's arithmetic is off by a bit, and n1 and n2 garble what they send each other."""
    code, report = tested.test("--job", job, "--tests", RANKS, faults={"n3": "bit", "n1,n2": "corrupt"})
    found = {(f["test"], f["kind"]): f for f in report["findings"]}
    assert code == 1
    assert set(found) == {("alignment", "node"), ("pairs", "link")}, report
    assert found["alignment", "node"]["nodes"] == report["failed_nodes"] == ["n3"]
    assert "cpu computed other bits in 5 of 5 steps; 4 of 5 devices" in found["alignment", "node"]["reason"]
    assert found["pairs", "link"]["nodes"] == ["n1", "n2"]
    assert "wrong numbers in all_gather" in found["pairs", "link"]["reason"]


@pytest.mark.variant
def test_a_node_whose_ranks_crash_is_named(tested: TestedCluster, job: str) -> None:
    """It fails with three proven nodes, with the signal as evidence."""
    code, report = tested.test("--job", job, "--tests", "pairs", faults={"n4": "segfault"})
    assert (code, report["failed_nodes"]) == (1, ["n4"]), report
    assert "n4 says the test's process died of SIGSEGV" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_test_that_hangs_is_ended_and_names_its_node(tested: TestedCluster, job: str) -> None:
    """Each round ends at its limit; the other pairs go on, and the hung ranks are gone afterwards."""
    code, report = tested.test("--job", job, "--tests", "pairs", "--budget", "180", faults={"n2": "hang"})
    assert (code, report["failed_nodes"]) == (1, ["n2"]), report
    assert "no end within 15 s" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_slow_link_is_named() -> None:
    """A transfer that takes half a second each time, among pairs that take milliseconds."""
    cluster = DevCluster.up(Spec(nodes=8))
    try:
        code, report = TestedCluster(cluster).test("-w", "n[1-8]", "--tests", "pairs", faults={"n3,n4": "slow"})
    finally:
        cluster.down()
    assert (code, report["failed_nodes"]) == (1, []), report
    assert [(f["kind"], f["nodes"]) for f in report["findings"]] == [("link", ["n3", "n4"])]
    assert "the median of the round is" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_node_without_pytorch_is_not_tested_and_not_blamed(tested: TestedCluster, job: str) -> None:
    """The others are tested among each other."""
    code, report = tested.test("--job", job, "--tests", RANKS, faults={"n5": "no_torch"})
    assert code == 2
    assert [(f["test"], f["kind"], f["nodes"]) for f in report["findings"]] == [
        ("pairs", "untested", ["n5"]),
        ("alignment", "untested", ["n5"]),
    ]
    assert "cannot load PyTorch" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_node_that_dies_in_the_test_is_not_blamed() -> None:
    """Power is lost while its rank hangs: the node left, its partner meets another and passes."""
    cluster = DevCluster.up(Spec(nodes=4))
    try:
        dying = TestedCluster(cluster)
        with dying.started("-w", "n[1-4]", "--tests", "pairs", "--json", faults={"n2": "hang"}) as process:
            assert process.stderr is not None
            wait_until(lambda: "round 1" in process.stderr.readline(), 60, "the pairs")
            cluster.kill_slurmd("n2")
            out, _ = process.communicate(timeout=120)
        report = json.loads(out)
    finally:
        cluster.down()
    assert (process.returncode, report["failed_nodes"]) == (2, []), report
    assert [(f["kind"], f["nodes"]) for f in report["findings"]] == [("untested", ["n2"])]
    assert "n2 left the test" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_node_that_freezes_is_not_blamed_and_its_allocation_ends() -> None:
    """Its agent cannot end by itself: Slurm is told, so that nothing stays allocated."""
    cluster = DevCluster.up(Spec(nodes=4))
    try:
        with TestedCluster(cluster).started(
            "-w", "n[1-4]", "--tests", "pairs", "--json", faults={"n2": "hang"}
        ) as process:
            assert process.stderr is not None
            wait_until(lambda: "round 1" in process.stderr.readline(), 60, "the pairs")
            cluster.freeze_slurmd("n2", tasks=True)
            try:
                out, _ = process.communicate(timeout=120)
            finally:
                cluster.thaw_slurmd("n2", tasks=True)
        report = json.loads(out)
        assert (process.returncode, report["failed_nodes"]) == (2, []), report
        assert [(f["kind"], f["nodes"]) for f in report["findings"]] == [("untested", ["n2"])]
        wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 30, "the allocation has ended")
        TestedCluster(cluster).nothing_is_left()
    finally:
        cluster.down()


@pytest.mark.variant
def test_ctrl_c_and_a_killed_command_leave_nothing(tested: TestedCluster, job: str) -> None:
    """By a signal the command ends the step; killed outright, the agents end with their stdin."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with tested.started("--job", job, "--tests", "pairs", faults={"n2": "hang"}) as process:
            assert process.stderr is not None
            wait_until(lambda: "round 1" in process.stderr.readline(), 60, "the pairs")
            assert tested.tested()
            process.send_signal(number)
            assert process.wait(30) == code
        tested.nothing_is_left()


@pytest.mark.variant
def test_a_job_that_ends_and_a_second_test_blame_nobody(tested: TestedCluster, job: str) -> None:
    """The second test finds all nodes taken; when the job is cancelled, the first one says so."""
    with tested.started("--job", job, "--tests", "pairs", faults={"n2": "hang"}) as process:
        assert process.stderr is not None
        wait_until(lambda: "round 1" in process.stderr.readline(), 60, "the pairs")
        code, report = tested.test_beside("--job", job, "--tests", "pairs")
        assert code == 2
        assert {f["kind"] for f in report["findings"]} == {"untested"}
        assert "another srobust test runs on" in report["findings"][0]["reason"]
        tested.cluster.run(["scancel", job])
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"job {job} ended during the tests" in out
    tested.nothing_is_left()
