"""Has `srobust report` make the pages that the HTTP side shows: one after the other, once an hour.

The report is a child with the lowest priority, bounded in time and memory. The daemon never waits for the child, and
never reads its pages. A page that could not be made keeps its old content and date.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_robust.core.text import printable
from slurm_robust.daemon.api.dashboard.report_files import PAGES
from slurm_robust.daemon.api.state_publisher import PAGES_FOLDER
from slurm_robust.daemon.context import DaemonContext

SINCE = {"day.html": "1d", "week.html": "7d", "month.html": "30d"}
"""Page → how far back it goes, as `srobust report --since` takes it."""
FIRST_AFTER_S = 60.0
"""A daemon that starts has better things to do."""
DEADLINE_S = 600.0
MEMORY_MAX_BYTES = 4 << 30
LAST_WORDS_BYTES, LAST_WORDS_S = 4096, 2.0


def command(since: str, out: Path, state_dir: Path) -> list[str]:
    """Return the command that makes one page."""
    report = [sys.executable, "-m", "slurm_robust.cli.main", "report"]
    return [*report, "--since", since, "--journal", str(state_dir), "--out", str(out)]


class ReportPages:
    """Makes one page at a time; `tick` starts, looks after and ends the child."""

    def __init__(
        self,
        context: DaemonContext,
        state_dir: Path,
        command: Callable[[str, Path, Path], Sequence[str]] = command,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        self._context, self._state_dir, self._command = context, state_dir, command
        self._folder = state_dir / PAGES_FOLDER
        self._every_s = context.config.daemon.http.report_every_h * 3600.0
        self._next_at_s = context.now_s() + first_after_s
        self._left: list[str] = []
        self._is_private: bool | None = None
        self._making = ""
        self._process: asyncio.subprocess.Process | None = None
        self._words: asyncio.Task[bytes] | None = None
        self._deadline_s = 0.0
        self._ending: asyncio.Task[None] | None = None
        """A child that sleeps in the kernel outlives its SIGKILL: the daemon's turn does not wait for it."""

    async def tick(self) -> None:
        """Do the work that is due; errors here do not affect the rest of the daemon."""
        http, now_s = self._context.config.daemon.http, self._context.now_s()
        # The pages would show the names that are hidden.
        if not http.enabled or not self._every_s or http.hide:
            return
        private = bool(self._context.private)
        if private != self._is_private:
            self._guard(private)
        if private and not http.token_file and not http.user_header:
            return
        if self._ending is not None:
            if self._ending.done():
                ended, self._ending = self._ending, None
                ended.result()
        elif self._process is not None:
            self._look(now_s)
        # A clock that was set back must not keep the pages from being made.
        elif self._left or not now_s < self._next_at_s <= now_s + self._every_s + FIRST_AFTER_S:
            if not self._left:
                self._left, self._next_at_s = list(PAGES), now_s + self._every_s
            await self._start(self._left.pop(0), now_s)

    def _guard(self, private: bool) -> None:
        """Let only the HTTP side read the folder, or everyone."""
        with contextlib.suppress(OSError, KeyError):
            self._folder.mkdir(mode=0o750, exist_ok=True)
            if private and os.geteuid() == 0:
                os.chown(self._folder, -1, pwd.getpwnam("nobody").pw_gid, follow_symlinks=False)
            self._folder.chmod(0o750 if private else 0o755)
            self._is_private = private

    async def close(self) -> None:
        """End the child."""
        if self._ending is None and self._process is not None:
            self._ending = asyncio.create_task(self._end(""))
        if self._ending is not None:
            await asyncio.wait((self._ending,), timeout=2 * LAST_WORDS_S)
            self._ending.cancel()

    async def _start(self, name: str, now_s: float) -> None:
        try:
            self._folder.mkdir(mode=0o750 if self._is_private else 0o755, exist_ok=True)
            # One that was killed while it wrote has left this.
            for half in self._folder.glob(f".{self._new(name).name}.*"):
                half.unlink(missing_ok=True)
            argv = [*self._command(SINCE[name], self._new(name), self._state_dir)]
            argv += [f"--config={self._context.config_path}"] if self._context.config_path else []
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._failed(name, str(error))
            return
        self._making, self._deadline_s = name, now_s + DEADLINE_S
        self._words = asyncio.create_task(_last_words(self._process))
        with contextlib.suppress(OSError, ValueError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))

    def _look(self, now_s: float) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is not None:
            problem = "" if process.returncode == 0 else f"it ended with {process.returncode}"
        elif not self._deadline_s - DEADLINE_S <= now_s < self._deadline_s:
            problem = f"it took more than {DEADLINE_S:.0f} s"
        else:
            return
        self._ending = asyncio.create_task(self._end(problem))

    async def _end(self, problem: str) -> None:
        """Take the page that the child has made, or keep the old page."""
        process, words, name = self._process, self._words, self._making
        self._process = self._words = None
        if process is None or words is None:
            return
        is_whole = process.returncode == 0
        # Whatever it has started is in its session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        said = b""
        # One that has left the session may hold the pipe open for ever.
        with contextlib.suppress(asyncio.TimeoutError):
            said = await asyncio.wait_for(words, LAST_WORDS_S)
        # asyncio has no other way to close our end of a pipe that somebody still holds.
        process._transport.close()  # type: ignore[attr-defined]
        new = self._new(name)
        try:
            if is_whole:
                new.chmod(0o644)
                new.replace(self._folder / name)
            else:
                new.unlink(missing_ok=True)
        except OSError as error:
            problem = problem or f"{new}: {error.strerror}"
        if problem:
            self._failed(name, ": ".join(filter(None, (problem, said.decode("utf-8", "replace").strip()))))

    def _new(self, name: str) -> Path:
        return self._folder / f"{name}.new"

    def _failed(self, name: str, problem: str) -> None:
        text = f"the report's page {name} could not be made: {printable(problem)[-300:]}"
        self._context.alert("report.failed", text, key="report")


async def _last_words(process: asyncio.subprocess.Process) -> bytes:
    """Return the end of the text that the process writes to stderr."""
    words = b""
    while process.stderr is not None and (piece := await process.stderr.read(LAST_WORDS_BYTES)):
        words = (words + piece)[-LAST_WORDS_BYTES:]
    return words
