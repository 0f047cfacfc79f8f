"""Nothing is wrong: captures at most, and never a restart. And jobs that were never wrapped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Submit, Training, free_port  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]


def assert_left_alone(job: Training) -> None:
    """Captures at most: one attempt, no claim, no relaunch, no word against a node."""
    ended = job.ends()
    assert (ended.state, ended.exit_code, ended.restart_count) == ("COMPLETED", "0:0", 0), job.everything()
    for kind in ("decided", "claimed", "relaunched", "stopped"):
        assert job.told(kind) == [], job.everything()
    assert job.output().count("resumed from step") == 0
    assert all(not n.drained for n in job.client.nodes())
    assert not job.reservations("srobust-quarantine")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"kind": "long_eval", "rank": 0, "step": 20, "seconds": 12}, marks=pytest.mark.variant),
        pytest.param({"kind": "long_step", "rank": 1, "step": 15, "seconds": 9}, marks=pytest.mark.variant),
        pytest.param({"kind": "long_checkpoint", "rank": 0, "step": 10, "seconds": 12}, marks=pytest.mark.variant),
        {"kind": "sleep_outside", "rank": 1, "step": 15, "seconds": 9},
    ],
    ids=["first-long-evaluation-nobody-announced", "long-step", "long-checkpoint-pause", "pause-between-steps"],
)
def test_a_pause_costs_a_capture_at_most(cluster: Cluster, submit: Submit, fault: dict[str, Any]) -> None:
    """Many times the p99 of a step on one rank, the others waiting: a false kill is worse than a late one."""
    dev = cluster(nodes=3, standby=0)
    job = submit(dev, nodes=2, steps=30, fault=fault, again=True, arguments="--eval-every 20 --checkpoint-every 10")
    assert_left_alone(job)
    if fault["kind"] != "long_checkpoint":
        assert job.told("captured"), "it was looked at"


def test_stacks_and_attach_work_on_a_job_that_was_never_wrapped(cluster: Cluster, submit: Submit) -> None:
    """Plain `srun python train.py`: merged stacks on demand; a watch beside it tells of a hang and changes nothing."""
    dev = cluster(nodes=3, standby=0)
    job = submit(dev, nodes=2, steps=400, fault={"kind": "dead_mount", "rank": 1, "step": 60}, command="srun")
    wait_until(lambda: "step 3/" in job.output(), 60, "training")
    shown = dev.run(["srobust", "stacks", job.id])
    assert "Trainer.train" in shown.stdout
    assert "0-1" in shown.stdout
    as_json = json.loads(dev.run(["srobust", "stacks", job.id, "--json"]).stdout)
    assert sorted(as_json["nodes"]) == ["n1", "n2"]
    wait_until(lambda: "fault: dead_mount" in job.output(), 60, "the hang: whoever attaches comes after it")
    log = job.folder / "attach.log"
    dev.run(["bash", "-c", f"nohup srobust attach {job.id} > {log} 2>&1 & echo $! > {job.folder}/pid"])
    suspect = job.hears("suspect", 60)
    assert suspect["node"] == "n2"
    assert job.hears("observed")["text"].startswith("observe mode")
    assert job.job().state == "RUNNING"
    dev.run(["scancel", job.id])
    pid = int((job.folder / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the watch's end with its job")


def test_torchrun_ranks_are_told_apart(cluster: Cluster, submit: Submit) -> None:
    """One task a node, two workers each: four ranks, and the one in D state is named by its RANK."""
    dev = cluster(nodes=3, standby=0)
    torchrun = (
        "srobust run --robust=observe python -m torch.distributed.run --nnodes=2 --nproc-per-node=2 "
        f"--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{free_port()} --rdzv-id=$SLURM_JOB_ID --no-python"
    )
    job = submit(dev, nodes=2, fault={"kind": "dead_mount", "rank": 3, "step": 12}, command=torchrun)
    suspect = job.hears("suspect", 90)
    assert suspect["ranks"] == [3]
    assert "4 ranks" in job.told("training")[0]["text"]
    dev.run(["scancel", job.id])


def test_a_killed_supervisor_and_killed_agents_harm_no_rank(cluster: Cluster, submit: Submit) -> None:
    """Supervisor and watch step are killed with -9: both are started anew, the training does not notice."""
    dev = cluster(nodes=3, standby=0)
    job = submit(dev, nodes=2, steps=150)
    job.hears("training")

    def kill(pattern: str) -> None:
        victims = [p for p in dev.processes(int(job.id)) if pattern in Path(f"/proc/{p}/cmdline").read_text()]
        assert victims, pattern
        dev.run(["kill", "-9", *map(str, victims)], check=False)

    kill("slurm_robust.supervise\0")
    wait_until(lambda: "supervisor was started anew" in job.output(), 30, "another supervisor")
    job.hears("training", count=2)
    kill("agent.main")
    assert_left_alone(job)
