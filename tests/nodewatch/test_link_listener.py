"""Links that go up and down: real ones in a network namespace, and messages that nobody should send."""

from __future__ import annotations

import os
import random
import secrets
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from watch_helpers import RunningService

from slurm_robust.nodewatch.link_listener import messages


def run(*argv: str) -> None:
    """A command that must succeed."""
    subprocess.run(argv, check=True, capture_output=True, timeout=20)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with a default route over `up0`, whose other end is `far0`; `other0` is nobody's."""
    name = f"srw{secrets.token_hex(4)}"
    try:
        run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces here, or not for this user")
    try:
        ip = ("ip", "-n", name)
        run(*ip, "link", "add", "up0", "type", "veth", "peer", "name", "far0")
        run(*ip, "link", "add", "other0", "type", "veth", "peer", "name", "other1")
        run(*ip, "address", "add", "10.9.8.1/24", "dev", "up0")
        for link in ("up0", "far0", "other0"):
            run(*ip, "link", "set", link, "up")
        run(*ip, "route", "add", "default", "via", "10.9.8.2")
        yield name
    finally:
        run("ip", "netns", "del", name)


def listening(service: RunningService) -> None:
    """Wait until the service hears of links: the kernel lists who listens to which group (1: links)."""
    assert service.process is not None
    table = Path(f"/proc/{service.process.pid}/net/netlink")

    def heard() -> bool:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        return any(row[1] == "0" and int(row[3], 16) & 1 for row in rows)

    wait_until(heard, 20, f"it listens; {service.said()}")


def test_a_real_link_that_flaps(namespace: str, watch: Callable[..., RunningService]) -> None:
    """Lost and back: one finding of urgency if_repeated with the interface, and a note; others' links are nothing."""
    service = watch(prefix=("ip", "netns", "exec", namespace)).start()
    listening(service)
    run("ip", "-n", namespace, "link", "set", "other0", "down")
    run("ip", "-n", namespace, "link", "set", "far0", "down")
    lost = service.wait_for("link", timeout_s=5)
    assert (lost.urgency, lost.port, lost.source, lost.gpus) == ("if_repeated", "up0", "link", ())
    run("ip", "-n", namespace, "link", "set", "far0", "up")
    back = service.wait_for("link", times=2, timeout_s=5)
    assert (back.urgency, back.port) == ("note", "up0")
    assert {finding.port for finding in service.findings() if finding.kind == "link"} == {"up0"}


def test_an_interface_that_is_switched_off_or_removed(namespace: str, watch: Callable[..., RunningService]) -> None:
    """A person's hand is a note; a card that is gone is a lost link. The service goes on."""
    service = watch(prefix=("ip", "netns", "exec", namespace)).start()
    listening(service)
    run("ip", "-n", namespace, "link", "set", "up0", "down")
    assert service.wait_for("link", timeout_s=5).urgency == "note"
    run("ip", "-n", namespace, "link", "set", "up0", "up")
    service.wait_for("link", times=2, timeout_s=5)
    run("ip", "-n", namespace, "link", "del", "up0")
    gone = service.wait_for("link", times=3, timeout_s=5)
    assert (gone.urgency, gone.text) == ("if_repeated", "up0 is gone")
    assert service.end() == 0
    assert "link" not in service.said()


def test_messages_of_any_shape_are_skipped() -> None:
    """Cut, with wrong lengths, with random bytes: no exception, and no endless loop."""
    source = random.Random(1)
    info = struct.pack("=BxHiII", 0, 1, 2, 1, 0) + struct.pack("=HH", 8, 3) + b"eth\0"
    whole = struct.pack("=IHHII", 16 + len(info), 16, 0, 0, 0) + info
    assert [name for name, *_ in messages(whole)] == ["eth"]
    for _ in range(5000):
        broken = bytearray(whole * 2)
        for _ in range(source.randrange(1, 6)):
            broken[source.randrange(len(broken))] = source.randrange(256)
        list(messages(bytes(broken[: source.randrange(len(broken) + 1)])))
        list(messages(os.urandom(64)))
