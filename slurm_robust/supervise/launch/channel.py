"""The supervisor's side of the socket to its launcher: srun's start and end come in, orders go out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping, Sequence

_ALIVE_S = 30.0
"""How often the launcher hears that we live; it waits for ten minutes."""


class Channel:
    """Speaks with the launcher.

    Attributes:
        ended: Srun's exit code, once it has ended.
        gone: Set when the launcher is.
        evicted: Nodes that the last launch left out, as the launcher keeps it for a supervisor that is started anew.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()
        self.running_attempt = ""
        self.evicted: tuple[str, ...] = ()
        self.ended: int | None = None

    async def open(self) -> None:
        """Begin to listen."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._say_alive())]

    async def _say_alive(self) -> None:
        while not self.gone.is_set():
            await asyncio.sleep(_ALIVE_S)
            self._order(do="alive")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                event = json.loads(line)
                kind = event.get("ev")
                self.evicted = tuple(event.get("evicted", self.evicted))
                if kind == "ready":
                    self.ready.set()
                elif kind == "started":
                    self.ended, self.running_attempt = None, event["attempt"]
                    self.ready.set()
                elif kind == "ended":
                    self.ended, self.running_attempt = int(event["code"]), event["attempt"]
                    self.ready.set()
                self.changed.set()
        self.gone.set()
        self.changed.set()

    def _order(self, **message: object) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        unset: Sequence[str],
        attempt: str,
        evicted: Sequence[str] = (),
    ) -> None:
        """Have srun started; `evicted` is only kept."""
        self.ended = None
        words = {"argv": list(argv), "env": dict(env), "unset": list(unset), "evicted": list(evicted)}
        self._order(do="launch", attempt=attempt, **words)

    def kill(self) -> None:
        """Have srun killed, where its step would not end."""
        self._order(do="kill")

    async def exit(self, code: int) -> None:
        """Have the launcher exit with this code."""
        await self._last_order(do="exit", code=code)

    async def part(self, argv: Sequence[str], nap_s: float) -> None:
        """Have the launcher nap and run `argv` now and then: nothing is left to supervise. We live on, for a moment."""
        await self._last_order(do="part", argv=list(argv), nap_s=nap_s)

    async def _last_order(self, **message: object) -> None:
        self._order(**message)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), 5.0)

    async def wait_ended(self, timeout_s: float) -> bool:
        """Wait for srun's end; False where it did not come in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.ended is None and not self.gone.is_set():
            left = deadline - loop.time()
            if left <= 0:
                return False
            self.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), left)
        return True
