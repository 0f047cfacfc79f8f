"""Finds a training step that somebody else's srun runs, whether that srun lives, and the connection to it.

With the SPANK plugin, an srun whose step has failed sends us its exit code and stays until we release it. Only then
does the batch script go on: a job whose script has ended cannot be requeued any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import STEP_MARK
from slurm_robust.supervise.clock import Clock

HOLD_VARIABLE = "SROBUST_HOLD"
"""Number of the descriptor on which srun sends its exit code and waits; set by the SPANK plugin."""
_STAY_EVERY_S = 10.0
"""srun waits a minute from one message of ours to the next (PATIENCE_MS in spank/src/hold.c)."""


@dataclass
class AttachedStep:
    """One step of a job, as `srobust attach --step` names it.

    Attributes:
        step: The number of the step.
        launcher: Pid of its srun, on this machine; 0 if it is not known.
        hold: Connection to an srun that waits for us when its step has failed; None if srun does not wait.
        arguments: The command line of that srun without its first word, empty if it cannot be read.
    """

    step: str
    launcher: int = 0
    hold: socket.socket | None = None
    clock: Clock = field(default_factory=Clock)
    arguments: tuple[str, ...] = field(default=(), init=False)
    _srun: tuple[int, int] | None = field(default=None, init=False)
    """The pid of srun, and when srun started; None if srun had already ended."""
    _pidfd: int = field(default=-1, init=False)
    _gone: bool = field(default=False, init=False)
    _received: str = field(default="", init=False)
    _staying: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.launcher:
            return
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{self.launcher}/cmdline").read_bytes().decode("utf-8", "replace")
            self.arguments = tuple(line.split("\0")[1:])
        if (found := procfs.stat(self.launcher)) is not None and "srun" in found.command:
            self._srun = self.launcher, found.start_ticks
        try:
            self._pidfd = os.pidfd_open(self.launcher)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            self.launcher = 0  # an old kernel: the step then counts as ended when the job has

    @property
    def attempt(self) -> str:
        """The name of the attempt for agents, with which they only take ranks of this step."""
        return f"{STEP_MARK}{self.step}"

    @property
    def over(self) -> bool:
        """Whether the step's srun has ended."""
        if self._pidfd >= 0 and not self._gone:
            self._gone = bool(select.select([self._pidfd], [], [], 0)[0])
        return self._gone

    @property
    def exit_code(self) -> int | None:
        """The exit code of an srun that has ended its step and waits for us; None if there is no such srun yet."""
        if self.hold is not None and not self._received.endswith("\n"):
            with contextlib.suppress(OSError):  # nothing was sent so far, or srun is gone, which `over` shows
                self._received += self.hold.recv(64).decode("ascii", "replace")
        ended = re.fullmatch(r"ended (\d{1,3})\n", self._received)
        return int(ended[1]) if ended is not None else None

    def keep_waiting(self) -> None:
        """Keep srun waiting from now on, however long that takes: a requeue was requested."""
        if self.hold is not None and self._staying is None:
            self._staying = asyncio.get_running_loop().create_task(self._send_alive(self.hold))

    async def _send_alive(self, hold: socket.socket) -> None:
        with contextlib.suppress(OSError):  # srun is gone
            while True:
                hold.send(b".")
                await self.clock.sleep(_STAY_EVERY_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send srun a signal. Call it once Slurm has begun to end this run of the job, or for the script to go on.

        Under `proctrack/linuxproc` Slurm misses an srun whose parent, the batch script, has ended first. An srun that
        is told to end waits half a minute for its step, and then cancels it by its number. By then the next run's step
        has that number.
        """
        if self._srun is None:
            return
        pid, started = self._srun
        found = procfs.stat(pid)
        if found is not None and found.start_ticks == started:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, number)

    def release(self) -> None:
        """Let srun end, with its own exit code. It also ends when this process ends."""
        if self._staying is not None:
            self._staying.cancel()
        if self.hold is not None:
            self.hold.close()
            self.hold = None


def connection(env: MutableMapping[str, str]) -> socket.socket | None:
    """Return the connection to srun that the plugin has opened for us; None if there is none.

    Our children do not inherit the connection, so they cannot keep srun waiting.
    """
    number = env.pop(HOLD_VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        hold = socket.socket(fileno=int(number))
        hold.setblocking(False)
        hold.set_inheritable(False)
    except OSError:
        return None
    return hold
