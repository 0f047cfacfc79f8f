"""The client of NCCL's RAS service, against a server that speaks as NCCL's sources do."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_robust.localize.ras import read_json
from slurm_robust.supervise.agent import ras

COUNTS = {"Broadcast": 3, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 50}
FINE = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def answer(behind: tuple[int, ...] = (), missing: tuple[int, ...] = (), size: int = 4) -> dict[str, Any]:
    """RAS's JSON for one communicator."""

    def who(number: int) -> dict[str, Any]:
        return {"rank": number, "host": f"10.0.0.{number}", "pid": 100 + number, "cuda_dev": 0, "nvml_dev": 0}

    def counts(number: int) -> dict[str, int]:
        return {**COUNTS, "AllReduce": 49} if number in behind else COUNTS

    there = [{**who(n), "status": FINE, "collective_counts": counts(n)} for n in range(size) if n not in missing]
    gone = [{**who(n), "status": {"unresponsive": True, "considered_dead": n == missing[0]}} for n in missing]
    comm = {"hash": "0xae94", "secondary_hash": "0x1:0x2", "size": size, "ranks_count": len(there),
            "missing_ranks_count": len(gone), "ranks": there, "missing_ranks": gone}  # fmt: skip
    return {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm],
            "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}  # fmt: skip


class Ras(socketserver.ThreadingTCPServer):
    """A server of RAS's line protocol. `old`: NCCL before 2.28.7, which knows text only."""

    allow_reuse_address = True
    daemon_threads = True
    body = ""
    old = False
    silent = False
    heard: list[str]


class Talk(socketserver.StreamRequestHandler):
    """One client."""

    server: Ras

    def handle(self) -> None:
        """Answer lines until the status was asked for."""
        for line in self.rfile:
            said = line.decode().strip()
            self.server.heard.append(said)
            command = said.lower()
            if self.server.silent:
                threading.Event().wait(3)
                return
            if command.startswith("client protocol "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif command.startswith("timeout ") or (command.startswith("set format ") and not self.server.old):
                self.wfile.write(b"OK\n")
            elif command == "verbose status":
                self.wfile.write(self.server.body.encode())
                return
            else:
                self.wfile.write(f"ERROR: Unknown command {said}\n".encode())


@pytest.fixture
def server() -> Iterator[Ras]:
    """A server of this very process."""
    with Ras(("127.0.0.1", 0), Talk) as made:
        made.heard = []
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def environ(server: Ras) -> dict[str, str]:
    """What a rank's environment says of it."""
    return {"NCCL_RAS_ADDR": f"127.0.0.1:{server.server_address[1]}"}


def test_the_answer_is_reduced_to_what_differs(server: Ras) -> None:
    """JSON of all ranks comes in; who is behind and who does not answer goes out, and is read by the judge's side."""
    server.body = json.dumps(answer(behind=(2,), missing=(3,)))
    found = ras.ask([os.getpid()], environ(server), 5.0)
    assert found.error == ""
    view = read_json(json.dumps(found.json).encode(), 1.0)
    assert [(who.rank, dead) for who, _, dead in view.silent] == [(3, True)]
    (lag,) = view.lags
    assert (lag.operation, lag.most, [who.rank for who, _ in lag.behind]) == ("AllReduce", 50, [2])
    assert [who.rank for who in lag.ahead] == [0, 1]
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_healthy_job_of_a_thousand_is_a_few_bytes(server: Ras) -> None:
    """Nothing differs: nothing is sent of it."""
    server.body = json.dumps(answer(size=1000))
    assert len(json.dumps(ras.ask([os.getpid()], environ(server), 5.0).json)) < 100


def test_older_versions_answer_in_text(server: Ras) -> None:
    """They do not know the format, say so, and are asked all the same."""
    server.old, server.body = True, "Job summary\n===========\n"
    assert ras.ask([os.getpid()], environ(server), 5.0) == ras.RasReply(text=server.body)


def test_a_service_of_somebody_else_is_not_spoken_to(server: Ras) -> None:
    """The port is asked only where one of the job's own processes listens on it."""
    server.body = json.dumps(answer())
    assert ras.ask([os.getppid()], environ(server), 5.0) == ras.RasReply()
    assert ras.ask([], environ(server), 5.0) == ras.RasReply()
    assert server.heard == []


def test_nobody_listens() -> None:
    """No NCCL, or RAS is off: nothing is said, and nothing is waited for."""
    assert ras.ask([os.getpid()], {"NCCL_RAS_ADDR": "127.0.0.1:1"}, 5.0) == ras.RasReply()


@pytest.mark.parametrize("body", ["", "{", "[]", '{"communicators": [{"size": 1}]}', "\x00\xff"])
def test_half_an_answer_is_a_sentence(server: Ras, body: str) -> None:
    """Cut off, or another shape: why, and no exception."""
    server.body = body
    found = ras.ask([os.getpid()], environ(server), 5.0)
    assert found.json is None
    assert found.error.startswith("NCCL RAS at 127.0.0.1:")


def test_a_service_that_hangs_is_left_in_time(server: Ras) -> None:
    """Its process may be stopped: the kernel takes the connection, and nobody answers."""
    server.silent = True
    assert "timed out" in ras.ask([os.getpid()], environ(server), 0.5).error


def test_where_it_listens() -> None:
    """NCCL's default, or where the environment says, IPv6 too."""
    assert ras.address({}) == ("localhost", 28028)
    assert ras.address({"NCCL_RAS_ADDR": "myhost:12345"}) == ("myhost", 12345)
    assert ras.address({"NCCL_RAS_ADDR": "[::1]:9"}) == ("::1", 9)
    assert ras.address({"NCCL_RAS_ADDR": "nonsense"}) == ("localhost", 28028)
