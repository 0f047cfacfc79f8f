"""Hole 8: who may reach the HTTP side's port cannot take its descriptors, memory, time or log from the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from dashboard_server import NOW_S, http_process, serving
from helpers import wait_until

from slurm_robust.daemon.api.connections import Bounds, Connections, OneLineAMinute, log

HALF_OPEN = 1000
PARTIAL = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough file descriptors for the attacker's own sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_answered(url: str) -> bool:
    """Whether the first page comes within five seconds."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)


@pytest.mark.usefixtures("descriptors")
def test_a_thousand_half_open_requests_keep_nobody_out(tmp_path: Path) -> None:
    """A server of 256 descriptors answers during and after them, logs a few lines, and no traceback."""
    said = tmp_path / "log"
    sockets: list[socket.socket] = []
    with said.open("w") as out, http_process(descriptors=256, log=out) as server:
        server.feed({"at_s": time.time(), "cluster": "flooded"})
        wait_until(lambda: is_answered(server.url), 20, "the snapshot is shown")
        try:
            for n in range(HALF_OPEN):
                one = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                sockets.append(one)
                one.sendall(PARTIAL)
                if n % 250 == 200:
                    assert is_answered(server.url)
            assert is_answered(server.url)
            for _ in range(300):
                with socket.create_connection(("127.0.0.1", server.port), timeout=5) as bad:
                    bad.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
            assert is_answered(server.url)
            assert server.process.poll() is None
        finally:
            for one in sockets:
                one.close()
    lines = said.read_text().splitlines()
    assert "Traceback" not in said.read_text()
    assert len(lines) < 12, lines


async def lived_s(base: str, sent: bytes, drip: bytes = b"") -> float:
    """How many seconds the server keeps a connection that sends this, then `drip` each 20 ms; five at most."""
    host, _, port = base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    began_s = time.monotonic()
    writer.write(sent)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began_s < 5:
            with contextlib.suppress(asyncio.TimeoutError):
                if not await asyncio.wait_for(reader.read(65536), 0.02):
                    break
            writer.write(drip)
    writer.transport.abort()
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("sent", "drip"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(PARTIAL, b"x", id="a header that never ends"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + PARTIAL, b"x", id="the second header"),
    ],
)
def test_a_header_has_a_time(sent: bytes, drip: bytes) -> None:
    """The whole header comes in time, however steadily its bytes do, or the connection ends."""

    async def run() -> None:
        async with serving({"at_s": NOW_S}, bounds=Bounds(header_s=0.2, idle_s=0.4)) as served:
            assert 0.15 < await lived_s(served.base, sent, drip) < 2

    asyncio.run(run())


def test_a_request_has_a_size() -> None:
    """Many small header lines, and a body that nobody wants, end with the connection."""

    async def run() -> None:
        async with serving({"at_s": NOW_S}, bounds=Bounds(received_bytes=10_000)) as served:
            assert await lived_s(served.base, PARTIAL, b"x\r\nX-More: " * 200) < 1
            post = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
            assert await lived_s(served.base, post, b"x" * 2000) < 1

    asyncio.run(run())


async def becomes(connections: Connections, count: int) -> bool:
    """Whether there are so many connections within three seconds."""
    for _ in range(300):
        if connections.total == count:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("bounds", [Bounds(stall_s=0.2), Bounds(unsent_bytes=1 << 20)], ids=["time", "memory"])
def test_a_reader_that_takes_nothing_is_dropped(bounds: Bounds) -> None:
    """A state of 30 MB for somebody who does not read it waits for a bounded time, in bounded memory."""

    async def run() -> None:
        async with serving({"at_s": NOW_S, "cluster": "x" * 30_000_000}, bounds=bounds) as served:
            host, _, port = served.base.removeprefix("http://").partition(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1024)
            assert await becomes(served.connections, 1)
            writer.write(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await becomes(served.connections, 0)
            writer.transport.abort()

    asyncio.run(run())


def test_a_slow_reader_that_reads_is_served() -> None:
    """Ten megabytes at a phone's speed come whole, though they take many times `stall_s`."""

    async def run() -> None:
        size = 10_000_000
        async with serving({"at_s": NOW_S, "cluster": "x" * size}, bounds=Bounds(stall_s=0.5)) as served:
            async with served.session.get(served.base + "/state.json") as answer:
                taken = 0
                while chunk := await answer.content.read(1 << 19):
                    taken += len(chunk)
                    await asyncio.sleep(0.06)
            assert taken > size

    asyncio.run(run())


def test_sixty_four_browsers_of_one_address_all_watch() -> None:
    """A proxy's browsers, each with an event stream and a page, are all served."""

    async def run() -> None:
        async with serving({"at_s": NOW_S, "nodes": [], "jobs": [], "incidents": []}) as served:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as browsers:
                streams = [await browsers.get(served.base + "/events?page=home") for _ in range(64)]
                assert {stream.status for stream in streams} == {200}
                pages = await asyncio.gather(*(browsers.get(served.base + "/") for _ in range(64)))
                assert {page.status for page in pages} == {200}
                for stream in streams:
                    assert await stream.content.readline()

    asyncio.run(run())


def test_the_log_gets_one_line_a_minute() -> None:
    """Ten thousand errors of one kind are one line without traceback; the next minute says how many were left out."""
    bound = OneLineAMinute()
    records = []
    for n in range(10_001):
        info = (ValueError, ValueError("bad\x1b[2J\u202e"), None)
        record = log.makeRecord("x", logging.ERROR, "", 0, "Error handling request from %s", ("1.2.3.4",), info)
        record.created = NOW_S + (61.0 if n == 10_000 else 1.0)
        records += [record] if bound.filter(record) else []
    first, second = (logging.Formatter().format(record) for record in records)
    assert first.startswith("Error handling request from 1.2.3.4: ValueError: bad?[2J?")
    assert "\n" not in first
    assert second.endswith("(9999 more like this were not written)")
