"""Nodes report faults of their own through the ring of their root service: the job goes on elsewhere, or stays."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.config import site as config
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding, encode
from slurm_robust.policy.job.node_faults import MILD_MOVES, ONE_EVENT_S

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]

GPU_LOST: dict[str, Any] = {
    "source": "kmsg",
    "kind": "xid",
    "urgency": "now",
    "text": "XID 79: GPU has fallen off the bus",
    "code": 79,
}
FLAP: dict[str, Any] = {
    "source": "link",
    "kind": "link",
    "urgency": "if_repeated",
    "text": "ib0 lost its link",
    "port": "ib0",
}
REMAP: dict[str, Any] = {
    "source": "poll",
    "kind": "gpu_rows",
    "urgency": "at_next_checkpoint",
    "text": "a row remap of GPU 1 is pending",
    "gpus": (1,),
}


class Rings:
    """What the root services of a cluster's nodes have found."""

    def __init__(self, cluster: DevCluster) -> None:
        self._folder = config.load(cluster.env["SROBUST_CONFIG"]).nodecheck.cache_dir
        self._found: dict[str, list[NodeFinding]] = {}

    def add(self, node: str, **finding: Any) -> float:
        """A node finds something; returns when."""
        found = self._found.setdefault(node, [])
        at_s = time.time()
        found.append(NodeFinding(**finding, seq=len(found) + 1, at_s=at_s))
        folder = Path(self._folder.replace("%n", node))
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = folder / "findings.new"
        new.write_bytes(encode(found, node_findings.boot_id()))
        new.chmod(0o644)
        new.rename(folder / node_findings.FILE_NAME)
        return at_s


def trains(job: Training, step: int) -> None:
    """Wait until training is at this step."""
    job.hears("training")
    wait_until(lambda: f"step {step}/" in job.output(), 60, f"step {step}")


def silences(job: Training) -> list[str]:
    """Suspicions of a hang."""
    return [line["text"] for line in job.told("suspected") if "silence" in line["text"]]


def test_xid_79_in_mid_training_moves_the_job_before_any_hang_is_suspected(cluster: Cluster, submit: Submit) -> None:
    """The GPU of a rank falls off the bus, and the job leaves the node at once; stacks are there all the same."""
    dev = cluster()
    job = submit(dev, steps=80, sbatch=("--gres=gpu:2",))
    trains(job, 8)
    victim = job.rank_node(1)
    at_s = Rings(dev).add(victim, **GPU_LOST, gpus=(1,))
    decided = job.hears("decided")
    assert decided["evict"] == [victim], job.everything()
    assert decided["at_s"] - at_s < 5, job.everything()
    assert "XID 79" in decided["text"]
    job.hears("resumed")
    assert victim not in job.job().nodes
    assert silences(job) == []
    assert len(job.told("captured")) == 1, job.everything()
    assert job.ends().state == "COMPLETED", job.everything()
    incident = job.incident_closed()
    assert incident["plan"]["evict"] == [victim]
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_link_flap_is_nothing_and_the_second_one_in_five_minutes_moves_the_job(
    cluster: Cluster, submit: Submit
) -> None:
    """Before that, a GPU that the job does not use is lost: nothing."""
    dev = cluster()
    job = submit(dev, steps=240, sbatch=("--gres=gpu:1",))
    trains(job, 8)
    victim = job.rank_node(2)
    rings = Rings(dev)
    rings.add(victim, **GPU_LOST, gpus=(1,))
    first_at_s = rings.add(victim, **FLAP)
    told = job.hears("node-fault")
    assert (told["node"], told["kind"]) == (victim, "node-fault")
    step = re.findall(r"step (\d+)/", job.output())[-1]
    trains(job, int(step) + 20)
    assert job.told("suspected") == [], job.everything()
    assert [line["port"] for line in job.told("node-fault")] == ["ib0"], job.everything()
    wait_until(lambda: time.time() - first_at_s > ONE_EVENT_S, 20, "an event of its own")
    rings.add(victim, **FLAP)
    decided = job.hears("decided")
    assert decided["evict"] == [victim], job.everything()
    assert "for the second time" in decided["text"]
    job.hears("resumed")
    assert victim not in job.job().nodes
    assert job.ends().state == "COMPLETED", job.everything()
    job.assert_clean_slurm()


def test_a_pending_row_remap_moves_the_job_after_its_checkpoint_and_no_step_is_computed_twice(
    cluster: Cluster, submit: Submit
) -> None:
    """The node is left between the checkpoint and the end of the step that follows it."""
    dev = cluster()
    slow = {"kind": "slow_rank", "rank": 0, "step": 1, "seconds": 2.0}
    job = submit(dev, steps=14, sbatch=("--gres=gpu:2",), fault=slow, again=True)
    trains(job, 2)
    victim = job.rank_node(1)
    Rings(dev).add(victim, **REMAP)
    job.hears("node-fault")
    decided = job.hears("decided")
    assert decided["evict"] == [victim], job.everything()
    assert "step 5/" in job.output(), job.everything()
    resumed = job.hears("resumed")
    assert (resumed["resume_step"], resumed["step"]) == (5, 6), job.everything()
    assert victim not in job.job().nodes
    assert job.ends().state == "COMPLETED", job.everything()
    steps = [int(n) for n in re.findall(r"step (\d+)/14 loss", job.output())]
    assert steps == list(range(1, 15)), job.everything()
    assert silences(job) == []
    job.assert_clean_slurm()


