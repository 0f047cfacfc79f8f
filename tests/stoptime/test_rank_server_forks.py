"""The rank server: what it says of GPUs in use, and that it leaves no rank behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from helpers import quick_torch, wait_until

from slurm_robust.stoptime import node_agent, rank_server

PAIR = {"rank": 0, "world": 2, "host": "127.0.0.1", "port": 1, "secret": "5e", "device": "cpu", "limit_s": 60}


def test_a_gpu_that_somebody_uses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """More memory in use than a driver takes, before any test."""
    memory = {0: (79 << 30, 80 << 30), 1: (30 << 30, 80 << 30)}
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, mem_get_info=memory.get)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(rank_server, "_users", lambda: "; processes: 77, python")
    assert rank_server.devices({}) == {"count": 2, "busy": "cuda:1 (50 of 80 GiB in use); processes: 77, python"}


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A rank server with the real PyTorch."""
    pytest.importorskip("torch")
    root = str(Path.cwd())
    argv = [sys.executable, "-c", node_agent._SERVER, root]
    env = os.environ | {"PYTHONPATH": quick_torch()}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert read(process)["ready"] == {"count": 0, "busy": ""}
        yield process
        process.kill()


def read(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that is not empty."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(next(line for line in process.stdout if line.strip()))
    return found


def order(process: subprocess.Popen[str], **fields: Any) -> None:
    """Give an order."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(fields) + "\n")
    process.stdin.flush()


def ranks(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks that it has forked."""
    return psutil.Process(process.pid).children()


def waiting(process: subprocess.Popen[str]) -> psutil.Process:
    """A rank whose partner never comes."""
    order(process, id=7, kind="pair", limit_s=60, ranks=[PAIR | {"rank": 1}])
    return wait_until(lambda: ranks(process), 20, "a rank")[0]


def test_a_limit_and_a_cancelled_order_end_the_ranks(server: subprocess.Popen[str]) -> None:
    """Both are answered, and the server goes on."""
    order(server, id=1, kind="pair", limit_s=0.5, ranks=[PAIR | {"rank": 1}])
    assert read(server) == {"id": 1, "results": [{"unjoined": "the others were not met in time"}]}
    rank = waiting(server)
    order(server, cancel=7)
    assert read(server)["id"] == 7
    wait_until(lambda: not rank.is_running(), 20, "the rank's end")
    order(server, id=8, kind="step", limit_s=60, ranks=[{"device": "cpu", "repeats": 2}])
    assert len(set(read(server)["results"][0]["digests"])) == 1


@pytest.mark.parametrize("how", ["stdin", "kill"])
def test_a_server_that_ends_takes_its_ranks_along(server: subprocess.Popen[str], how: str) -> None:
    """By the end of its stdin, or killed outright: Linux kills a rank whose parent is gone."""
    rank = waiting(server)
    if how == "stdin":
        assert server.stdin is not None
        server.stdin.close()
    else:
        server.kill()
    assert server.wait(20) == (0 if how == "stdin" else -9)
    wait_until(lambda: not rank.is_running(), 20, "the rank's end")


def test_ranks_of_one_node_exchange_parts_and_know_the_answers(server: subprocess.Popen[str]) -> None:
    """Two on the CPU, over gloo, as the GPUs of a node do over NCCL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"world": 2, "port": port, "secret": "5e", "device": "cpu", "limit_s": 60}
    order(server, id=3, kind="node", limit_s=60, ranks=[{**shared, "rank": 0}, {**shared, "rank": 1}])
    for result in read(server)["results"]:
        assert result["wrong"] == {"products": 0, "memory": 0, "all_to_all": 0}, result
        assert result["gb_per_s"]["memory"] > 0
