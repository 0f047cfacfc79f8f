"""Keeps other nodes' copies: listens for their persisters, and takes what they send into memory of this node."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import xxhash

from slurm_robust.checkpoint.saving.backup import handshake
from slurm_robust.checkpoint.saving.backup.sender import CHUNK_BYTES, CONNECT_S, SILENCE_S
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, ImageSizes, Note


class BackupImage:
    """The memory for one rank's backup: an image like the rank's own."""

    def __init__(self, fd: int) -> None:
        self.image = Image(fd)
        self.lock = threading.Lock()
        """Held while a copy is taken in: of two senders one is the successor of the other."""
        self.last: int | None = None
        """The slot that was taken into last."""

    def next_slot(self) -> int:
        """The slot to be taken into: an empty one, else not the one of last time, else the one with the older copy."""
        held = [self.image.held(slot) for slot in SLOTS]
        empty = [slot for slot in SLOTS if held[slot] is None]
        if empty:
            return empty[0]
        if self.last is not None:
            return 1 - self.last
        return min(SLOTS, key=lambda slot: found[1].saved_at_s if (found := held[slot]) is not None else 0.0)


def addresses() -> list[str]:
    """This node's, those that only it can reach last; a caller tries one after the other."""
    import psutil  # noqa: PLC0415 (a node that keeps no backups does without)

    found: list[tuple[int, str]] = []
    up = psutil.net_if_stats()
    for name, told in psutil.net_if_addrs().items():
        if name in up and not up[name].isup:
            continue
        for one in told:
            if one.family == socket.AF_INET:
                found.append((2 if one.address.startswith("127.") else 0, one.address))
            elif one.family == socket.AF_INET6 and not one.address.lower().startswith("fe80"):
                found.append((3 if one.address == "::1" else 1, one.address))
    return [address for _, address in sorted(found)]


class _Offer(NamedTuple):
    """What a caller is about to send."""

    sizes: ImageSizes
    text: bytes
    described: ImageDescription
    number: int
    note: Note


class BackupReceiver:
    """Where other nodes' persisters call.

    Args:
        kept: (directory, rank) → the memory for it, None where there is none.
        node: What this one proves to be.
        port: 0 for any.

    Raises:
        OSError: nobody can listen there.
    """

    def __init__(self, kept: Callable[[tuple[str, int]], BackupImage | None], node: str, port: int = 0) -> None:
        self._kept = kept
        self.node = node
        self._secrets: dict[str, bytes] = {}
        if socket.has_dualstack_ipv6():
            self._sock = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._sock = socket.create_server(("", port))
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._live, daemon=True).start()

    def admit(self, run: str, secret: bytes) -> None:
        """Take what this run sends from now on."""
        self._secrets[run] = secret

    def end(self) -> None:
        """Take no more calls."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _live(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.settimeout(2 * CONNECT_S)
            handshake.welcome(sock, self._secrets.get, self.node)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            while True:
                sock.settimeout(None)  # between two copies nothing is said for as long as the training takes
                header = handshake.receive(sock)
                sock.settimeout(SILENCE_S)
                self._take(sock, header)

    def _take(self, sock: socket.socket, header: dict[str, Any]) -> None:
        """Take one copy in.

        Raises:
            OSError: the caller is gone, or makes no sense.
        """
        try:
            text = str(header["description"]).encode()
            described = msgspec.json.decode(text, type=ImageDescription)
            note = msgspec.convert(header["note"], Note)
            offer = _Offer(ImageSizes(*map(int, header["sizes"])), text, described, int(header["number"]), note)
        except (KeyError, TypeError, ValueError) as error:
            raise handshake.HandshakeError(str(error)) from None
        kept = self._kept((described.directory, described.rank))
        if kept is None or not kept.lock.acquire(timeout=CONNECT_S):
            handshake.send(sock, {"no": f"no memory for a backup of rank {described.rank} is set aside here"})
            return
        try:
            if self._kept((described.directory, described.rank)) is not kept:
                raise handshake.HandshakeError("its memory was given to somebody else")
            room = os.fstat(kept.image.fd).st_size
            static_bytes = len(text) + described.metadata_bytes
            if (
                offer.sizes.total_bytes > room
                or not 0 <= described.file_bytes <= offer.sizes.slot_bytes
                or static_bytes > offer.sizes.static_bytes
            ):
                handshake.send(
                    sock, {"no": f"{room} bytes are set aside here, and {offer.sizes.total_bytes} would be needed"}
                )
                return
            slot = self._fill(sock, kept, offer)
            if slot is not None:
                file_writer.reached("backup whole")
                kept.image.commit(slot, offer.number, offer.note)
                kept.last = slot
                file_writer.reached("backup taken")
                handshake.send(sock, {"kept": True})
        finally:
            kept.lock.release()

    def _fill(self, sock: socket.socket, kept: BackupImage, offer: _Offer) -> int | None:
        """Take the bytes; the slot that has them, None where they are not what was meant."""
        image, described = kept.image, offer.described
        same = image.described() is not None and image.static[0] == offer.text and image.sizes == offer.sizes
        handshake.send(sock, {"static": not same})
        if not same:
            metadata = handshake.exactly(sock, described.metadata_bytes)
            if metadata and xxhash.xxh3_128_hexdigest(metadata) != described.digest:
                raise handshake.HandshakeError("its metadata changed on the way")
            image.describe(offer.sizes, described, metadata)
        slot = kept.next_slot()
        image.begin(slot)
        into, hasher = image.slot(slot), xxhash.xxh3_128()
        for at in range(0, described.file_bytes, CHUNK_BYTES):
            chunk = into[at : min(at + CHUNK_BYTES, described.file_bytes)]
            handshake.fill(sock, chunk)
            hasher.update(chunk)
            file_writer.reached("backup chunk taken")
        told = handshake.receive(sock)
        if not told.get("whole"):
            handshake.send(sock, {"no": "it was overwritten meanwhile"})
            return None
        if told.get("digest") != hasher.hexdigest():
            handshake.send(sock, {"no": "its bytes changed on the way"})
            return None
        image.finish(slot, offer.number, hasher.digest())
        return slot
