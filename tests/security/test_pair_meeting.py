"""The ranks of a pair test meet beside strangers, who squat the port, say nothing, or anything."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.stoptime import rank_meeting
from slurm_robust.stoptime.group_results import group_result
from slurm_robust.stoptime.pairing import PairOutcome
from slurm_robust.stoptime.rank_meeting import NotJoinedError

SECRET, OTHER = "5e" * 32, "af" * 32
HOST = "127.0.0.1"
DIST = SimpleNamespace(
    TCPStore=lambda host, port, *_, **__: SimpleNamespace(host=host, port=port or 4711),
    PrefixStore=lambda prefix, store: (prefix, store.host, store.port),
)
"""In place of torch.distributed: it listens nowhere."""
GOOD = {"wrong": {"all_gather": 0}, "gb_per_s": {"all_gather": 2.0}}
UNJOINED = {"unjoined": "NotJoinedError: who listens there does not know the secret of the test"}


def spec(rank: int, port: int, *, world: int = 2, secret: str = SECRET) -> dict[str, Any]:
    """What a rank is told."""
    return {"rank": rank, "world": world, "port": port, "secret": secret}


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server((HOST, 0)) as one:
        return int(one.getsockname()[1])


def meet(*specs: dict[str, Any], limit_s: float = 3.0) -> list[Any]:
    """Each rank's store, or why it has none."""

    def one(each: dict[str, Any]) -> Any:
        try:
            return rank_meeting.store(DIST, each, HOST, limit_s)[0]
        except NotJoinedError as error:
            return str(error)

    with ThreadPoolExecutor(len(specs)) as pool:
        return list(pool.map(one, specs))


def connected(port: int) -> socket.socket:
    """A stranger's connection, as soon as somebody listens."""
    for _ in range(1000):
        with contextlib.suppress(OSError):
            return socket.create_connection((HOST, port), timeout=1)
        time.sleep(0.001)
    raise AssertionError("nobody listens")


def test_all_ranks_come_to_one_store_whose_keys_nobody_guesses() -> None:
    """Another test's keys are others, with the same secret, too."""
    port = free_port()
    first, second, third = meet(*(spec(rank, port, world=3) for rank in range(3)))
    assert first[0] == second[0] == third[0]
    assert second[1:] == (HOST, 4711)
    assert meet(spec(0, port), spec(1, port))[0][0] != first[0]


def test_two_hundred_silent_connections_hinder_nobody() -> None:
    """They are made before the member comes, and stay open."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as kept:
        first = pool.submit(meet, spec(0, port), limit_s=10.0)
        for _ in range(200):
            kept.enter_context(connected(port))
        began_s = time.monotonic()
        (second,) = meet(spec(1, port), limit_s=10.0)
        assert first.result() == [(second[0], HOST, 4711)]
        assert time.monotonic() - began_s < 2


def test_a_wrong_secret_is_met_by_nobody() -> None:
    """A stranger who speaks the protocol joins as little as one who does not; both ranks say so in time."""
    port = free_port()
    first, second = meet(spec(0, port), spec(1, port, secret=OTHER), limit_s=0.5)
    assert first == "ranks [1] of 2 did not come, or proved nothing"
    assert "the first rank was not met" in second


def test_a_stranger_at_the_port_learns_nothing_and_stops_the_test() -> None:
    """It listens first, and answers what it likes: the first rank has no port, the member no first rank."""
    with socket.create_server((HOST, 0)) as squatter:
        heard: list[bytes] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = squatter.accept()
                    with one, contextlib.suppress(OSError):
                        one.settimeout(0.3)
                        heard.append(one.recv(4096))
                        one.sendall(os.urandom(48))
                        heard.append(one.recv(4096))

        threading.Thread(target=answer, daemon=True).start()
        port = squatter.getsockname()[1]
        first, second = meet(spec(0, port), spec(1, port), limit_s=0.5)
        squatter.shutdown(socket.SHUT_RDWR)
    assert "Address already in use" in first
    assert "does not know the secret" in second
    assert {len(part) for part in heard} <= {0, 20}, "a rank and a nonce, no proof"


def test_answers_of_one_meeting_are_no_proof_in_another() -> None:
    """A stranger repeats what a member has sent."""
    port = free_port()
    said: list[bytes] = []
    with socket.create_server((HOST, 0)) as between, ThreadPoolExecutor(3) as pool:
        first = pool.submit(meet, spec(0, port), limit_s=0.7)
        # The member asks for another port, so for another test: what it proves is not what the first rank wants.
        member = pool.submit(meet, spec(1, between.getsockname()[1]), limit_s=0.7)
        ours, _ = between.accept()
        with ours, connected(port) as theirs:
            for source, target, length in ((ours, theirs, 20), (theirs, ours, 48)):
                said.append(source.recv(length, socket.MSG_WAITALL))
                target.sendall(said[-1])
        between.close()
        assert "did not come" in first.result()[0]
        assert "not met" in member.result()[0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4))
def test_whatever_a_stranger_sends_the_ranks_meet(parts: list[bytes]) -> None:
    """Each part on a connection of its own, which stays open."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as kept:
        first = pool.submit(meet, spec(0, port))
        for part in parts:
            kept.enter_context(connected(port)).sendall(part)
        assert meet(spec(1, port)) == first.result()


@pytest.mark.parametrize(
    "other",
    [GOOD, UNJOINED, {"late": True, "joined": True}, {"error": "RuntimeError: CUDA error", "joined": True}],
)
def test_who_could_not_join_makes_the_test_not_run(other: dict[str, Any]) -> None:
    """Whatever its partner says that had joined: a stranger may have been its partner."""
    for answers in ({"n1": UNJOINED, "n2": other}, {"n1": other, "n2": UNJOINED}):
        assert group_result(("n1", "n2"), answers, {}, 30.0).outcome is PairOutcome.NOT_RUN


@pytest.mark.parametrize("own", [{"late": True}, {"error": "RuntimeError: CUDA error: ECC"}, {}])
def test_a_node_that_fails_before_it_joins_is_at_fault(own: dict[str, Any]) -> None:
    """No stranger has a part in that; its partner waits for it."""
    assert group_result(("n1", "n2"), {"n1": own, "n2": UNJOINED}, {}, 30.0).outcome is PairOutcome.FAILED
