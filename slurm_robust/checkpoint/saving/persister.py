"""The persister: owns the buffers of a node's ranks, and writes what was copied into them.

One a node. It serves whoever connects to the socket it was given: an agent's, then it stays until the agent goes, or a
rank's, then it ends when the last rank has gone and all that was complete is written. A rank that is killed leaves its
buffers here; the rank that comes in its place is given them.
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

from slurm_robust.checkpoint import rollbacks, seals
from slurm_robust.checkpoint.demotion import demote
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving import budget, wire, writing
from slurm_robust.checkpoint.saving.image import SLOTS, Description, Image, Note

PARTS_TIMEOUT_S = 1800.0
"""How long the rank that seals waits for the other ranks' files."""
ORPHANED_TIMEOUT_S = 60.0
"""The same once its own rank has gone, and nothing is written there: ranks that died in a copy never write it."""
_NICE = 10
_PR_SET_NAME = 15


class Keeper:
    """One rank's image, and the thread that writes it."""

    def __init__(self, persister: Persister, fd: int) -> None:
        self.persister = persister
        self.image = Image(fd)
        self.connection: socket.socket | None = None
        self.wake = threading.Event()
        self.dropped = False
        self._open: set[int] = set()
        """Numbers of copies that are written, and wait for their seal."""
        self._left: set[str] = set()
        self._left_s = 0.0
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        """Begin to write what is complete."""
        if not self._thread.is_alive():
            self._thread.start()
        self.wake.set()

    def drop(self) -> None:
        """Let the memory go, once what is complete is written."""
        self.dropped = True
        self.start()
        self._thread.join()
        self.image.close()
        os.close(self.image.fd)

    def rank_gone(self) -> None:
        """The rank's process is gone; what it left complete is written."""
        held = (self.image.held(slot) for slot in SLOTS)
        self._left = {one[1].save_id for one in held if one is not None}
        self.connection, self._left_s = None, time.monotonic()
        self.start()

    def left_s(self, save_id: str) -> float | None:
        """When the process that made this copy was gone, CLOCK_MONOTONIC; None while it lives."""
        return self._left_s if save_id in self._left else None

    @property
    def idle(self) -> bool:
        """Whether nothing is left to be written."""
        return self.image.described() is None or not self.image.due()

    def _live(self) -> None:
        while True:
            self.wake.wait()
            self.wake.clear()
            description = self.image.described()
            while description is not None and (due := [one for one in self.image.due() if one[1] not in self._open]):
                self._write(description, *due[0])
            self.persister.poke()
            if self.dropped and self.idle:
                return

    def _write(self, description: Description, slot: int, number: int, note: Note) -> None:
        writing.reached("copy taken")
        folder = Path(description.directory) / note.folder
        digest, failure = b"", ""
        try:
            # The persister before this one may have been killed after it had sealed it.
            if description.rank or seals.read(folder) is None:
                digest = self._write_files(description, slot, folder, note)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (a fault of ours costs this save, not those to come)
            failure = f"{folder}: {type(error).__name__}: {error}"
        if description.rank == 0 and not failure:
            self._open.add(number)
            self.persister.sealing(self, description, folder, note, lambda: self.image.finish(slot, number, digest))
            return
        if failure:
            self.tell(note, failure)
        self.image.finish(slot, number, digest if not failure else b"")
        writing.reached("copy finished")

    def _write_files(self, description: Description, slot: int, folder: Path, note: Note) -> bytes:
        found, digest = [], b""
        if description.file_bytes:
            content = self.image.slot(slot)[: description.file_bytes]
            found.append(writing.write_file(folder, description.file, [content]))
            digest = bytes.fromhex(found[0].xxh3_128)
        if description.rank == 0:
            found.append(writing.write_file(folder, writing.METADATA, [self.image.metadata]))
        writing.note_part(folder, writing.Part(save_id=note.save_id, rank=description.rank, files=tuple(found)))
        return digest

    def tell(self, note: Note, failure: str, warning: str = "") -> None:
        """Tell the rank how a save ended (no failure: sealed); where it is gone, stderr."""
        message = {"t": "ended", "step": note.step, "failure": failure, "warning": warning}
        connection = self.connection
        if connection is not None:
            with contextlib.suppress(OSError):
                wire.send(connection, message)
                return
        if failure or warning:
            _say(f"step {note.step} is not saved: {failure}" if failure else warning)


