"""Orders to the agents, the ranks that an agent starts, and the step's command line."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.stoptime import node_agent
from slurm_robust.stoptime.agent_step import StepTarget, argv, environment

CHILD = node_agent._Child


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
    found = node_agent._ranks([20_000, "n1", [[4, gpus], [7, gpus]]], 7, {"secret": "5e", "limit_s": 30.0})
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


def test_what_failed_before_the_ranks_met_speaks_for_the_node() -> None:
    """Then that they did not meet; a failure behind that comes last."""
    unjoined, later = {"unjoined": "no"}, {"error": "closed", "joined": True}
    assert node_agent._together([later, unjoined]) == unjoined
    assert node_agent._together([later, unjoined, {"late": True}]) == {"late": True}


def test_the_step_shares_the_jobs_nodes_or_asks_for_its_own() -> None:
    """Beside a step that has taken everything; or alone on the nodes, with all of their GPUs."""
    inside = argv(StepTarget(("n1", "n2"), 12), wait_s=30, limit_s=120)
    assert {"--overlap", "--jobid=12", "--nodelist=n1,n2", "--no-kill"} <= set(inside)
    target = StepTarget(("n1",), gres="gpu:8", reservation="pool", admission=("--account=ops",))
    alone = argv(target, wait_s=30, limit_s=90)
    assert {"--exclusive", "--immediate=30", "--time=3", "--gres=gpu:8", "--reservation=pool"} <= set(alone)
    assert "--account=ops" in alone


def test_the_step_sees_nccls_variables_and_nothing_of_a_job_around_it() -> None:
    """Else srun would take a surrounding step's options, and ranks a surrounding world's address."""
    given = {"NCCL_SOCKET_IFNAME": "ib0", "SLURM_CONF": "/s", "SLURM_STEP_ID": "1", "MASTER_PORT": "1", "RANK": "0"}
    given |= {"CUDA_VISIBLE_DEVICES": "3", "PYXIS_X": "1", "SBATCH_GPUS": "1"}
    own = environment(given)
    assert own.pop("SROBUST_WATCH") == "1", "its processes are no ranks of the job: nobody captures their stacks"
    assert own == {"NCCL_SOCKET_IFNAME": "ib0", "SLURM_CONF": "/s"}


def test_a_node_belongs_to_one_cluster_whatever_slurm_tells_a_step() -> None:
    """A step beside a job sees SLURM_WORKING_CLUSTER only: two clusters on one machine must not take each other's."""
    assert node_agent.cluster({"SLURM_WORKING_CLUSTER": "a:127.0.0.1:6817:9728:109"}) == "a"
    assert node_agent.cluster({"SLURM_CLUSTER_NAME": "a"}) == "a"
    assert node_agent.cluster({}) == ""


def test_a_node_whose_last_test_is_still_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent ends its ranks for some seconds; one that goes on holds the node, and the second test says so."""
    monkeypatch.setenv("SLURMD_NODENAME", f"taken-{os.getpid()}")
    monkeypatch.setenv("SLURM_WORKING_CLUSTER", "c:127.0.0.1:1:2:3")
    monkeypatch.setattr(node_agent, "BEAT_S", 0.05)
    monkeypatch.setattr(node_agent, "_TAKEN_S", 0.5)
    agent = node_agent.NodeAgent("/", "python")
    beats: list[str] = []
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0srobust-test.c.{agent.node}.0")
        other.listen()
        monkeypatch.setattr(agent, "tell", beats.append)
        assert not agent._take_name()
        assert beats == ["beat"] * 10
        monkeypatch.setattr(agent, "tell", lambda kind: other.close())
        assert agent._take_name()
    agent.name.release()
    agent.selector.close()


def told_by_server(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What an agent tells, but for its environment, of a rank server with this command line, to the server's end."""
    agent = node_agent.NodeAgent("/", argv[0])
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(agent, "tell", lambda kind, **fields: told.append({"t": kind, **fields}))
    monkeypatch.setattr(node_agent, "_Child", lambda _, env: CHILD(argv, env))
    agent._start_server()
    while agent.server is not None:
        agent._read_server()
    agent.name.release()
    agent.selector.close()
    return told[1:]


@pytest.mark.parametrize("eud", [False, True])
def test_an_order_for_nvidias_tests_says_whether_eud_is_one_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, eud: bool
) -> None:
    """The agent runs them in a process of its own; a node without any of them says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    agent = node_agent.NodeAgent("/", "python")
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(agent, "tell", lambda kind, **fields: told.append(fields))
    agent._begin({"c": "tools", "id": 3, "limit_s": 100.0, "eud": eud})
    while agent.check is not None:
        agent._read_check()
    agent.selector.close()
    assert "; ".join(["nvbandwidth", "dcgmi diag -r 2", *["dcgmi diag -r eud"] * eud]) == told[0]["missing"]


def test_foreign_lines_of_the_trainings_python_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sitecustomize that prints, with or without an end of line, and JSON that is not ours."""
    ready = '\'\\n{"ready": {"count": 2, "busy": ""}}\\n\''
    found = told_by_server(["/bin/sh", "-c", f"printf 'hello\\n1\\n{{\"a\": 1}}\\nx'; printf {ready}"], monkeypatch)
    assert found == [{"t": "ready", "gpus": 2, "busy": "", "reason": ""}]


def test_a_rank_server_that_ends_while_it_loads_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself: the Python is none that has PyTorch. Killed: the devices stay untested."""
    (found,) = told_by_server(["/bin/sh", "-c", "echo what is this; exit 2"], monkeypatch)
    assert found["t"] == "no_torch"
    assert found["reason"] == "/bin/sh ended with 2 before it had loaded PyTorch; it said: what is this"
    (found,) = told_by_server(["/bin/sh", "-c", "kill -9 $$"], monkeypatch)
    assert (found["t"], found["gpus"]) == ("ready", 0)
    assert found["reason"] == "/bin/sh was killed while it loaded PyTorch (signal 9)"
