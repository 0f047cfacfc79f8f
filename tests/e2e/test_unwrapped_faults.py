"""A node's fault reaches a job that was never wrapped: the daemon brings it back, and the node is drained."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from conftest import Submit  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.marks import fault_marker

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]


def test_xid_79_in_mid_training_brings_an_unwrapped_job_back_on_another_node(
    cluster: Callable[..., DevCluster], submit: Submit
) -> None:
    """Kernel log, root service, Slurm, daemon: requeued within seconds, resumed from its checkpoint, completed."""
    dev = cluster(nodewatch=True, yaml={"daemon": {"protect": "all"}})
    job = submit(dev, steps=120, command="srun --kill-on-bad-exit=1")
    wait_until(lambda: "step 20/" in job.output(), 60, "step 20")
    victim = job.rank_node(1)
    at_s = time.time()
    dev.add_kmsg(victim, "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    wait_until(lambda: job.job().restart_count == 1, 30, f"the requeue\n{job.everything()}")
    assert time.time() - at_s < 15, job.everything()
    wait_until(lambda: job.job().state == "RUNNING", 30, f"the second attempt\n{job.everything()}")
    assert victim not in job.job().nodes
    node = job.node(victim)
    assert node.drained
    assert node.reason.startswith("srobust: XID 79 (GPU has fallen off the bus)")
    assert node.reason.endswith("[repair reboot]")
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 1), job.everything()
    steps = [int(n) for n in re.findall(r"step (\d+)/120 loss", job.output())]
    assert (steps.count(1), steps[-1]) == (1, 120), "from its checkpoint, not from the beginning"
    incident = job.incident()
    assert (incident["kind"], incident["plan"]["evict"]) == ("node_fault", [victim])
    assert "XID 79" in dev.run(["srobust", "incidents", job.id]).stdout
    wait_until(lambda: not fault_marker.marked(job.node(victim).extra), 15, "the marker is removed")
    job.assert_clean_slurm()
