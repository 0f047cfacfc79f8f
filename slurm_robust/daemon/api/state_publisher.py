"""Shows the daemon's state to the outside: writes `state.json` and feeds the HTTP process, started again if it dies."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_robust.daemon.api.state_snapshot import write
from slurm_robust.daemon.core import Core

EVERY_S = 1.0
WAIT_MAX_S = 60.0


class Window:
    """The daemon's side of the pipe. Whatever goes wrong here, the daemon goes on."""

    def __init__(self, core: Core, state_dir: Path, take: Callable[[], dict[str, Any]]) -> None:
        self.core, self.state_dir, self.take = core, state_dir, take
        self._process: asyncio.subprocess.Process | None = None
        self._next_at_s = self._start_at_s = 0.0
        self._wait_s = 1.0

    async def tick(self) -> None:
        """Write and feed a fresh snapshot, once a second at most."""
        core = self.core
        if core.now_s() < self._next_at_s:
            return
        self._next_at_s = core.now_s() + EVERY_S
        snapshot = self.take()
        try:
            write(self.state_dir, snapshot)
            core.trouble("state", "")
        except OSError as error:
            core.alert("state.unwritable", f"{self.state_dir}: {error}", key="state")
            where = f"the folder {self.state_dir} cannot be written ({error.strerror})"
            core.trouble(
                "state", f"{where}, so plans cannot be written down and nothing is done: df -h {self.state_dir}"
            )
            snapshot["troubles"] = list(core.troubles.values())
        if core.config.daemon.http.enabled:
            await self._keep_running()
            self._feed(snapshot)

    async def _keep_running(self) -> None:
        core, http = self.core, self.core.config.daemon.http
        if self._process is not None and self._process.returncode is None:
            return
        if self._process is not None:
            code = self._process.returncode
            core.alert("http.ended", f"the HTTP side ended with {code}; the daemon goes on", key="http")
            self._process = None
            self._start_at_s = core.now_s() + self._wait_s
            self._wait_s = min(WAIT_MAX_S, self._wait_s * 2)
        if core.now_s() < self._start_at_s:
            return
        argv = [
            sys.executable,
            "-m",
            "slurm_robust.cli.main",
            "daemon",
            "http",
            f"--host={http.host}",
            f"--port={http.port}",
        ]
        try:
            self._process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
        except OSError as error:
            self._start_at_s = core.now_s() + WAIT_MAX_S
            core.alert("http.unstartable", str(error), key="http")

    def _feed(self, snapshot: dict[str, Any]) -> None:
        pipe = self._process.stdin if self._process else None
        # A reader that is stuck gets no more than it has: memory stays bounded.
        if pipe is None or pipe.is_closing() or pipe.transport.get_write_buffer_size() > 0:
            return
        pipe.write(json.dumps(snapshot, separators=(",", ":")).encode() + b"\n")

    async def close(self) -> None:
        """End the HTTP process: its input ends."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 3)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
