"""The read-only HTTP side: `/state.json`, `/metrics`, `/healthz`. A process of its own, without any right to Slurm.

It reads snapshots, one a line, from its standard input (or from the file `state.json`), and ends when its input does.
Before it listens it loads every module that it needs, then gives up root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from slurm_robust.daemon.api.metrics import metrics

LINE_LIMIT_BYTES = 64 * 1024 * 1024
REREAD_S = 1.0


class ShownState:
    """The last snapshot."""

    def __init__(self) -> None:
        self._text, self._new = "{}", ""
        self._value: dict[str, Any] = {}

    def take(self, text: str) -> None:
        """Keep this snapshot; it is read when somebody asks for it, for it may be of thousands of nodes."""
        if text.startswith("{") and text.rstrip().endswith("}"):
            self._new = text

    def _read(self) -> None:
        """Read what came last; a text that is no JSON object is ignored."""
        text, self._new = self._new, ""
        if not text:
            return
        try:
            value = json.loads(text)
        except ValueError:
            return
        if isinstance(value, dict):
            self._text, self._value = text, value

    @property
    def text(self) -> str:
        """As JSON."""
        self._read()
        return self._text

    @property
    def value(self) -> dict[str, Any]:
        """The same, read."""
        self._read()
        return self._value


def application(shown: ShownState) -> web.Application:
    """The three pages; anything else is 404, any method but GET and HEAD is 405."""

    async def state(_: web.Request) -> web.Response:
        return web.Response(text=shown.text, content_type="application/json")

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=metrics(shown.value, time.time()), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        fresh = time.time() - float(shown.value.get("at_s", 0.0)) < 60
        return web.Response(
            text="ok\n" if fresh else "no snapshot of the daemon for a minute\n", status=200 if fresh else 503
        )

    app = web.Application(client_max_size=1024)
    app.router.add_get("/state.json", state)
    app.router.add_get("/metrics", prometheus)
    app.router.add_get("/healthz", healthz)
    return app


def drop_rights(user: str = "nobody") -> None:
    """Give up root for this user, and every variable that tells where Slurm is."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "SROBUST", "MUNGE")):
            del os.environ[name]
    if os.geteuid() == 0:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


async def serve(host: str, port: int, state_file: Path | None) -> None:
    """Give up root, and serve until the input ends; with `state_file`, for ever."""
    shown = ShownState()
    runner = web.AppRunner(application(shown), access_log=None)
    await runner.setup()
    await _rehearse(runner)
    drop_rights()
    site = web.TCPSite(runner, host, port)
    await site.start()
    try:
        if state_file is None:
            await _from_stdin(shown)
        else:
            await _from_file(shown, state_file)
    finally:
        await runner.cleanup()


async def _rehearse(runner: web.AppRunner) -> None:
    """Request every page once as root, since some modules are loaded only by the first request.

    `nobody` may not be able to read this Python, which may be in root's home. The requests pass through a socket pair,
    to which nobody else has access; the process does not listen yet.
    """
    # Loads the thread pool for blocking calls, and the codec for host names.
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)
    for line in ("GET /state.json", "GET /metrics", "GET /healthz", "GET /nothing", "POST /healthz"):
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(runner.server, ours)  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(sock=theirs)
        writer.write(f"{line} HTTP/1.1\r\nHost: us\r\nConnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()


async def _from_stdin(shown: ShownState) -> None:
    reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        shown.take(line.decode("utf-8", "replace"))


async def _from_file(shown: ShownState, path: Path) -> None:
    while True:
        # The file does not exist yet, or cannot be read for a while: the shown snapshot gets old, and its age tells so.
        with contextlib.suppress(OSError):
            shown.take(await asyncio.to_thread(path.read_text, encoding="utf-8"))
        await asyncio.sleep(REREAD_S)
