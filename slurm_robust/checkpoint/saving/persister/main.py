"""Runs the persister, one process a node: it owns the buffers of the node's ranks, and writes the copies to files.

The persister serves all processes that connect to the socket it was given. An agent's persister stays until the agent
ends. A rank's persister ends when the last rank has ended and all complete copies are written. The buffers of a killed
rank stay here, and the rank that replaces it gets them back. The persister also receives copies from persisters of
other nodes, and sends copies of its own ranks to them; the ranks tell it to which nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.persister.backup_service import BackupService
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter, log
from slurm_robust.checkpoint.saving.shared import file_writer, memory_budget, messages, wire
from slurm_robust.checkpoint.saving.shared.image import ImageDescription, Note
from slurm_robust.checkpoint.store import seals

PARTS_TIMEOUT_S = 1800.0
"""The time for which the sealing rank waits for the other ranks' files."""
ORPHANED_TIMEOUT_S = 60.0
"""The same time once the rank's own process has ended and no file grows: dead ranks never write their files."""
_NICE = 10
_PR_SET_NAME = 15


class Persister:
    """All images of this node; ranks connect to `listening`.

    `lifeline` is a pipe whose other end the agent holds; None for a persister that ends with its last rank.
    """

    def __init__(self, listening: socket.socket, lifeline: int | None) -> None:
        self.listening = listening
        self.lifeline = lifeline
        self.writers: dict[tuple[str, int], ImageWriter] = {}
        self.backups = BackupService(self, self.writers)
        self.connections: dict[socket.socket, ImageWriter | None] = {}
        self._open_seals = 0
        self._lock = threading.Lock()
        self._pruning = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """Have the main loop check whether anything is left to do."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    # -- sealing -----------------------------------------------------------------------------------------------

    def seal(
        self, writer: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        """Seal a save in a thread of its own once all ranks' parts are written; then call `done`."""
        with self._lock:
            self._open_seals += 1
        threading.Thread(target=self._seal, args=(writer, description, folder, note, done), daemon=True).start()

    def _seal(
        self, writer: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        failure = warning = ""
        try:
            self._wait_and_seal(writer, description, folder, note)
            with self._pruning:  # one save at a time
                warning = file_writer.retain(Path(description.directory), description.keep)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (a fault of ours costs this save only)
            failure = f"{folder}: {type(error).__name__}: {error}"
        try:
            writer.save_ended(note, failure, warning)
            done()
            file_writer.reached("copy finished")
        finally:  # a seal that stays open would keep this process from ending
            with self._lock:
                self._open_seals -= 1
            writer.wake.set()
            self.wake()

    @staticmethod
    def _wait_and_seal(writer: ImageWriter, description: ImageDescription, folder: Path, note: Note) -> None:
        if seals.read(folder) is not None:
            return
        until_s, changed_s = time.monotonic() + PARTS_TIMEOUT_S, 0.0
        seen: frozenset[tuple[str, int, int]] = frozenset()

        def give_up() -> bool:
            nonlocal seen, changed_s
            now_s = time.monotonic()
            if (orphaned_s := writer.orphaned_s(note.save_id)) is None:
                return now_s > until_s
            # Other nodes may still be writing the files of ranks that have ended.
            if (growing := file_writer.half_written(folder)) != seen:
                seen, changed_s = growing, now_s
            return now_s > min(until_s, max(orphaned_s, changed_s) + ORPHANED_TIMEOUT_S)

        file_writer.seal_when_complete(folder, note, description.world_size, give_up)

    # -- serving -----------------------------------------------------------------------------------------------

    def _all_writers(self) -> list[ImageWriter]:
        return [*self.writers.values(), *self.backups.writers]

    def idle(self) -> bool:
        """Return whether all complete copies are written, and sealed or given up."""
        return not self._open_seals and all(writer.idle for writer in self._all_writers())

    def serve(self) -> None:
        """Run until no process needs this one any more."""
        served = ending = False
        unserved_until_s = time.monotonic() + ORPHANED_TIMEOUT_S
        while True:
            watched: list[Any] = [self._wake_read, *self.connections]
            if not ending:
                watched.append(self.listening)
            if self.lifeline is not None:
                watched.append(self.lifeline)
            ready, _, _ = select.select(watched, [], [], 30.0 if served else min(30.0, ORPHANED_TIMEOUT_S))
            for one in ready:
                if one is self.listening:
                    self._accept()
                    served = True
                elif one == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif one == self.lifeline:
                    # The agent ends, and another one may want the name. Living ranks take their buffers there.
                    os.close(one)
                    self.lifeline, ending = None, True
                    self.listening.close()
                else:
                    self._receive(one)
            served |= time.monotonic() > unserved_until_s  # the process that started this one is dead
            unneeded = ending or (self.lifeline is None and served and not self.connections)
            if unneeded and not self.connections:
                for writer in self._all_writers():
                    writer.flush()
            if unneeded and self.idle():
                return

    def _accept(self) -> None:
        connection, _ = self.listening.accept()
        if wire.same_user(connection):
            self.connections[connection] = None
        else:
            connection.close()

    def _receive(self, connection: socket.socket) -> None:
        try:
            got = wire.receive(connection, messages.FromRank)
            if got is None:
                self._disconnected(connection)
                return
            self._answer(connection, *got)
        except (OSError, ValueError, LookupError, TypeError) as error:
            log(f"a rank's connection is closed: {error}")
            self._disconnected(connection)

    def _disconnected(self, connection: socket.socket) -> None:
        writer = self.connections.pop(connection, None)
        connection.close()
        if writer is not None and writer.connection is connection:
            writer.rank_ended()

    def _answer(self, connection: socket.socket, message: Any, fds: list[int]) -> None:
        if isinstance(message, messages.SlotComplete):
            if (own := self.connections[connection]) is not None:
                own.start()
            return
        key = (message.directory, message.rank)
        held = self.writers.get(key)
        if isinstance(message, messages.AskHeldImage):
            if held is not None:
                self._assign(connection, held)
            wire.send(connection, messages.HeldImage(), [held.image.fd] if held is not None else [])
        elif isinstance(message, messages.AllocateImage):
            if held is not None:
                self.writers.pop(key).drop()
            self._allocate(connection, key, message.total_bytes)
        elif isinstance(message, messages.AdoptImage):
            os.set_inheritable(fds[0], False)
            writer = self.writers[key] = ImageWriter(self, fds[0])
            self._assign(connection, writer)
            writer.start()
            wire.send(connection, messages.ImageAdopted())
        else:
            reply, image_fds = self.backups.answer(message, held)
            wire.send(connection, reply, image_fds)

    def _assign(self, connection: socket.socket, writer: ImageWriter) -> None:
        if writer.connection not in (None, connection):
            writer.rank_ended()  # the end of its connection has not been read yet
        writer.connection = connection
        self.connections[connection] = writer

    def _allocate(self, connection: socket.socket, key: tuple[str, int], total_bytes: int) -> None:
        try:
            fd = memory_budget.memory(total_bytes, f"rank {key[1]}", "the two checkpoint buffers take")
        except CheckpointError as error:
            wire.send(connection, messages.ImageRefused(why=error.what))
            return
        writer = self.writers[key] = ImageWriter(self, fd)
        self._assign(connection, writer)
        wire.send(connection, messages.ImageAllocated(), [fd])


def main(argv: list[str]) -> None:
    """Entry point: `main([LISTENING_FD, LIFELINE_FD or "-"])`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # it ends when its work is done; SIGKILL still ends it
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"srobust-ckpt", 0, 0, 0)
    listening = socket.socket(fileno=int(argv[0]))
    lifeline = None if argv[1] == "-" else int(argv[1])
    Persister(listening, lifeline).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
