"""Nodes are lost, or freeze, with all that runs on them: the job goes on elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Submit  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
# On a busy machine a living slurmd may be silent for as long: only here is it worth that.
LOST_SOON = {"slurmd_timeout_s": 3}


def test_a_lost_node_brings_the_job_back_on_the_others_and_the_standby(cluster: Cluster, submit: Submit) -> None:
    """slurmd, its steps and all ranks of a node are gone at once, as if it lost power: the daemon sees it."""
    dev = cluster(**LOST_SOON)
    job = submit(dev, steps=60)
    wait_until(lambda: "step 8/" in job.output(), 60, "the first checkpoint")
    before = job.job()
    victim = next(n for n in before.nodes if n != before.batch_host)
    dev.kill_slurmd(victim)
    assert job.hears("training", 120, count=2)["step"] > 5
    ended = job.ends()
    assert ended.state == "COMPLETED", job.everything()
    assert victim not in ended.nodes
    assert job.node(victim).drained
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_launch_that_slurm_refuses_after_a_lost_node_costs_no_attempt(cluster: Cluster, submit: Submit) -> None:
    """Slurm 22.05 itself gives a requeued job no GRES: another allocation does, and the admin is told of the nodes."""
    dev = cluster(**LOST_SOON, standby=0, daemon=False, nodes=7, supervise={"fruitless_attempts": 1})
    if " 22.05" not in dev.run(["scontrol", "--version"]).stdout:
        pytest.skip("only Slurm 22.05 is known to lose count of GRES")
    job = submit(dev, steps=30, sbatch=("--gres=gpu:2",))
    job.hears("training")
    before = job.job()
    victim = next(n for n in before.nodes if n != before.batch_host)
    dev.kill_slurmd(victim)
    dev.run(["scontrol", "requeue", job.id])
    decided = job.hears("decided", 90)
    assert decided["road"] == "plain_requeue", job.everything()
    assert "Invalid generic resource" in decided["text"], job.everything()
    broken = job.job().nodes
    wait_until(lambda: job.job().state == "PENDING", 60, "the requeue")
    dev.run(["scontrol", "update", f"jobid={job.id}", "StartTime=now"])
    ended = job.ends(150)
    assert ended.state == "COMPLETED", job.everything()
    assert not set(ended.nodes) & set(broken)
    dev.start_daemon()
    wait_until(lambda: "scontrol reconfigure" in dev.run(["srobust", "status"]).stdout, 60, "a word on the nodes")
    dev.run(["scontrol", "reconfigure"])
    wait_until(lambda: "scontrol reconfigure" not in dev.run(["srobust", "status"]).stdout, 60, "the cure")


@pytest.mark.variant
def test_the_lost_batch_node_does_not_lose_the_job(cluster: Cluster, submit: Submit) -> None:
    """The wrapper itself is gone with its node: the daemon alone brings the job back."""
    dev = cluster(**LOST_SOON)
    job = submit(dev, steps=40)
    job.hears("training")
    victim = job.job().batch_host
    dev.kill_slurmd(victim)
    job.hears("training", 120, count=2)
    ended = job.ends()
    assert ended.state == "COMPLETED", job.everything()
    assert ended.restart_count == 1
    assert victim not in ended.nodes
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_frozen_node_does_not_hold_up_its_own_recovery(cluster: Cluster, submit: Submit) -> None:
    """slurmd, steps and ranks of a node stand still: set DOWN where it holds up the job's end, training goes on."""
    dev = cluster(**LOST_SOON)
    job = submit(dev, steps=40)
    job.hears("training")
    before = job.job()
    victim = next(n for n in before.nodes if n != before.batch_host)
    dev.freeze_slurmd(victim, tasks=True)
    try:
        job.hears("training", 120, count=2)
        ended = job.ends()
        assert ended.state == "COMPLETED", job.everything()
        assert victim not in ended.nodes
    finally:
        dev.thaw_slurmd(victim, tasks=True)
    wait_until(lambda: job.node(victim).drained or job.node(victim).usable, 30, "a word on the node")
    job.assert_clean_slurm()


def test_a_lost_node_is_replaced_by_the_jobs_own_spare(cluster: Cluster, submit: Submit) -> None:
    """`#SBATCH --no-kill` and one node more than the training needs: Slurm ends nothing, and nothing is requeued."""
    dev = cluster(**LOST_SOON, standby=0)
    command = "#SBATCH --no-kill\nsrobust run -N2 -n2 --robust-checkpoint-dir=ck"
    job = submit(dev, steps=120, command=command)
    wait_until(lambda: "step 8/" in job.output(), 60, "the first checkpoint")
    job.hears("training")
    before = job.job()
    victim = next(n for n in before.nodes[:2] if n != before.batch_host)
    dev.kill_slurmd(victim)
    assert job.hears("decided", 90)["road"] == "spare_in_allocation", job.everything()
    assert job.hears("resumed", 90)["step"] > 5
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    job.assert_clean_slurm()
