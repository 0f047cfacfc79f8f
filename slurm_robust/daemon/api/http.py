"""The read-only HTTP side: dashboard, `/state.json`, `/metrics`, `/healthz`. A process without any right to Slurm.

It reads snapshots, one a line, from its standard input (or from the file `state.json`), and ends when its input does.
Before it listens it loads every module and file that it needs, then gives up root.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from slurm_robust.daemon.api.connections import Connections, counted, listen, log
from slurm_robust.daemon.api.dashboard.access import Access
from slurm_robust.daemon.api.dashboard.hiding import Hiding, of_strangers, without_nodes
from slurm_robust.daemon.api.dashboard.web import Dashboard
from slurm_robust.daemon.api.metrics import metrics
from slurm_robust.daemon.api.needs import UNWRITABLE
from slurm_robust.daemon.api.state_lines import CHANGED_NODES, decode, encode

LINE_LIMIT_BYTES = 64 * 1024 * 1024
REREAD_S = 1.0


class _Changed(msgspec.Struct):
    """The part of a line with changes that is read: the rows of the nodes."""

    changed_nodes: list[dict[str, Any]]


class ShownState:
    """The last snapshot, without what the site hides.

    Its lines are read only on request: it may have thousands of nodes.
    """

    def __init__(
        self, hiding: Hiding | None = None, now_s: Callable[[], float] = time.time, *, is_open: bool = False
    ) -> None:
        self.now_s = now_s
        self._is_open = is_open
        """Whether everybody is answered: then what Slurm keeps private is hidden, too."""
        self._hiding = hiding or Hiding(())
        self._whole = self._rest = b""
        """The last lines that were not read yet."""
        self._changed: dict[str, dict[str, Any]] = {}
        """Rows that have changed since the nodes were read, by name."""
        self._nodes: dict[str, dict[str, Any]] = {}
        self._value: dict[str, Any] = {}
        self._text = b"{}"

    def take(self, line: bytes) -> None:
        """Keep this snapshot; a line that is not a JSON object is ignored."""
        line = line.strip()
        if not line.startswith(b"{") or not line.endswith(b"}"):
            return
        if not line.startswith(CHANGED_NODES):
            self._whole, self._rest, self._changed = line, b"", {}
            return
        changed = decode(line, _Changed)
        if changed is not None:
            self._rest = line
            self._changed.update({str(row.get("name")): row for row in changed.changed_nodes})

    def _read(self) -> None:
        """Read what came last."""
        whole, rest, changed = self._whole, self._rest, self._changed
        if not whole and not rest:
            return
        self._whole, self._rest, self._changed = b"", b"", {}
        value = decode(whole, dict[str, Any]) if whole else self._value
        if value is None:
            return
        if whole:
            rows = [row for row in value.get("nodes", ()) if isinstance(row, dict)]
            self._nodes = {str(row.get("name")): row for row in rows}
        if rest:
            value = decode(rest, dict[str, Any]) or value
            value.pop("changed_nodes", None)
        self._nodes.update(changed)
        value = {**value, "nodes": list(self._nodes.values())}
        if self._is_open:
            private = value.get("private") or ()
            # It is unknown while Slurm does not answer; fields that were hidden then are shown afterwards.
            self._hiding.also(of_strangers(private))
            value = without_nodes(value, private)
        self._text = b"" if rest or self._hiding else whole
        self._value = self._hiding.hidden(value) if self._hiding else value

    @property
    def text(self) -> bytes:
        """Return the state as JSON."""
        self._read()
        if not self._text:
            self._text = encode(self._value)
        return self._text

    @property
    def value(self) -> dict[str, Any]:
        """The snapshot, read; the same object while no other snapshot has come."""
        self._read()
        return self._value


def application(shown: ShownState, dashboard: Dashboard) -> web.Application:
    """Return the dashboard and three pages for tools; anything else is 404, any method but GET and HEAD is 405."""

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=shown.text, content_type="application/json", charset="utf-8")

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=metrics(shown.value, shown.now_s()), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        if shown.now_s() - float(shown.value.get("at_s", 0.0)) >= 60:
            return web.Response(text="no snapshot of the daemon for a minute\n", status=503)
        # It lives, and does nothing; other troubles are told elsewhere, and leave some of its work.
        idle = any(UNWRITABLE in str(text) for text in shown.value.get("troubles", ()))
        text = "the daemon cannot write into its folder, and does nothing: srobust status\n" if idle else "ok\n"
        return web.Response(text=text, status=503 if idle else 200)

    app = web.Application(client_max_size=1024, middlewares=[counted])
    app.router.add_get("/state.json", state)
    app.router.add_get("/metrics", prometheus)
    app.router.add_get("/healthz", healthz)
    dashboard.add_to(app)
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


@dataclass(frozen=True)
class Served:
    """The settings of the HTTP side.

    Attributes:
        state_file: The file to read snapshots from, for ever; None: they are read from the standard input, until it
            ends.
        pages: Folder of the report's pages; None without one.
        hide: `jobs`, `users`: whose names are hidden from everyone.
    """

    host: str
    port: int
    state_file: Path | None = None
    pages: Path | None = None
    hide: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)


async def serve(served: Served) -> None:
    """Give up root, and serve until the input ends; from a file, for ever."""
    shown = ShownState(Hiding(served.hide), is_open=served.access.is_open)
    # The report has names, too.
    pages = None if served.hide else served.pages
    dashboard = Dashboard(lambda: shown.value, shown.now_s, served.access, pages)
    runner = web.AppRunner(application(shown, dashboard), access_log=None, logger=log, shutdown_timeout=1.0)
    await runner.setup()
    dashboard.rehearse()
    await _rehearse(runner, dashboard.known_paths, served.access.token)
    # Otherwise they would be made again for each snapshot without a watcher.
    dashboard.live.forget()
    drop_rights()
    # What is loaded now stays for ever; looking through it again would delay every other answer.
    gc.collect()
    gc.freeze()
    assert runner.server is not None
    connections = Connections(runner.server, proxies=served.access.proxies)
    server = await listen(connections, served.host, served.port)
    try:
        if served.state_file is None:
            await _from_stdin(shown, dashboard.live.changed)
        else:
            await _from_file(shown, served.state_file, dashboard.live.changed)
    finally:
        server.close()
        dashboard.live.close()
        await runner.cleanup()


async def _rehearse(runner: web.AppRunner, paths: Iterable[str], token: str) -> None:
    """Request every page once as root, since some modules are loaded only by the first request.

    `nobody` may not be able to read this Python, which may be in root's home. The requests pass through a private
    socket pair; the process does not listen yet.
    """
    # Loads the thread pool for blocking calls, and the codec for host names.
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)
    lines = [f"GET {path}" for path in ("/state.json", "/metrics", "/healthz", "/nothing", "/?token=wrong", *paths)]
    for line in (*lines, "POST /healthz"):
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(runner.server, ours)  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(sock=theirs)
        head = "Host: localhost\r\nConnection: close\r\nAccept-Encoding: gzip\r\nCookie: a=b"
        bearer = f"\r\nAuthorization: Bearer {token}" if token else ""
        writer.write(f"{line} HTTP/1.1\r\n{head}{bearer}\r\n\r\n".encode())
        await reader.read()
        writer.close()


async def _from_stdin(shown: ShownState, changed: Callable[[], None]) -> None:
    reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        shown.take(line)
        changed()


async def _from_file(shown: ShownState, path: Path, changed: Callable[[], None]) -> None:
    last = None
    while True:
        # The file does not exist yet, or cannot be read for a while: the shown snapshot gets old, and its age tells so.
        with contextlib.suppress(OSError):
            state = await asyncio.to_thread(path.stat)
            if (now := (state.st_ino, state.st_mtime_ns, state.st_size)) != last:
                shown.take(await asyncio.to_thread(path.read_bytes))
                last = now
                changed()
        await asyncio.sleep(REREAD_S)
