"""The HTTP side for tests: in this process, to be asked by a client of aiohttp, or as the process that it is."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import aiohttp
from aiohttp import web
from helpers import wait_until

from slurm_robust.daemon.api.connections import Bounds, Connections, listen, log
from slurm_robust.daemon.api.dashboard.access import Access
from slurm_robust.daemon.api.dashboard.hiding import Hiding
from slurm_robust.daemon.api.dashboard.web import Dashboard
from slurm_robust.daemon.api.http import ShownState, application

NOW_S = 1_800_000_000.0


class Served:
    """A dashboard that listens, and what it shows."""

    def __init__(
        self,
        shown: ShownState,
        dashboard: Dashboard,
        base: str,
        session: aiohttp.ClientSession,
        connections: Connections,
    ) -> None:
        self.shown, self.dashboard, self.base, self.session = shown, dashboard, base, session
        self.connections = connections

    def take(self, snapshot: dict[str, Any]) -> None:
        """A new snapshot has come."""
        self.shown.take(json.dumps(snapshot).encode())
        self.dashboard.live.changed()

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        """The answer to a GET, its body read; redirects are not followed."""
        response = await self.session.get(self.base + path, headers=headers, allow_redirects=False)
        await response.read()
        return response


@contextlib.asynccontextmanager
async def serving(
    snapshot: dict[str, Any] | None = None,
    *,
    access: Access | None = None,
    pages: Path | None = None,
    hide: tuple[str, ...] = (),
    gap_s: float = 0.05,
    bounds: Bounds | None = None,
) -> AsyncIterator[Served]:
    """A dashboard on a free port of loopback."""
    access = access or Access()
    shown = ShownState(Hiding(hide), now_s=lambda: NOW_S, is_open=access.is_open)
    dashboard = Dashboard(lambda: shown.value, shown.now_s, access, pages, gap_s)
    runner = web.AppRunner(application(shown, dashboard), access_log=None, logger=log, shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, bounds or Bounds())
    server = await listen(connections, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            served = Served(shown, dashboard, f"http://127.0.0.1:{port}", session, connections)
            if snapshot is not None:
                served.take(snapshot)
            yield served
    finally:
        server.close()
        dashboard.live.close()
        await runner.cleanup()


class HttpProcess:
    """`srobust daemon http`, fed by its standard input."""

    def __init__(self, port: int, *options: str, descriptors: int = 1024, log: IO[str] | None = None) -> None:
        self.port = port
        argv = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
        argv += [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "http", f"--port={port}", *options]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=log)
        wait_until(self._listens, 60, "the HTTP side listens")

    @property
    def url(self) -> str:
        """Of the first page."""
        return f"http://127.0.0.1:{self.port}/"

    def feed(self, snapshot: dict[str, Any]) -> None:
        """What the daemon does when something has changed."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(snapshot).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it, as the end of the daemon does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait(10)

    def _listens(self) -> bool:
        assert self.process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def http_process(*options: str, descriptors: int = 1024, log: IO[str] | None = None) -> Iterator[HttpProcess]:
    """The process on a free port, with so many file descriptors; `log` gets what it says."""
    process = HttpProcess(free_port(), *options, descriptors=descriptors, log=log)
    try:
        yield process
    finally:
        process.end()
