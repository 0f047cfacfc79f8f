"""Orders to the agents, the ranks that an agent starts, and the step's command line."""

from __future__ import annotations

import pytest

from slurm_robust.stoptime import node_agent
from slurm_robust.stoptime.agent_step import StepTarget, argv, environment


def test_an_order_survives_the_way_and_foreign_lines_are_none() -> None:
    """Whatever else comes in on stdin."""
    order = {"c": "pairs", "groups": [[20_000 + i, "host", [[2 * i, 8], [2 * i + 1, 8]]] for i in range(2048)]}
    line = node_agent.packed(order)
    assert node_agent.unpacked(line.encode()) == order
    assert len(line) < 40_000, "it goes to each of 4,096 nodes"
    for foreign in (b"", b"hello", b"eJwDAAAAAAE=", b"\xff" * 20):
        assert node_agent.unpacked(foreign) is None


@pytest.mark.parametrize(("gpus", "devices"), [(2, ["cuda:0", "cuda:1"]), (0, ["cpu"])])
def test_each_gpu_of_a_node_is_a_rank_of_its_group(gpus: int, devices: list[str]) -> None:
    """The second node's ranks follow those of the first; without GPUs there is one rank a node."""
    found = node_agent._ranks([20_000, "n1", [[4, gpus], [7, gpus]]], 7, 30.0)
    assert [rank["device"] for rank in found] == devices
    assert [rank["rank"] for rank in found] == list(range(len(devices), 2 * len(devices)))
    assert {rank["world"] for rank in found} == {2 * len(devices)}


def test_one_answer_for_all_ranks_of_a_node() -> None:
    """All wrong numbers, the slowest rank; an error outweighs both."""
    good = {"wrong": {"all_gather": 1}, "gb_per_s": {"all_gather": 9.0}}
    slower = {"wrong": {"all_gather": 2}, "gb_per_s": {"all_gather": 4.0}}
    assert node_agent._together([good, slower]) == {"wrong": {"all_gather": 3}, "gb_per_s": {"all_gather": 4.0}}
    assert node_agent._together([good, {"late": True}]) == {"late": True}
    assert node_agent._together([{"late": True}, {"error": "no"}]) == {"error": "no"}


def test_the_step_shares_the_jobs_nodes_or_asks_for_its_own() -> None:
    """Beside a step that has taken everything; or alone on the nodes, with all of their GPUs."""
    inside = argv(StepTarget(("n1", "n2"), 12), wait_s=30, limit_s=120)
    assert {"--overlap", "--jobid=12", "--nodelist=n1,n2", "--no-kill"} <= set(inside)
    alone = argv(StepTarget(("n1",), gres="gpu:8", reservation="pool"), wait_s=30, limit_s=90)
    assert {"--exclusive", "--immediate=30", "--time=3", "--gres=gpu:8", "--reservation=pool"} <= set(alone)


def test_the_step_sees_nccls_variables_and_nothing_of_a_job_around_it() -> None:
    """Else srun would take a surrounding step's options, and ranks a surrounding world's address."""
    given = {"NCCL_SOCKET_IFNAME": "ib0", "SLURM_CONF": "/s", "SLURM_STEP_ID": "1", "MASTER_PORT": "1", "RANK": "0"}
    given |= {"CUDA_VISIBLE_DEVICES": "3", "PYXIS_X": "1", "SBATCH_GPUS": "1"}
    assert environment(given) == {"NCCL_SOCKET_IFNAME": "ib0", "SLURM_CONF": "/s"}
