"""The persister: owns the buffers of a node's ranks, and writes what was copied into them.

One a node. It serves whoever connects to the socket it was given: an agent's, then it stays until the agent goes, or a
rank's, then it ends when the last rank has gone and all that was complete is written. A rank that is killed leaves its
buffers here; the rank that comes in its place is given them. It also keeps copies of ranks of other nodes, which their
persisters send, and sends its own ranks' copies to others: who to whom is told by the ranks.
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
from slurm_robust.checkpoint.health import rollback_log
from slurm_robust.checkpoint.saving.backup.service import BackupService
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter, say
from slurm_robust.checkpoint.saving.shared import file_writer, memory_budget, wire
from slurm_robust.checkpoint.saving.shared.image import ImageDescription, Note
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.demotion import demote

PARTS_TIMEOUT_S = 1800.0
"""How long the rank that seals waits for the other ranks' files."""
ORPHANED_TIMEOUT_S = 60.0
"""The same once its own rank has gone, and nothing is written there: ranks that died in a copy never write it."""
_NICE = 10
_PR_SET_NAME = 15


class Persister:
    """All images of this node.

    Args:
        listening: Where ranks connect.
        lifeline: A pipe whose other end the agent holds; None for one that ends with its last rank.
    """

    def __init__(self, listening: socket.socket, lifeline: int | None) -> None:
        self.listening = listening
        self.lifeline = lifeline
        self.keepers: dict[tuple[str, int], ImageWriter] = {}
        self.neighbours = BackupService(self)
        self.connections: dict[socket.socket, ImageWriter | None] = {}
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
        self, keeper: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        """Seal a save once all ranks' parts are there, beside whatever is written next; then call `done`."""
        with self._lock:
            self._seals += 1
        threading.Thread(target=self._seal, args=(keeper, description, folder, note, done), daemon=True).start()

    def _seal(
        self, keeper: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        failure = warning = ""
        try:
            self._wait_and_seal(keeper, description, folder, note)
            warning = self._retain(description)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (as above)
            failure = f"{folder}: {type(error).__name__}: {error}"
        try:
            keeper.tell(note, failure, warning)
            done()
            file_writer.reached("copy finished")
        finally:  # a seal that stays open would keep this process from its end
            with self._lock:
                self._seals -= 1
            keeper.wake.set()
            self.poke()

    def _retain(self, description: ImageDescription) -> str:
        """Remove old checkpoints, one save at a time; why that failed. The new one is sealed whatever comes of it."""
        if not description.keep:
            return ""
        with self._pruning:
            try:
                file_writer.retain(Path(description.directory), description.keep)
            except CheckpointError as error:
                return f"old checkpoints stay: {error}"
            file_writer.reached("pruned")
        return ""

    @staticmethod
    def _wait_and_seal(keeper: ImageWriter, description: ImageDescription, folder: Path, note: Note) -> None:
        if seals.read(folder) is not None:
            return
        until_s, moved_s = time.monotonic() + PARTS_TIMEOUT_S, 0.0
        seen: frozenset[tuple[str, int, int]] = frozenset()

        def give_up() -> bool:
            nonlocal seen, moved_s
            now_s = time.monotonic()
            if (left_s := keeper.left_s(note.save_id)) is None:
                return now_s > until_s
            # Other nodes may still be writing what their ranks left.
            if (there := file_writer.half_written(folder)) != seen:
                seen, moved_s = there, now_s
            return now_s > min(until_s, max(left_s, moved_s) + ORPHANED_TIMEOUT_S)

        file_writer.seal_when_complete(folder, note.save_id, note.step, description.world_size, give_up)
        if why := rollback_log.given_up(rollback_log.read(description.directory), note.step, note.saved_at_s):
            demote(folder, why)  # its files are younger than what they hold

    # -- serving -----------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether all that was complete is written, and sealed or given up."""
        keepers = [*self.keepers.values(), *self.neighbours.keepers]
        return not self._seals and all(keeper.idle for keeper in keepers)

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
            if (ending or alone) and not self.connections:
                for keeper in [*self.keepers.values(), *self.neighbours.keepers]:
                    keeper.flush()
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
            say(f"a rank's connection is closed: {error}")
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
            keeper = self.keepers[key] = ImageWriter(self, fds[0])
            self._take(connection, keeper)
            keeper.start()
            wire.send(connection, {"t": "adopted"})
        else:
            self.neighbours.answer(connection, message, key[0], held)

    def _take(self, connection: socket.socket, keeper: ImageWriter) -> None:
        if keeper.connection not in (None, connection):
            keeper.rank_gone()  # its end is not heard yet
        keeper.connection = connection
        self.connections[connection] = keeper

    def _allocate(self, connection: socket.socket, key: tuple[str, int], total_bytes: int) -> None:
        try:
            fd = memory_budget.memory(total_bytes, f"rank {key[1]}", "the two checkpoint buffers take")
        except CheckpointError as error:
            wire.send(connection, {"t": "refused", "why": error.what})
            return
        keeper = self.keepers[key] = ImageWriter(self, fd)
        self._take(connection, keeper)
        wire.send(connection, {"t": "allocated"}, [fd])


def main(argv: list[str]) -> None:
    """Entry point: `main([LISTENING_FD, LIFELINE_FD or "-"])`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
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
