"""Attacks on the store of a pair test: PyTorch's answers anybody, and newer ones list its keys."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.stoptime import rank_meeting
from slurm_robust.stoptime.rank_meeting import NotJoinedError
from slurm_robust.stoptime.store_guard import admit_only

SECRET, HOST, STRANGER = "5e" * 32, "127.0.0.1", "127.0.0.9"
pytestmark = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="Linux's /proc is not there")


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server((HOST, 0)) as one:
        return int(one.getsockname()[1])


def reaches(port: int, source: str) -> bool:
    """Whether somebody at this address can connect."""
    try:
        socket.create_connection((HOST, port), timeout=0.2, source_address=(source, 0)).close()
    except OSError:
        return False
    return True


def meet(dist: Any) -> list[Any]:
    """The stores of two ranks that have met."""
    port = free_port()
    specs = [{"rank": rank, "world": 2, "port": port, "secret": SECRET} for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda spec: rank_meeting.store(dist, spec, HOST, 5.0), specs))


def port_of(shared: Any) -> int:
    """Where the store listens, below all prefixes."""
    while not hasattr(shared, "port"):
        shared = shared.underlying_store
    return int(shared.port)


def alone(dist: Any, attacks: list[Callable[[int], object]]) -> list[Any]:
    """The store of two ranks that have met, closed to others, or why it is not; attacks come when both have told."""
    connections, met, both = rank_meeting.MeetingConnections(), meet(dist), threading.Barrier(2)

    def one(rank: int) -> Any:
        shared, at = met[rank]
        spec = {"rank": rank, "world": 2, "port": 4711, "secret": SECRET}

        class Store:
            """As PyTorch's, and says when this rank has told its ends."""

            wait, get = shared.wait, shared.get

            @staticmethod
            def set(key: str, value: str) -> None:
                shared.set(key, value)
                if key.startswith("ends"):
                    both.wait(5)
                    if rank == 0:
                        for attack in attacks:
                            attack(port_of(shared))
                    both.wait(5)

        prefixed = SimpleNamespace(PrefixStore=lambda prefix, _: dist.PrefixStore(prefix, shared))
        try:
            end_s = time.monotonic() + (5 if rank == 0 else 1)
            return rank_meeting.alone(prefixed, spec, (Store, at), connections.ends()[0], end_s)
        except (NotJoinedError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_the_real_store_is_closed_to_other_nodes() -> None:
    """Its members go on; who has another address does not get a connection, so cannot list, write or delete keys."""
    dist = pytest.importorskip("torch.distributed")
    made: list[Any] = []

    def real(*args: Any, **kwargs: Any) -> Any:
        made.append(dist.TCPStore(*args, **kwargs))
        return made[-1]

    (first, _), (second, _) = meet(SimpleNamespace(TCPStore=real, PrefixStore=dist.PrefixStore))
    assert not reaches(made[0].port, STRANGER)
    assert reaches(made[0].port, HOST)
    first.set("one", "1")
    second.set("other", "2")
    assert (second.get("one"), first.get("other")) == (b"1", b"2")


def test_once_all_have_come_it_is_closed_to_their_nodes_too() -> None:
    """The ranks go on, and PyTorch makes its group; who is on a member's node gets no connection any more."""
    dist = pytest.importorskip("torch.distributed")
    shared = alone(dist, [])
    assert not reaches(port_of(shared[0]), HOST)
    shared[0].set("number", "1")
    assert shared[1].get("number") == b"1"
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda rank: dist.ProcessGroupGloo(shared[rank], rank, 2), range(2)))
    assert [group.rank() for group in made] == [0, 1]


@pytest.mark.parametrize("stays", [True, False])
def test_who_came_from_a_member_s_node_before_has_seen_no_key_in_use(stays: bool) -> None:
    """One that is connected still keeps the test from being done; one that has gone can only guess where to write."""
    dist = pytest.importorskip("torch.distributed")
    strangers: list[Any] = []

    def plants(port: int) -> None:
        one = dist.TCPStore(HOST, port, 2, False, wait_for_workers=False)
        for key in one.list_keys() if hasattr(one, "list_keys") else []:
            one.set(key.rpartition("/")[0] + "/number", "forged")
        strangers.extend([one] if stays else [])

    shared = alone(dist, [plants])
    if stays:
        assert "connected to the store of the test" in str(shared[0])
        return
    assert not shared[1].check(["number"])


def test_what_a_stranger_changes_in_the_store_ends_the_test() -> None:
    """Each rank signs what it tells."""
    dist = pytest.importorskip("torch.distributed")

    def changes(port: int) -> None:
        one = dist.TCPStore(HOST, port, 2, False, wait_for_workers=False)
        for key in one.list_keys():
            one.set(key, "00 127.0.0.1:1")

    if not hasattr(dist.TCPStore, "list_keys"):
        pytest.skip("this PyTorch does not list keys")
    assert "somebody changed what the ranks told each other" in str(alone(dist, [changes])[0])


def test_members_of_several_addresses_are_let_in() -> None:
    """The filter knows each of them, as IPv6 writes it, too; and one node alone as well."""
    for members in ({f"::ffff:127.0.1.{n}" for n in range(1, 100)}, set[str]()):
        with socket.create_server((HOST, 0)) as listener:
            port = int(listener.getsockname()[1])
            assert admit_only(port, members) == []
            assert all(reaches(port, address.removeprefix("::ffff:")) for address in members)
            assert not reaches(port, STRANGER)


def test_who_connected_before_the_store_was_closed_is_seen() -> None:
    """Then the test did not run."""
    spec = {"rank": 0, "world": 1, "port": free_port(), "secret": SECRET}
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
        dist = SimpleNamespace(TCPStore=lambda *_, **__: SimpleNamespace(port=port))
        with (
            socket.create_connection((HOST, port), source_address=(STRANGER, 0)),
            pytest.raises(NotJoinedError, match=STRANGER),
        ):
            rank_meeting.store(dist, spec, HOST, 2.0)


def test_addresses_of_ipv6_leave_it_as_it_is() -> None:
    """The filter reads IPv4's; a test between such nodes must still run."""
    with socket.create_server((HOST, 0)) as listener:
        assert admit_only(int(listener.getsockname()[1]), {"fd00::1"}) == []
        assert reaches(int(listener.getsockname()[1]), STRANGER)
