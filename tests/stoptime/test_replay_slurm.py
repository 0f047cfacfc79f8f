"""The replay on a real Slurm: programs that fail on one node, hang there, fail everywhere, or cannot start."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from stoptime_cluster import TestedCluster

from slurm_robust.core.model import TestName
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.stoptime.agent_step import StepTarget
from slurm_robust.stoptime.replay_run import ReplaySpec, by_option
from slurm_robust.stoptime.run import TestRun, TestSettings

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
PAIRS = ("--tests", "replay", "--budget", "240", "--replay-nodes", "2")
FOURS = (*PAIRS[:-1], "4")
ON_N4 = "if [ $SLURMD_NODENAME = n4 ]; then {}; fi"


@pytest.fixture(scope="module")
def tested() -> Iterator[TestedCluster]:
    """Six nodes: three blocks of two."""
    cluster = DevCluster.up(Spec(nodes=6))
    yield TestedCluster(cluster)
    cluster.down()


@pytest.fixture
def job(tested: TestedCluster) -> Iterator[str]:
    """A job on all nodes that takes all of their processors."""
    cluster = tested.cluster
    job = cluster.run(["sbatch", "--parsable", "-N6", "--exclusive", "--wrap", "srun sleep 600"]).stdout.strip()
    state = ["squeue", "-h", "-o", "%T", "-j", job]
    wait_until(lambda: "RUNNING" in cluster.run(state).stdout, 30, "the job runs")
    yield job
    cluster.run(["scancel", job], check=False)
    wait_until(lambda: not cluster.run(["squeue", "-h"]).stdout.strip(), 30, "the job has ended")


def test_a_program_that_fails_on_one_node_names_it(tested: TestedCluster, job: str, tmp_path: Path) -> None:
    """In both of its groups, and again with a node that passed; each rank knew its group, and that it replays."""
    variables = "$SROBUST_REPLAY $SROBUST_REPLAY_PHASE $SROBUST_REPLAY_GROUP $WORLD_SIZE"
    command = f"echo {variables} >> {tmp_path}/$SLURMD_NODENAME; "
    command += ON_N4.format("echo 'RuntimeError: CUDA error' >&2; exit 7")
    code, report = tested.test("--job", job, *PAIRS, "--replay", command)
    assert (code, report["failed_nodes"]) == (1, ["n4"]), report
    assert [(f["test"], f["kind"]) for f in report["findings"]] == [("replay", "node")], report
    reason = report["findings"][0]["reason"]
    assert "the replay fails on n4 with n3 (n4: task 1: Exited with exit code 7" in reason
    assert "and with n1 (" in reason
    # In one try or another: a busy Slurm that ends a step at once loses what its task wrote last.
    assert "; its last line: RuntimeError: CUDA error" in reason
    assert (tmp_path / "n5").read_text() == "1 1 2 2\n1 2 1 2\n"
    assert "RUNNING" in tested.cluster.run(["squeue", "-h", "-o", "%T", "-j", job]).stdout


@pytest.mark.variant
def test_the_reference_model_finds_a_node_that_computes_wrong(tested: TestedCluster, job: str) -> None:
    """One wrong bit in one product: its replica comes to other bits than the others."""
    code, report = tested.test("--job", job, *PAIRS, faults={"n3": "bit"})
    assert (code, report["failed_nodes"]) == (1, ["n3"]), report
    assert "its replica computed other bits than 2 of 3 replicas of the same kind" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_healthy_nodes_pass_in_one_phase(tested: TestedCluster, job: str) -> None:
    """Of the reference model, whose replicas come to the same bits."""
    code, report = tested.test("--job", job, *PAIRS)
    assert (code, report["findings"]) == (0, []), report


@pytest.mark.variant
def test_a_program_that_hangs_on_one_node_names_it(tested: TestedCluster, job: str) -> None:
    """It ignores SIGTERM; the other groups passed long ago."""
    command = ON_N4.format("trap '' TERM; echo waits >&2; while true; do sleep 700; done")
    code, report = tested.test("--job", job, *PAIRS, "--replay", command)
    assert (code, report["failed_nodes"]) == (1, ["n4"]), report
    assert "it hung: no end within 3" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_a_program_that_fails_everywhere_names_nobody(tested: TestedCluster, job: str) -> None:
    """One phase is enough to say so."""
    code, report = tested.test("--job", job, *PAIRS, "--replay", "exit 3")
    assert (code, report["failed_nodes"]) == (2, []), report
    assert [f["kind"] for f in report["findings"]] == ["undecided"]
    assert "all 3 groups of phase 1 fail: the program fails" in report["findings"][0]["reason"]


@pytest.mark.variant
def test_groups_that_are_too_large_and_an_uneven_number_of_nodes(tested: TestedCluster, job: str) -> None:
    """Seven nodes are not there. Of six nodes in fours, the last two run with two that passed."""
    code, report = tested.test("--job", job, *PAIRS[:-1], "7", "--replay", "true")
    assert (code, report["findings"][0]["kind"], len(report["findings"][0]["nodes"])) == (2, "untested", 6)
    code, report = tested.test("--job", job, *FOURS, "--replay", "true")
    assert (code, report["findings"]) == (0, []), report


@pytest.mark.variant
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_command_that_is_ended_leaves_nothing(tested: TestedCluster, job: str, number: int, code: int) -> None:
    """By a signal it ends the steps; killed outright, Linux ends the sruns, and they end their steps."""
    command = "trap '' TERM; while true; do sleep 700; done"
    with tested.started("--job", job, *PAIRS, "--replay", command) as process:
        assert process.stderr is not None
        wait_until(lambda: "phase 1" in process.stderr.readline(), 60, "the first phase")
        steps = ["squeue", "-hs", "-j", job, "-o", "%j"]
        wait_until(lambda: tested.cluster.run(steps).stdout.count("srobust-replay") == 3, 30, "its steps")
        process.send_signal(number)
        assert process.wait(30) == code
    tested.nothing_is_left()
    wait_until(lambda: "srobust" not in tested.cluster.run(steps).stdout, 30, "Slurm counts no step of it")


@pytest.mark.variant
def test_a_job_that_ends_during_the_replay_blames_nobody(tested: TestedCluster, job: str) -> None:
    """Its steps die with it."""
    with tested.started("--job", job, *PAIRS, "--replay", "sleep 700", "--json") as process:
        assert process.stderr is not None
        wait_until(lambda: "phase 1" in process.stderr.readline(), 60, "the first phase")
        tested.cluster.run(["scancel", job])
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"job {job} ended during the tests" in out
    assert '"failed_nodes": []' in out
    tested.nothing_is_left()


@pytest.mark.variant
def test_nodes_without_a_job_replay_in_an_allocation_of_their_own(tested: TestedCluster) -> None:
    """It ends with the test. A step that Slurm refuses blames nobody."""
    code, report = tested.test("-w", "n[1-6]", *PAIRS, "--replay", ON_N4.format("kill -SEGV $$"))
    assert (code, report["failed_nodes"]) == (1, ["n4"]), report
    assert "n4: task 1: Segmentation fault" in report["findings"][0]["reason"]
    code, report = tested.test("-w", "n[1-6]", *PAIRS, "--replay-tasks", "1000", "--replay", "true")
    assert (code, {f["kind"] for f in report["findings"]}) == (2, {"untested"}), report
    wait_until(lambda: not tested.cluster.run(["squeue", "-h"]).stdout.strip(), 30, "the allocation has ended")


@pytest.mark.variant
def test_the_jobs_own_command_runs_under_its_own_options(
    tested: TestedCluster, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a supervisor starts it, from the batch script's environment: smaller, and the training's log stays."""
    for name, value in tested.cluster.env.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    script = f'echo "$SLURM_NTASKS $SLURM_CPUS_PER_TASK" > {tmp_path}/$SLURMD_NODENAME; [ $SLURMD_NODENAME != n6 ]'
    typed = ("-N6", "--ntasks", "12", "-c2", f"--output={log}", "--export=NONE")
    environment = {**tested.cluster.env, "SLURM_JOB_ID": job, "SLURM_NTASKS": "12", "SLURM_GPUS": "6"}
    spec = ReplaySpec(2, 2, ("/bin/sh", "-c", script), srun_options=typed, environment=environment)
    target = StepTarget(tuple(f"n{number}" for number in range(1, 7)), int(job))
    settings = TestSettings(240.0, replay=by_option("same", spec))
    run = TestRun(target, [TestName.REPLAY], settings, lambda _: None)
    report = asyncio.run(run.run())
    assert report.failed_nodes == ("n6",), report
    assert (tmp_path / "n1").read_text() == "4 2\n"
    assert log.read_text() == "step 1\n"
    assert run.left_replay == []
