"""A persister that keeps backups, beside strangers on the network who connect and say nothing."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from slurm_robust.checkpoint.saving.backup import handshake, receiver

SECRET = b"s" * 32
RECEIVER = textwrap.dedent("""
    import resource, sys
    from slurm_robust.checkpoint.saving.backup.receiver import BackupReceiver
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    listener = BackupReceiver({}.get, "node")
    listener.admit("run", b"s" * 32)
    print(listener.port, flush=True)
    sys.stdin.read()
""")
"""It may open two hundred files."""


@pytest.fixture
def port() -> Iterator[int]:
    """Where a receiver listens, in a process of its own."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", RECEIVER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_silent_connections_shut_nobody_out(port: int) -> None:
    """Three hundred stay open; a caller of the run comes in behind them."""
    with contextlib.ExitStack() as kept:
        for _ in range(300):
            kept.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2))
        time.sleep(0.1)  # the receiver has met its limit of files, or has closed the oldest
        with socket.create_connection(("127.0.0.1", port), timeout=2) as caller:
            handshake.authenticate_to(caller, SECRET, "run", "node")


def test_of_connections_that_prove_nothing_few_stay_open(port: int) -> None:
    """The oldest are closed."""
    with contextlib.ExitStack() as kept:
        ours = [kept.enter_context(socket.create_connection(("127.0.0.1", port), timeout=2)) for _ in range(100)]
        assert [one.recv(1) for one in ours[: 100 - receiver.UNPROVEN]] == [b""] * (100 - receiver.UNPROVEN)


def test_a_huge_length_before_the_proof_reserves_nothing(port: int) -> None:
    """The connection is closed at once, and the receiver goes on."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as stranger:
        stranger.sendall(b"srobbak1" + b"n" * 32 + b"\xff" * 4)
        assert stranger.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as caller:
        handshake.authenticate_to(caller, SECRET, "run", "node")
