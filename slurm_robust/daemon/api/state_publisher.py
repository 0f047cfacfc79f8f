"""Publishes the daemon's state: writes `state.json`, feeds the HTTP process, and restarts that one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from slurm_robust.daemon import children
from slurm_robust.daemon.api.state_lines import Snapshot
from slurm_robust.daemon.api.state_snapshot import Revision, write
from slurm_robust.daemon.context import DaemonContext

PAGES_FOLDER = "pages"
"""The folder, in the state folder, of the report's pages: `report_pages` makes them, and the HTTP side shows them."""
EVERY_S = 1.0
SHARE, WRITE_SHARE = 0.02, 0.005
"""The largest share of the time for making the state, and for writing all of it into its file."""
REPEAT_S = 10.0
"""A state that does not change is published this often: its age says that the daemon lives."""
WAIT_MAX_S = 60.0


class StateSource(Protocol):
    """The interface by which the publisher asks for the daemon's state."""

    def revision(self) -> Revision | None:
        """Return the revision that a snapshot would be made from now; None if it is not known."""

    def take(self) -> Snapshot:
        """Return the state as it is now."""


class StatePublisher:
    """The daemon's end of the pipe. Errors here do not affect the rest of the daemon.

    The HTTP side gets each change within a second, and only the nodes that have changed. The file has all nodes, and is
    written less often if that takes long.
    """

    def __init__(self, context: DaemonContext, state_dir: Path, source: StateSource) -> None:
        self.context, self.state_dir, self._source = context, state_dir, source
        self._published: Revision | None = None
        self._published_at_s = 0.0
        self._is_written = self._is_fed = True
        """Whether the file, and the HTTP side, have the snapshot that was published last."""
        self._process: asyncio.subprocess.Process | None = None
        self._fed: Mapping[str, bytes] | None = None
        """The nodes that the process knows."""
        self._next_at_s = self._write_at_s = self._start_at_s = 0.0
        self._wait_s = 1.0

    async def tick(self) -> None:
        """Publish a new snapshot where something has changed, once a second at most."""
        now_s, revision = self.context.now_s(), self._source.revision()
        # A clock that was set back must not keep the state from being published.
        if now_s < self._next_at_s <= now_s + REPEAT_S:
            return
        may_write = not now_s < self._write_at_s <= now_s + REPEAT_S
        recent = 0 <= now_s - self._published_at_s < REPEAT_S
        is_same = revision is not None and revision.same(self._published)
        if recent and is_same and (self._is_written or not may_write) and (self._is_fed or self._pipe() is None):
            return
        self._published, self._published_at_s, self._is_written, self._is_fed = revision, now_s, False, False
        began_s = time.process_time()
        snapshot = self._source.take()
        if may_write:
            snapshot = self._write(snapshot, now_s)
        if self.context.config.daemon.http.enabled:
            await self._keep_running()
            self._feed(snapshot)
        self._next_at_s = now_s + min(REPEAT_S, max(EVERY_S, (time.process_time() - began_s) / SHARE))

    def _write(self, snapshot: Snapshot, now_s: float) -> Snapshot:
        """Write the file; the snapshot, which says so where that fails."""
        context, began_s = self.context, time.process_time()
        try:
            # The group is root's, or the folder's, if it has the set-group-ID bit.
            write(self.state_dir, snapshot.whole(), 0o640 if context.private else 0o644)
        except OSError as error:
            context.alert("state.unwritable", f"{self.state_dir}: {error}", key="state")
            where = f"the folder {self.state_dir} cannot be written ({error.strerror})"
            context.trouble("state", f"{where}, so nothing new is planned: df -h {self.state_dir}")
            return snapshot._replace(state={**snapshot.state, "troubles": list(context.troubles.values())})
        context.trouble("state", "")
        self._is_written = True
        self._write_at_s = now_s + min(REPEAT_S, max(EVERY_S, (time.process_time() - began_s) / WRITE_SHARE))
        return snapshot

    async def _keep_running(self) -> None:
        context, http = self.context, self.context.config.daemon.http
        if self._process is not None and self._process.returncode is None:
            return
        if self._process is not None:
            code = self._process.returncode
            context.alert("http.ended", f"the HTTP side ended with {code}; the daemon goes on", key="http")
            self._process = self._fed = None
            self._start_at_s = context.now_s() + self._wait_s
            self._wait_s = min(WAIT_MAX_S, self._wait_s * 2)
        if context.now_s() < self._start_at_s <= context.now_s() + WAIT_MAX_S:
            return
        argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "http"]
        argv += [f"--host={http.host}", f"--port={http.port}"]
        argv += [f"--pages={self.state_dir / PAGES_FOLDER}"] if http.report_every_h else []
        argv += [f"--token-file={http.token_file}"] if http.token_file else []
        argv += [f"--user-header={http.user_header}"] if http.user_header else []
        argv += [f"--allowed-user={name}" for name in http.allowed_users]
        argv += [f"--trusted-proxy={text}" for text in http.trusted_proxies]
        argv += [f"--allowed-host={name}" for name in http.hosts]
        argv += [f"--hide={what}" for what in http.hide]
        try:
            self._process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
        except OSError as error:
            self._start_at_s = context.now_s() + WAIT_MAX_S
            context.alert("http.unstartable", str(error), key="http")

    def _pipe(self) -> asyncio.StreamWriter | None:
        """Return the pipe to the process; None if it cannot take a line now."""
        pipe = self._process.stdin if self._process else None
        # A reader that is stuck gets no further snapshot: memory stays bounded.
        if pipe is None or pipe.is_closing() or pipe.transport.get_write_buffer_size() > 0:
            return None
        return pipe

    def _feed(self, snapshot: Snapshot) -> None:
        if (pipe := self._pipe()) is None:
            return
        line = snapshot.changes(self._fed) if self._fed is not None else None
        pipe.write((line or snapshot.whole()) + b"\n")
        self._fed, self._is_fed = snapshot.nodes, True

    async def close(self) -> None:
        """End the HTTP process by closing its input."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        await children.end(process)
