"""The bytes that a rank's TCP connections have moved, read from the kernel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent import procfs, tcp_traffic
from slurm_robust.supervise.agent.messages import Hello, RankFound
from slurm_robust.supervise.agent.ranks import Rank, StepProcess
from slurm_robust.supervise.agent.tcp_traffic import TcpTraffic

MIB = 1 << 20
Pair = tuple[socket.socket, socket.socket]


def process_of(pid: int) -> StepProcess:
    """A process of a rank."""
    stat = procfs.stat(pid)
    assert stat is not None
    return StepProcess(pid, stat.ppid, stat.start_ticks, stat.command, 0, -1, "0", 1, 1, "")


def rank_of(*pids: int) -> Rank:
    """A rank of these processes, its own first."""
    tree = tuple(process_of(pid) for pid in pids)
    return Rank(0, "0", 1, tree[0], tree)


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    """Closes them at the end."""
    with ExitStack() as made:
        yield made


def connected(sockets: ExitStack, family: int = socket.AF_INET) -> Pair:
    """Two ends of a connection, both in this process."""
    listener = sockets.enter_context(socket.socket(family))
    listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    listener.listen()
    ours = sockets.enter_context(socket.create_connection(listener.getsockname()[:2]))
    theirs, _ = listener.accept()
    return ours, sockets.enter_context(theirs)


def moves(pair: Pair, size: int) -> None:
    """One end sends so many bytes, and the other one reads them."""
    for start in range(0, size, 1 << 16):
        part = min(1 << 16, size - start)
        pair[0].sendall(b"x" * part)
        while part:
            part -= len(pair[1].recv(part))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_bytes_of_both_ends_are_counted(sockets: ExitStack, family: int) -> None:
    """Sent and received; idle connections add nothing."""
    pair, traffic, rank = connected(sockets, family), TcpTraffic(), rank_of(os.getpid())
    before = traffic.read([rank])[os.getpid()]
    assert traffic.read([rank])[os.getpid()] == before
    moves(pair, MIB)
    wait_until(lambda: traffic.read([rank])[os.getpid()] == before + 2 * MIB, timeout_s=10, what="2 MiB")


def test_a_connection_that_is_closed_or_shared_changes_no_sum(sockets: ExitStack) -> None:
    """What it has moved stays in the sum, and its inode in a forked helper does not count twice."""
    pair, traffic = connected(sockets), TcpTraffic()
    fds = [end.fileno() for end in pair]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=fds) as helper:
        rank = rank_of(os.getpid(), helper.pid)
        before = traffic.read([rank])
        assert before[helper.pid] == 0
        moves(pair, MIB)
        wait_until(lambda: traffic.read([rank])[os.getpid()] >= before[os.getpid()] + 2 * MIB, timeout_s=10, what="it")
        assert traffic.read([rank])[helper.pid] == 0
        for end in pair:
            end.close()
        after = traffic.read([rank])
        assert after[os.getpid()] >= before[os.getpid()] + 2 * MIB
        assert after[helper.pid] == 0, "the helper holds them alone now"
        helper.communicate(b"\n")
    assert traffic.read([rank]).keys() <= {os.getpid(), helper.pid}


def test_the_store_of_the_ranks_does_not_count(sockets: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of ranks that hang ask it on: connections to or from MASTER_PORT."""
    store, pair = connected(sockets), connected(sockets)
    port = str(store[0].getpeername()[1])
    monkeypatch.setattr(procfs, "environ", lambda _: {"MASTER_PORT": port})
    traffic, rank = TcpTraffic(), rank_of(os.getpid())
    before = traffic.read([rank])[os.getpid()]
    moves(store, MIB)
    moves(pair, 1000)
    wait_until(lambda: traffic.read([rank])[os.getpid()] >= before + 2000, timeout_s=10, what="2,000 bytes")
    assert traffic.read([rank])[os.getpid()] == before + 2000


@pytest.mark.parametrize("fault", ["refused", "garbled", "endless", "silent"])
def test_a_kernel_that_does_not_say_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """No process has a figure then."""

    class Kernel:
        def __init__(self, *_: object) -> None:
            if fault == "refused":
                raise PermissionError

        def __enter__(self) -> Kernel:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

        def settimeout(self, _: float) -> None:
            """No wait here."""

        def send(self, _: bytes) -> None:
            """Asked."""

        def recv(self, _: int) -> bytes:
            if fault == "silent":
                raise TimeoutError
            return (b"\xff\0" if fault == "garbled" else b"\x10\0") + b"\0\0\x14\0" + b"\0" * 10

    monkeypatch.setattr(tcp_traffic.socket, "socket", Kernel)
    assert TcpTraffic().read([rank_of(os.getpid())]) == {}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_network_namespace_of_its_own_is_unknown() -> None:
    """A container with its own network: its connections are not among those of the node."""
    command = ["unshare", "--net", sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert TcpTraffic().read([rank_of(os.getpid(), process.pid)]).keys() == {os.getpid()}
        process.communicate(b"\n")


TALKING = """
import socket, time
a = socket.create_server(("127.0.0.1", 0))
b = socket.create_connection(a.getsockname())
c, _ = a.accept()
while True:
    b.sendall(b"x" * 4096)
    left = 4096
    while left:
        left -= len(c.recv(left))
    time.sleep(0.001)
"""


def test_a_capture_tells_each_ranks_traffic(stage: AgentStage) -> None:
    """One rank talks, the other one is silent."""
    stage.victim(0, code=TALKING)
    stage.victim(1)
    stage.start_agent()
    stage.receive(Hello)
    for rank in range(2):
        stage.receive(RankFound, rank=rank)
    figures = [[r["processes"][0]["net_bytes"] for r in stage.capture(number)["ranks"]] for number in (1, 2)]
    assert figures[1][0] > figures[0][0] >= 0
    assert figures[0][1] == figures[1][1] == 0
