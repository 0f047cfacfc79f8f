"""Writes the copies in one rank's image to files, in a thread of the persister."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.backup.sender import Peer, Sender, Throttle
from slurm_robust.checkpoint.saving.shared import file_writer, local_files, wire
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, Note
from slurm_robust.checkpoint.saving.shared.messages import Notice, SaveEnded
from slurm_robust.checkpoint.saving.shared.tiers import LOCAL, SHARED
from slurm_robust.checkpoint.store import seals


class SaveSealer(Protocol):
    """Seals a save once all ranks' files are written; the persister."""

    def wake(self) -> None:
        """Have its main loop check whether anything is left to do."""

    def seal(
        self, writer: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        """Seal a save in a thread of its own; then call `done`."""


class ImageWriter:
    """One rank's image, and the thread that writes it.

    `sealer` is the persister. `backup` is the image, if it is the backup of a rank of another node, which is written
    only on request; `turn` is the number of the backup among that rank's backups, 0 or 1.
    """

    def __init__(self, sealer: SaveSealer, fd: int, *, backup: Image | None = None, turn: int = 0) -> None:
        self.sealer = sealer
        self.image = backup or Image(fd)
        self.backup, self.turn = backup is not None, turn
        self.connection: socket.socket | None = None
        self.wake = threading.Event()
        self.dropped = False
        self.senders: list[Sender] = []
        self._orders: set[str] = set()
        """The saves to write to the shared file system, even if their tiers do not ask for it."""
        self._flushed: set[str] = set()
        self._open: set[int] = set()
        """Numbers of copies that are written and not sealed yet."""
        self._writing = self._memory_gone = False
        self._memory = threading.Lock()
        """Held while the memory is released, and while a seal's outcome is written into it."""
        self._orphaned: set[str] = set()
        """Saves whose process has ended."""
        self._orphaned_s = 0.0
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        """Begin to write and to send complete copies."""
        if self._thread.ident is None:
            self._thread.start()
        self.wake.set()
        for sender in self.senders:
            sender.wake.set()

    def rank_ended(self) -> None:
        """Note that the rank's process has ended; its complete copies are written."""
        held = (self.image.held(slot) for slot in SLOTS)
        self._orphaned = {one[1].save_id for one in held if one is not None}
        self.connection, self._orphaned_s = None, time.monotonic()
        self.start()

    def orphaned_s(self, save_id: str) -> float | None:
        """Return when the process that made this copy ended, CLOCK_MONOTONIC; None while the process lives."""
        return self._orphaned_s if save_id in self._orphaned else None

    def send_to(self, peers: Sequence[Peer], throttle: Throttle) -> None:
        """Send its copies to these nodes from now on, and to no others."""
        for sender in self.senders:
            sender.give_up()
        for sender in self.senders:
            sender.end()
        self.senders = [
            Sender(self.image, peer, throttle, self._backup_changed, number) for number, peer in enumerate(peers)
        ]

    def order(self, save_id: str) -> bool:
        """Write that save to the shared file system, too; False if it is not in this image."""
        for slot in SLOTS:
            held = self.image.held(slot)
            if held is not None and held[1].save_id == save_id:
                # The process that made it has ended: another one asks, or none.
                self._orphaned.add(save_id)
                self._orphaned_s = time.monotonic()
                if held[0] not in self._open:
                    self._orders.add(save_id)
                    self.start()
                return True
        return False

    def flush(self) -> None:
        """Write copies that are only in memory, too: all ranks have gone, and this process is about to end."""
        description = self.image.described()
        for slot in SLOTS:
            held = self.image.held(slot)
            if description is None or held is None or held[1].save_id in self._flushed:
                continue
            self._flushed.add(held[1].save_id)
            if self.backup or SHARED not in held[1].tiers:
                self.order(held[1].save_id)

    def drop(self) -> None:
        """Release the memory once complete copies are written; does not wait for seals that wait for other nodes."""
        self.send_to((), Throttle(0))
        self.dropped = True
        self.start()
        self._thread.join()
        with self._memory:
            self._memory_gone = True
            self.image.close()
            os.close(self.image.fd)

    @property
    def idle(self) -> bool:
        """Whether nothing is being written, or left to be written."""
        return not self._writing and (self.image.described() is None or not self._due())

    def _due(self) -> list[tuple[int, int, Note]]:
        """Return (slot, number, note) of copies to write, oldest first."""
        due = [] if self.backup else self.image.due()
        if self._orders:
            held = [(slot, *one) for slot in SLOTS if (one := self.image.held(slot)) is not None]
            due += [one for one in held if one[2].save_id in self._orders and one not in due]
        return due

    def _live(self) -> None:
        while True:
            self.wake.wait()
            self.wake.clear()
            description = self.image.described()
            while description is not None and (due := [one for one in self._due() if one[1] not in self._open]):
                self._writing = True  # before its order is removed from the list, so that `idle` is never wrong
                try:
                    self._write(description, *due[0])
                finally:
                    self._writing = False
            self.sealer.wake()
            if self.dropped:
                return  # copies that wait for their seal do not need the memory

    def _write(self, description: ImageDescription, slot: int, number: int, note: Note) -> None:
        file_writer.reached("copy taken")
        folder = Path(description.directory) / note.folder
        ordered = note.save_id in self._orders
        self._orders.discard(note.save_id)
        digest, failure = b"", ""
        if not self.backup and LOCAL in note.tiers and not ordered:
            digest = self._write_local(description, slot, note)
        if not ordered and SHARED not in note.tiers:
            self.image.finish(slot, number, digest)
            file_writer.reached("copy finished")
            return
        written = self.backup and self._written_elsewhere(folder, description, note)
        if written and description.rank:
            return
        try:
            # An earlier persister may have been killed after it had sealed this save, or between writing and sealing.
            if not written and ((description.rank and not ordered) or seals.read(folder) is None):
                digest = self._write_files(description, slot, number, folder, note)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (a fault of ours costs this save only)
            failure = f"{folder}: {type(error).__name__}: {error}"

        def finish() -> None:
            with self._memory:
                if not self.backup and not self._memory_gone:
                    self.image.finish(slot, number, digest if not failure else b"")
            self._open.discard(number)

        if description.rank == 0 and not failure:
            self._open.add(number)
            self.sealer.seal(self, description, folder, note, finish)
            return
        if failure:
            self.save_ended(note, failure)
        finish()
        file_writer.reached("copy finished")

    def _written_elsewhere(self, folder: Path, description: ImageDescription, note: Note) -> bool:
        # When agents end, both backups of a lost rank are ordered: the second one waits for the first to write.
        patience = 1 + self.turn if note.save_id in self._flushed else 1
        return file_writer.written_by_another(folder, description, note.save_id, patience * file_writer.ANOTHER_S)

    def _write_files(self, description: ImageDescription, slot: int, number: int, folder: Path, note: Note) -> bytes:
        found, digest = [], b""
        writer = file_writer.WRITERS[1 + self.turn if self.backup else 0]
        if description.file_bytes:
            content = self.image.slot(slot)[: description.file_bytes]
            found.append(file_writer.write_file(folder, description.file, [content], writer))
            digest = bytes.fromhex(found[0].xxh3_128)
        if description.rank == 0:
            found.append(file_writer.write_file(folder, file_writer.METADATA, [self.image.metadata], writer))
        if self.image.held(slot) != (number, note):
            raise CheckpointError(f"{folder}: a newer copy overwrote it in memory while it was written")
        file_writer.note_part(folder, file_writer.part_of(description, note, tuple(found)))
        return digest

    def _write_local(self, description: ImageDescription, slot: int, note: Note) -> bytes:
        """Write to the node's own disk; a failure is reported, and costs this tier only."""
        try:
            return local_files.write(description, self.image, slot, note)
        except CheckpointError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 (as above)
            failure = f"{type(error).__name__}: {error}"
        self._notice(f"step {note.step} is not on this node's disk, training continues: {failure}")
        return b""

    def save_ended(self, note: Note, failure: str, warning: str = "") -> None:
        """Report to the rank how a save ended (no failure: sealed); if the rank is gone, on stderr."""
        message = SaveEnded(step=note.step, failure=failure, warning=warning)
        if not self._sent(message) and (failure or warning):
            log(f"step {note.step} is not saved: {failure}" if failure else warning)

    def _backup_changed(self, step: int, text: str) -> None:
        self._notice(f"step {step}: {text}")

    def _notice(self, text: str) -> None:
        if not self._sent(Notice(text=text)):
            log(text)

    def _sent(self, message: SaveEnded | Notice) -> bool:
        connection = self.connection
        if connection is not None:
            with contextlib.suppress(OSError):
                wire.send(connection, message)
                return True
        return False


def log(text: str) -> None:
    """Write a line to stderr."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"slurm_robust.checkpoint: {text}\n")
        sys.stderr.flush()
