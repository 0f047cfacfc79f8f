"""Holds the supervisor's end of the socket to its launcher: receives srun's start and end, and sends orders."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from slurm_robust.supervise.clock import CLOCK, Clock
from slurm_robust.supervise.launch import messages
from slurm_robust.supervise.launch.user_end import Received

_ALIVE_S = 30.0
"""How often the launcher gets a sign that the supervisor lives; the launcher waits for ten minutes."""
_GOODBYE_S = 5.0
"""Time for the launcher to end after its last order."""


class Channel:
    """Sends orders to the launcher.

    Attributes:
        ready: Set when the launcher has reported its state.
        gone: Set when the launcher has ended.
        running_attempt: The attempt that srun was last started for.
        ended: Srun's exit code, once it has ended.
        early: The launch that was made before there was a supervisor; None if a supervisor ordered the launch.
        evicted: Nodes that the last launch left out, as the launcher keeps them for a supervisor that is started again.
        signals: Signals that may end a step, as the current srun has received them, and when.
        warm_ended: The last warm step that has ended by itself.
    """

    def __init__(self, fd: int, *, clock: Clock = CLOCK) -> None:
        self._socket = socket.socket(fileno=fd)
        self._clock = clock
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()
        self.running_attempt = ""
        self.early: messages.StartedEarly | None = None
        self.evicted: tuple[str, ...] = ()
        self.ended: int | None = None
        self.signals: list[Received] = []
        self.warm_ended: messages.WarmEnded | None = None

    async def open(self) -> None:
        """Begin to listen."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._report_alive())]

    async def _report_alive(self) -> None:
        while not self.gone.is_set():
            await self._clock.sleep(_ALIVE_S)
            self.report_alive()

    def report_alive(self) -> None:
        """Tell the launcher that we live. It ends a supervisor that has never told so, if srun has ended well."""
        self._send(messages.SupervisorAlive())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                self._take(messages.to_supervisor(line))
        self.gone.set()
        self.changed.set()

    def _take(self, message: messages.ToSupervisor) -> None:
        if isinstance(message, messages.StartedEarly):
            self.early = message
        elif isinstance(message, messages.WarmEnded):
            self.warm_ended = message
        elif isinstance(message, messages.SrunSignalled):
            self.signals.append(Received(message.number, message.at_s))
        elif not isinstance(message, messages.LauncherReady):
            self.evicted = message.evicted or self.evicted
            self.running_attempt = message.attempt
            self.ended = message.code if isinstance(message, messages.SrunEnded) else None
        self.ready.set()
        self.changed.set()

    def _send(self, message: messages.ToLauncher) -> None:
        if self._writer is not None:
            self._writer.write(messages.encode(message))

    def launch(self, order: messages.LaunchSrun) -> None:
        """Have srun started; the launcher only keeps `evicted`."""
        self.ended, self.signals = None, []
        self._send(order)

    def warm(self, order: messages.WarmOrder) -> None:
        """Have a warm step started, adopted as the attempt that runs, or ended."""
        if isinstance(order, messages.AdoptWarm):
            self.ended, self.signals = None, []
        self._send(order)

    def prepare(self, within_s: float) -> None:
        """Report that the first launch takes up to so long, so that the launcher waits for it."""
        self._send(messages.SupervisorPrepares(within_s))

    def kill(self) -> None:
        """Have srun killed, because its step does not end."""
        self._send(messages.KillSrun())

    async def exit(self, code: int) -> None:
        """Have the launcher exit with this code."""
        await self._send_last(messages.ExitWith(code))

    async def part(self, argv: Sequence[str], nap_s: float) -> None:
        """Have the launcher become the shell that waits for the requeue and runs `argv` every `nap_s`."""
        await self._send_last(messages.WaitForRequeue(tuple(argv), nap_s))

    async def _send_last(self, message: messages.ToLauncher) -> None:
        self._send(message)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), _GOODBYE_S)

    async def wait_ended(self, timeout_s: float) -> bool:
        """Wait for srun's end; return False if srun did not end in time."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while self.ended is None and not self.gone.is_set():
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            self.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), left_s)
        return True