def test_faults_on_all_nodes_at_once_are_one_alert(cluster: Cluster, submit: Submit) -> None:
    """A cause that they share: another node would not help."""
    dev = cluster()
    job = submit(dev, steps=80, sbatch=("--gres=gpu:1",))
    trains(job, 8)
    rings = Rings(dev)
    nodes = job.job().nodes
    for node in nodes:
        rings.add(node, **GPU_LOST)
    decided = job.hears("decided")
    assert (decided["road"], decided["evict"]) == ("alert_only", []), job.everything()
    assert "more than half" in decided["text"]
    for node in nodes:
        rings.add(node, **GPU_LOST)
    ended = job.ends()
    assert (ended.state, ended.restart_count, ended.nodes) == ("COMPLETED", 0, nodes), job.everything()
    assert len(job.told("decided")) == 1, job.everything()
    assert len(job.told("suspected")) == 1, job.everything()


@pytest.mark.variant
def test_observe_mode_only_says_what_it_would_do(cluster: Cluster, submit: Submit) -> None:
    """The same lost GPU: words, and the training ends as if nothing had been."""
    dev = cluster(mode="observe")
    job = submit(dev, steps=60, sbatch=("--gres=gpu:1",))
    trains(job, 8)
    victim = job.rank_node(1)
    Rings(dev).add(victim, **GPU_LOST)
    observed = job.hears("observed")
    assert "would take" in observed["text"]
    assert victim in observed["text"]
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    assert job.told("decided") == []
    assert len(job.told("observed")) == 1, job.everything()


@pytest.mark.variant
def test_a_line_of_the_kernel_log_moves_the_job_and_drains_the_node(cluster: Cluster, submit: Submit) -> None:
    """The whole way: kernel log, root service, agent, supervisor, daemon. The node fails its check, and why is said."""
    dev = cluster(nodewatch=True)
    job = submit(dev, steps=80, sbatch=("--gres=gpu:1",))
    trains(job, 8)
    victim = job.rank_node(1)
    at_s = time.time()
    dev.add_kmsg(victim, "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=python, MMU Fault")
    dev.add_kmsg(victim, "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    decided = job.hears("decided")
    assert decided["evict"] == [victim], job.everything()
    assert decided["at_s"] - at_s < 10, job.everything()
    assert "79" in decided["text"]
    job.hears("resumed")
    assert victim not in job.job().nodes
    assert silences(job) == []
    assert job.ends().state == "COMPLETED", job.everything()
    wait_until(lambda: job.node(victim).drained, 60, "the drain")
    assert "79" in job.node(victim).reason
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_line_of_the_kernel_log_moves_the_job_without_a_service(cluster: Cluster, submit: Submit) -> None:
    """The agent reads the log itself: a program's own XID is a line in the story, a lost GPU moves the job."""
    dev = cluster()
    job = submit(dev, steps=80, sbatch=("--gres=gpu:1",))
    trains(job, 8)
    victim = job.rank_node(1)
    at_s = time.time()
    dev.add_kmsg(victim, "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=python, MMU Fault")
    told = job.hears("node-fault")
    assert (told["node"], told["source"], told["urgency"], told["code"]) == (victim, "agent", "note", 31)
    dev.add_kmsg(victim, "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    decided = job.hears("decided")
    assert decided["evict"] == [victim], job.everything()
    assert decided["at_s"] - at_s < 10, job.everything()
    job.hears("resumed")
    assert victim not in job.job().nodes
    assert silences(job) == []
    assert job.ends().state == "COMPLETED", job.everything()
    job.assert_clean_slurm()


@pytest.mark.variant
def test_mild_faults_move_a_job_three_times_and_no_more(cluster: Cluster, submit: Submit) -> None:
    """Each time by requeue, which the job remembers; then one alert. A person's drain is told in about a minute."""
    dev = cluster()
    slow = {"kind": "slow_rank", "rank": 0, "step": 1, "seconds": 1.0}
    job = submit(dev, steps=110, sbatch=("--gres=gpu:2",), fault=slow, again=True)
    rings = Rings(dev)
    for count in range(1, MILD_MOVES + 1):
        trains(job, 6 * count)
        victim = job.rank_node(1)
        rings.add(victim, **{**REMAP, "kind": f"mild_{count}"})
        decided = job.hears("decided", 60, count)
        assert decided["evict"] == [victim], job.everything()
        job.hears("resumed", 60, count)
        assert victim not in job.job().nodes
    last = job.rank_node(1)
    rings.add(last, **REMAP)
    alert = job.hears("decided", 60, MILD_MOVES + 1)
    assert (alert["road"], alert["evict"]) == ("alert_only", []), job.everything()
    assert f"moved {MILD_MOVES} times within a day" in alert["text"]
    dev.run(["scontrol", "update", f"nodename={last}", "state=drain", "reason=fans, bob"])
    told = wait_until(lambda: [n for n in job.told("node-fault") if n["source"] == "slurm"], 80, "the drain")
    assert "fans, bob" in told[0]["text"]
    ended = job.ends(120)
    assert (ended.state, ended.restart_count) == ("COMPLETED", MILD_MOVES), job.everything()