class Persister:
    """All images of this node.

    Args:
        listening: Where ranks connect.
        lifeline: A pipe whose other end the agent holds; None for one that ends with its last rank.
    """

    def __init__(self, listening: socket.socket, lifeline: int | None) -> None:
        self.listening = listening
        self.lifeline = lifeline
        self.keepers: dict[tuple[str, int], Keeper] = {}
        self.connections: dict[socket.socket, Keeper | None] = {}
        self._seals = 0
        self._lock = threading.Lock()
        self._pruning = threading.Lock()
        self._poke_read, self._poke_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def poke(self) -> None:
        """Have the loop look whether there is anything left to do."""
        with contextlib.suppress(OSError):
            os.write(self._poke_write, b"!")

    # -- sealing -----------------------------------------------------------------------------------------------

    def sealing(
        self, keeper: Keeper, description: Description, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        """Seal a save once all ranks' parts are there, beside whatever is written next; then call `done`."""
        with self._lock:
            self._seals += 1
        threading.Thread(target=self._seal, args=(keeper, description, folder, note, done), daemon=True).start()

    def _seal(
        self, keeper: Keeper, description: Description, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        failure = warning = ""
        try:
            self._wait_and_seal(keeper, description, folder, note)
            warning = self._retain(description)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (as above)
            failure = f"{folder}: {type(error).__name__}: {error}"
        keeper.tell(note, failure, warning)
        done()
        writing.reached("copy finished")
        with self._lock:
            self._seals -= 1
        keeper.wake.set()
        self.poke()

    def _retain(self, description: Description) -> str:
        """Remove old checkpoints, one save at a time; why that failed. The new one is sealed whatever comes of it."""
        if not description.keep:
            return ""
        with self._pruning:
            try:
                writing.retain(Path(description.directory), description.keep)
            except CheckpointError as error:
                return f"old checkpoints stay: {error}"
            writing.reached("pruned")
        return ""

    @staticmethod
    def _wait_and_seal(keeper: Keeper, description: Description, folder: Path, note: Note) -> None:
        if seals.read(folder) is not None:
            return
        until_s, moved_s = time.monotonic() + PARTS_TIMEOUT_S, 0.0
        seen: frozenset[tuple[str, int, int]] = frozenset()

        def give_up() -> bool:
            nonlocal seen, moved_s
            now_s = time.monotonic()
            if (left_s := keeper.left_s(note.save_id)) is None:
                return now_s > until_s
            # Other nodes may still be writing what their ranks left; who wants the memory does not wait for that.
            if not keeper.dropped and (there := writing.half_written(folder)) != seen:
                seen, moved_s = there, now_s
            return now_s > min(until_s, max(left_s, moved_s) + ORPHANED_TIMEOUT_S)

        writing.seal_when_complete(folder, note.save_id, note.step, description.world_size, give_up)
        if why := rollbacks.given_up(rollbacks.read(description.directory), note.step, note.saved_at_s):
            demote(folder, why)  # its files are younger than what they hold

    # -- serving -----------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether all that was complete is written, and sealed or given up."""
        return not self._seals and all(keeper.idle for keeper in self.keepers.values())

    def serve(self) -> None:
        """Live until nobody needs it any more."""
        served = ending = False
        unserved_until_s = time.monotonic() + ORPHANED_TIMEOUT_S
        while True:
            watched: list[Any] = [self._poke_read, *self.connections]
            if not ending:
                watched.append(self.listening)
            if self.lifeline is not None:
                watched.append(self.lifeline)
            ready, _, _ = select.select(watched, [], [], 30.0 if served else min(30.0, ORPHANED_TIMEOUT_S))
            for one in ready:
                if one is self.listening:
                    self._accept()
                    served = True
                elif one == self._poke_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._poke_read, 4096)
                elif one == self.lifeline:
                    # The agent ends, and another one may want the name. Ranks that live bring their buffers there.
                    os.close(one)
                    self.lifeline, ending = None, True
                    self.listening.close()
                else:
                    self._hear(one)
            served |= time.monotonic() > unserved_until_s  # whoever started it is dead
            alone = self.lifeline is None and served and not self.connections
            if (ending or alone) and self.idle():
                return

    def _accept(self) -> None:
        connection, _ = self.listening.accept()
        if wire.same_user(connection):
            self.connections[connection] = None
        else:
            connection.close()

    def _hear(self, connection: socket.socket) -> None:
        try:
            got = wire.receive(connection)
            if got is None:
                self._gone(connection)
                return
            message, fds = got
            self._answer(connection, message, fds)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _say(f"a rank's connection is closed: {error}")
            self._gone(connection)

    def _gone(self, connection: socket.socket) -> None:
        keeper = self.connections.pop(connection, None)
        connection.close()
        if keeper is not None and keeper.connection is connection:
            keeper.rank_gone()

    def _answer(self, connection: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
        kind = message["t"]
        if kind == "go":
            keeper = self.connections[connection]
            if keeper is not None:
                keeper.start()
            return
        key = (str(message["directory"]), int(message["rank"]))
        held = self.keepers.get(key)
        if kind == "hello":
            if held is not None:
                self._take(connection, held)
            wire.send(connection, {"t": "held"}, [held.image.fd] if held is not None else [])
        elif kind == "alloc":
            if held is not None:
                self.keepers.pop(key).drop()
            self._allocate(connection, key, int(message["total_bytes"]))
        elif kind == "adopt":
            os.set_inheritable(fds[0], False)
            keeper = self.keepers[key] = Keeper(self, fds[0])
            self._take(connection, keeper)
            keeper.start()
            wire.send(connection, {"t": "adopted"})
        else:
            raise ValueError(f"asked for {kind!r}")

    def _take(self, connection: socket.socket, keeper: Keeper) -> None:
        if keeper.connection not in (None, connection):
            keeper.rank_gone()  # its end is not heard yet
        keeper.connection = connection
        self.connections[connection] = keeper

    def _allocate(self, connection: socket.socket, key: tuple[str, int], total_bytes: int) -> None:
        if refused := budget.refusal(total_bytes, budget.rooms(), f"rank {key[1]}"):
            wire.send(connection, {"t": "refused", "why": refused})
            return
        fd = os.memfd_create("srobust-checkpoint", os.MFD_CLOEXEC)
        try:
            # Here, so that this process is the one that pays for its pages.
            os.posix_fallocate(fd, 0, total_bytes)
        except OSError as error:
            os.close(fd)
            wire.send(connection, {"t": "refused", "why": f"rank {key[1]}: no memory for its buffers: {error}"})
            return
        keeper = self.keepers[key] = Keeper(self, fd)
        self._take(connection, keeper)
        wire.send(connection, {"t": "allocated"}, [fd])


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"slurm_robust.checkpoint: {text}\n")
        sys.stderr.flush()


def main(argv: list[str]) -> None:
    """Entry point: `main([LISTENING_FD, LIFELINE_FD or "-"])`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # it ends when it is through; SIGKILL is always there
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"srobust-ckpt", 0, 0, 0)
    listening = socket.socket(fileno=int(argv[0]))
    lifeline = None if argv[1] == "-" else int(argv[1])
    Persister(listening, lifeline).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
