"""The supervisor's side of the socket to its launcher: srun's start and end come in, orders go out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping, Sequence


class Channel:
    """Speaks with the launcher; `ended` is srun's exit code once it has ended, `gone` is set when the launcher is."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()
        self.running_attempt = ""
        self.ended: int | None = None

    async def open(self) -> None:
        """Begin to listen."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._reader_task = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                event = json.loads(line)
                kind = event.get("ev")
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

    def launch(self, argv: Sequence[str], env: Mapping[str, str], unset: Sequence[str], attempt: str) -> None:
        """Have srun started."""
        self.ended = None
        self._order(do="launch", argv=list(argv), env=dict(env), unset=list(unset), attempt=attempt)

    def kill(self) -> None:
        """Have srun killed, where its step would not end."""
        self._order(do="kill")

    async def exit(self, code: int) -> None:
        """Have the launcher exit with this code."""
        self._order(do="exit", code=code)
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
