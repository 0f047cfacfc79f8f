"""Pair tests beside a stranger: another user who joins first, sends wrong numbers, garbage, or nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import quick_torch

from slurm_robust.stoptime import node_agent
from slurm_robust.stoptime.group_results import group_result
from slurm_robust.stoptime.pairing import PairOutcome

NOBODY = 65534
SECRET = "5e" * 32
"""The stranger does not know it."""
SIGN_ON = textwrap.dedent("""
    import datetime as dt, sys
    import torch, torch.distributed as dist
    LOADED
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=1, world_size=2,
                            timeout=dt.timedelta(seconds=8))
    while True:
        dist.all_gather([torch.empty(1 << 18) for _ in range(2)], torch.zeros(1 << 18))
""")
"""Joins as the second rank, and sends zeros."""
SPRAY = textwrap.dedent("""
    import pathlib, socket, struct, sys, time
    LOADED
    tries = [b"", struct.pack("<Q", 1 << 62) * 9, struct.pack("<Q", 0), b"\\xff" * 4096]
    seen, kept = {}, []

    def ports():
        held = set()
        for server in sys.argv[1:]:
            for rank in pathlib.Path(f"/proc/{server}/task/{server}/children").read_text().split():
                held |= {str(fd.readlink()) for fd in pathlib.Path(f"/proc/{rank}/fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path("/proc/net", table).read_text().splitlines():
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                    yield int(fields[1].rpartition(":")[2], 16)

    while True:
        try:
            for port in ports():
                seen[port] = seen.get(port, -1) + 1
                if seen[port] < len(tries):
                    kept.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))
                    kept[-1].send(tries[seen[port]])
        except OSError:
            time.sleep(0.001)
""")
"""Connects to whatever the ranks listen at: silent, with huge lengths, with a number as gloo's, with garbage."""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def as_nobody(code: str, *argv: str) -> Iterator[None]:
    """Run a stranger, as another user where this one may; it has begun when this yields."""
    # It loads its modules first: the Python may be where the other user cannot read.
    other_user = os.geteuid() == 0 and code is not SPRAY  # that one must see whose ports they are
    drop = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})" if other_user else ""
    python = [sys.executable, "-c", code.replace("LOADED", f'{drop}\nprint("loaded", flush=True)'), *argv]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(python, stdout=pipe, stderr=null, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "loaded\n", "the stranger could not begin"
            yield
        finally:
            process.kill()


def environment() -> dict[str, str]:
    """Loads PyTorch quickly."""
    return {**os.environ, "PYTHONPATH": quick_torch()}


@contextmanager
def rank_server() -> Iterator[subprocess.Popen[str]]:
    """One with the real PyTorch, as on a node."""
    argv = [sys.executable, "-c", node_agent._SERVER, str(Path.cwd())]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that is not empty."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(next(line for line in process.stdout if line.strip()))
    return found


def pair(servers: list[subprocess.Popen[str]], port: int, *, head_s: float = 0.0) -> dict[str, dict[str, Any]]:
    """What the nodes of a pair tell; the second one begins `head_s` later."""
    group = [port, "127.0.0.1", [[0, 0], [1, 0]]]
    order = {"secret": SECRET, "limit_s": 8.0}
    for index, server in enumerate(servers):
        assert server.stdin is not None
        made = {"id": 1, "kind": "pair", "ranks": node_agent._ranks(group, index, order), "limit_s": 8.0}
        server.stdin.write(json.dumps(made) + "\n")
        server.stdin.flush()
        time.sleep(head_s)
    return {f"n{i}": node_agent._together(answer(server)["results"]) for i, server in enumerate(servers, 1)}


@pytest.mark.parametrize(
    "stranger",
    [pytest.param(SIGN_ON, id="joins_first"), pytest.param(SPRAY, id="garbage", marks=pytest.mark.variant)],
)
def test_a_stranger_makes_no_evidence(stranger: str) -> None:
    """Right numbers, or a test that did not run: never a failed pair."""
    pytest.importorskip("torch")
    with rank_server() as first, rank_server() as second:
        assert answer(first)["ready"] == answer(second)["ready"]
        port = free_port()
        with as_nobody(stranger, str(port)):
            answers = pair([first, second], port, head_s=1.0)
    result = group_result(("n1", "n2"), answers, {}, 8.0)
    assert result.outcome in (PairOutcome.PASSED, PairOutcome.NOT_RUN), (answers, result.reason)
    if stranger is SIGN_ON:
        assert result.outcome is PairOutcome.PASSED, "who only knocks does not even hinder the test"
