"""Receives other nodes' copies: listens for their persisters, and writes the copies into memory of this node."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import xxhash

from slurm_robust.checkpoint.saving.backup import handshake
from slurm_robust.checkpoint.saving.backup.sender import CHUNK_BYTES, CONNECT_S, SILENCE_S
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription
from slurm_robust.checkpoint.saving.shared.messages import CopyEnd, CopyOffer, CopyReply, OfferReply

UNPROVEN = 64
"""The most connections that have proven nothing yet; for one more, the oldest is closed. Anybody can connect."""
_AGAIN_S = 0.2


class BackupImage:
    """The memory for one rank's backup: an image like the rank's own."""

    def __init__(self, fd: int) -> None:
        self.image = Image(fd)
        self.lock = threading.Lock()
        """Held while a copy is received: of two senders one is the successor of the other."""
        self.last: int | None = None
        """The slot that was written last."""

    def next_slot(self) -> int:
        """Return the slot to write next: an empty one, else the one not written last, else that with the older copy."""
        held = [self.image.held(slot) for slot in SLOTS]
        empty = [slot for slot in SLOTS if held[slot] is None]
        if empty:
            return empty[0]
        if self.last is not None:
            return 1 - self.last
        return min(SLOTS, key=lambda slot: found[1].saved_at_s if (found := held[slot]) is not None else 0.0)


def addresses() -> list[str]:
    """Return this node's addresses, the loopback last; a caller tries one after the other."""
    import psutil  # noqa: PLC0415 (only nodes that keep backups need it)

    found: list[tuple[int, str]] = []
    up = psutil.net_if_stats()
    for name, assigned in psutil.net_if_addrs().items():
        if name in up and not up[name].isup:
            continue
        for one in assigned:
            if one.family == socket.AF_INET:
                found.append((2 if one.address.startswith("127.") else 0, one.address))
            elif one.family == socket.AF_INET6 and not one.address.lower().startswith("fe80"):
                found.append((3 if one.address == "::1" else 1, one.address))
    return [address for _, address in sorted(found)]


class BackupReceiver:
    """Accepts connections of other nodes' persisters.

    Args:
        image_of: (directory, rank) → the memory for its backup, None if there is none.
        node: The identity that this persister proves.
        port: 0 for any.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(self, image_of: Callable[[tuple[str, int]], BackupImage | None], node: str, port: int = 0) -> None:
        self._image_of = image_of
        self.node = node
        self._secrets: dict[str, bytes] = {}
        self._unproven: deque[socket.socket] = deque()
        self._ended = False
        if socket.has_dualstack_ipv6():
            self._sock = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._sock = socket.create_server(("", port))
        self.port: int = self._sock.getsockname()[1]
        threading.Thread(target=self._live, daemon=True).start()

    def admit(self, run: str, secret: bytes) -> None:
        """Accept copies of this run from now on."""
        self._secrets[run] = secret

    def end(self) -> None:
        """Accept no more connections."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _live(self) -> None:
        while not self._ended:
            try:
                sock, _ = self._sock.accept()
            except OSError:  # ended, or no descriptor is left for the moment
                time.sleep(_AGAIN_S)
                continue
            self._unproven.append(sock)
            if len(self._unproven) > UNPROVEN:
                with contextlib.suppress(OSError, IndexError):
                    self._unproven.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _prove(self, sock: socket.socket) -> None:
        """Let the caller prove its identity; raises OSError if the caller does not do so in time."""
        sock.settimeout(2 * CONNECT_S)
        try:
            handshake.authenticate_caller(sock, self._secrets.get, self.node)
        finally:
            with contextlib.suppress(ValueError):
                self._unproven.remove(sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            self._prove(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            while True:
                sock.settimeout(None)  # between two copies nothing is sent for as long as the training takes
                offer = handshake.receive(sock, CopyOffer)
                sock.settimeout(SILENCE_S)
                self._receive(sock, offer)

    def _receive(self, sock: socket.socket, copy: CopyOffer) -> None:
        """Receive one copy. Raises OSError if the connection is closed, or the caller breaks the protocol."""
        text = copy.description.encode()
        try:
            described = msgspec.json.decode(text, type=ImageDescription)
        except ValueError as error:
            raise handshake.HandshakeError(str(error)) from None
        key = described.directory, described.rank
        backup = self._image_of(key)
        if backup is None or not backup.lock.acquire(timeout=CONNECT_S):
            refusal = f"no memory for a backup of rank {described.rank} is reserved here"
            handshake.send(sock, OfferReply(no=refusal))
            return
        try:
            if self._image_of(key) is not backup:
                raise handshake.HandshakeError("its memory was given to another rank")
            reserved_bytes = os.fstat(backup.image.fd).st_size
            static_bytes = len(text) + described.metadata_bytes
            if (
                copy.sizes.total_bytes > reserved_bytes
                or not 0 <= described.file_bytes <= copy.sizes.slot_bytes
                or static_bytes > copy.sizes.static_bytes
            ):
                refusal = f"{reserved_bytes} bytes are reserved here, and {copy.sizes.total_bytes} are needed"
                handshake.send(sock, OfferReply(no=refusal))
                return
            slot = self._fill(sock, backup, copy, described)
            if slot is not None:
                file_writer.reached("backup whole")
                backup.image.commit(slot, copy.number, copy.note)
                backup.last = slot
                file_writer.reached("backup taken")
                handshake.send(sock, CopyReply(kept=True))
        finally:
            backup.lock.release()

    def _fill(
        self, sock: socket.socket, backup: BackupImage, copy: CopyOffer, described: ImageDescription
    ) -> int | None:
        """Receive the bytes; the slot that has them, None if they are not the bytes that were sent."""
        image, text = backup.image, copy.description.encode()
        same = image.described() is not None and image.static[0] == text and image.sizes == copy.sizes
        handshake.send(sock, OfferReply(static=not same))
        if not same:
            metadata = handshake.exactly(sock, described.metadata_bytes)
            if metadata and xxhash.xxh3_128_hexdigest(metadata) != described.digest:
                raise handshake.HandshakeError("its metadata changed on the way")
            image.describe(copy.sizes, described, metadata)
        slot = backup.next_slot()
        image.begin(slot)
        into, hasher = image.slot(slot), xxhash.xxh3_128()
        for at in range(0, described.file_bytes, CHUNK_BYTES):
            chunk = into[at : min(at + CHUNK_BYTES, described.file_bytes)]
            handshake.fill(sock, chunk)
            hasher.update(chunk)
            file_writer.reached("backup chunk taken")
        end = handshake.receive(sock, CopyEnd)
        if not end.whole:
            handshake.send(sock, CopyReply(no="it was overwritten while it was sent"))
            return None
        if end.digest != hasher.hexdigest():
            handshake.send(sock, CopyReply(no="its bytes changed on the way"))
            return None
        image.finish(slot, copy.number, hasher.digest())
        return slot
