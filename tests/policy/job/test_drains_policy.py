"""drains: whose drain moves a job, and which nodes it has to itself."""

from __future__ import annotations

import pytest

from slurm_robust.policy.job.drains import urgency_of_drain, whole_nodes
from slurm_robust.slurm.client import Node

DRAIN = frozenset({"DRAIN"})


@pytest.mark.parametrize(
    ("reason", "whole", "urgency"),
    [
        ("srobust: gpu_lost", {"n1"}, "at_next_checkpoint"),
        ("srobust: gpu_lost", {"n2"}, "note"),
        ("srobust: suspect of job 7", set(), "note"),
        ("swap the fans, bob", {"n1"}, "note"),
    ],
)
def test_only_our_drain_of_a_node_that_the_job_has_to_itself_moves_it(
    reason: str, whole: set[str], urgency: str
) -> None:
    """A person who drains a node wants its job to finish; a shared node may be drained for another job's GPU."""
    assert urgency_of_drain(Node("n1", "ALLOCATED", DRAIN, reason), whole) == urgency


@pytest.mark.parametrize(
    ("gres", "gpus", "cpus", "whole"),
    [
        ("gpu:8", 8, 4, True),
        ("gpu:8", 7, 64, False),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:0),nic:1", 6, 1, True),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:0),nic:1", 4, 1, False),
        ("nic:1,gpu:1g.5gb:7", 7, 1, True),
        ("gpu", 1, 64, False),
        ("shard:32,gpu:4", 0, 64, False),
        ("nic:8", 0, 64, True),
        ("", 0, 64, True),
        ("", 0, 63, False),
        ("", 8, 0, False),
    ],
)
def test_a_job_has_a_node_to_itself_with_all_gpus_or_all_cpus(gres: str, gpus: int, cpus: int, whole: bool) -> None:
    """Where there are GPUs they decide: one that another job, or none, uses may be the broken one."""
    node = Node("n1", "ALLOCATED", gres=gres, cpus=64, reason="srobust: suspect of job 7")
    assert whole_nodes([node], {"n1": range(gpus)}, {"n1": cpus}) == ({"n1"} if whole else set())
    assert whole_nodes([node, Node("n2", "ALLOCATED")], {}, {}) == set(), "nothing is known"


@pytest.mark.parametrize(
    ("reason", "gres", "whole"),
    [
        ("srobust: XID 79 on GPU 0", "", False),
        ("srobust: gpu_count: 7 GPUs of 8 are there", "", False),
        ("srobust: SXid 20034 of an NVSwitch", "nic:8", False),
        ("srobust: XID 79 on GPU 0", "gpu:8", True),
        ("srobust: /scratch is not mounted", "", True),
    ],
)
def test_a_drain_for_a_gpu_moves_no_job_of_which_slurm_knows_no_gpu(reason: str, gres: str, whole: bool) -> None:
    """All CPUs of a node do not make its GPUs the job's: the agents tell of the faults that concern its ranks."""
    node = Node("n1", "ALLOCATED", DRAIN, reason, gres=gres, cpus=64)
    assert whole_nodes([node], {"n1": range(8 if gres == "gpu:8" else 0)}, {"n1": 64}) == ({"n1"} if whole else set())
