"""Sends a rank's copies to a node that keeps a backup of it, at a bounded rate and outside of the step."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import xxhash

from slurm_robust.checkpoint.saving.backup import handshake
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, Note
from slurm_robust.checkpoint.saving.shared.messages import CopyEnd, CopyOffer, CopyReply, OfferReply, PeerAddress

CHUNK_BYTES = 1 << 20
CONNECT_S = 2.0
SILENCE_S = 30.0
"""The time without progress of the other node after which a copy to it is given up."""
_SUCCESSOR_S = 10.0
"""Wait for a persister that died on the other node to be replaced."""
_AGAIN_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Peer(NamedTuple):
    """A node that keeps a backup of a rank, and the secret of the run."""

    at: PeerAddress
    run: str
    secret: bytes


class Throttle:
    """A rate that several senders share; 0 for no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self._lock = threading.Lock()

    def turn(self, size_bytes: int, now_s: float) -> float:
        """Return when so many bytes may be sent, on the clock of `now_s`."""
        if not self.bytes_per_s:
            return now_s
        with self._lock:
            at_s = max(now_s, self._free_at_s)
            self._free_at_s = at_s + size_bytes / self.bytes_per_s
            return at_s


def connect(peer: Peer, for_s: float = _SUCCESSOR_S) -> tuple[socket.socket, str]:
    """Connect to the first of the peer's addresses where it authenticates itself; return connection and address.

    Raises OSError if the peer answers at no address within `for_s`.
    """
    failure: OSError = ConnectionRefusedError("it has no address")
    until_s = time.monotonic() + max(for_s, CONNECT_S)
    for address in peer.at.addresses:
        if time.monotonic() > until_s:
            break
        try:
            sock = socket.create_connection((address, peer.at.port), timeout=CONNECT_S)
        except OSError as error:
            failure = error
            continue
        try:
            handshake.authenticate_to(sock, peer.secret, peer.run, peer.at.node)
        except OSError as error:
            sock.close()
            failure = error
            continue
        sock.settimeout(SILENCE_S)
        return sock, address
    raise failure


class Copy(NamedTuple):
    """A complete copy: its slot, its number, and the save it is of."""

    slot: int
    number: int
    note: Note


class OverwrittenError(Exception):
    """The copy was overwritten by a newer one while it was sent."""


def send_copy(sock: socket.socket, image: Image, copy: Copy, throttle: Throttle) -> None:
    """Send one copy, and wait until the other node confirms that it keeps it.

    Raises:
        OverwrittenError: a newer copy took its place meanwhile.
        OSError: the other node does not keep it.
    """
    slot, number, note = copy
    described = image.described()
    assert described is not None
    text, metadata = image.static
    handshake.send(sock, CopyOffer(description=text.decode(), sizes=image.sizes, number=number, note=note))
    answer = handshake.receive(sock, OfferReply)
    if answer.no:
        raise ConnectionRefusedError(answer.no)
    if answer.static:
        sock.sendall(metadata)
    hasher, content = xxhash.xxh3_128(), image.slot(slot)[: described.file_bytes]
    for at in range(0, len(content), CHUNK_BYTES):
        chunk = content[at : at + CHUNK_BYTES]
        now_s = time.monotonic()
        time.sleep(max(0.0, throttle.turn(len(chunk), now_s) - now_s))
        hasher.update(chunk)
        sock.sendall(chunk)
        file_writer.reached("backup chunk sent")
    whole = image.held(slot) == (number, note)
    handshake.send(sock, CopyEnd(digest=hasher.hexdigest(), whole=whole))
    reply = handshake.receive(sock, CopyReply)
    if not whole:
        raise OverwrittenError
    if reply.no:
        raise ConnectionAbortedError(reply.no)
    file_writer.reached("backup kept")


class Sender:
    """The thread that sends one rank's newest copy to `peer` whenever there is a newer one.

    `notify` is called with (step, message) when sending begins to fail, and when it works again. `backup` is which of
    the rank's backups this is, 0 or 1.
    """

    def __init__(
        self, image: Image, peer: Peer, throttle: Throttle, notify: Callable[[int, str], None], backup: int = 0
    ) -> None:
        self.image, self.peer, self.throttle, self._notify, self._backup = image, peer, throttle, notify, backup
        self.wake = threading.Event()
        self._ended = False
        self._kept = 0
        """The number of the copy that the other node keeps."""
        self._sock: socket.socket | None = None
        self._broken_at_s = self._pause_s = 0.0
        """When sending last failed, and the pause after that failure; 0 while sending works."""
        for slot in SLOTS:
            image.mark_sent(slot, 0, backup)  # earlier copies went to another peer
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self.wake.set()

    def give_up(self) -> None:
        """Have the thread end soon, also in the middle of a copy."""
        self._ended = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.wake.set()

    def end(self) -> None:
        """Have the thread end soon, and wait until it has ended."""
        self.give_up()
        self._thread.join()

    def _live(self) -> None:
        while not self._ended:
            self.wake.wait(max(0.05, self._pause_left_s()) if self._pause_s else None)
            self.wake.clear()
            while not self._ended and (newest := self._newest()) is not None:
                self._send(newest)
        self._disconnect()

    def _pause_left_s(self) -> float:
        """Return the rest of the pause after a failure: the training must not wait for a node that is lost."""
        return self._broken_at_s + self._pause_s - time.monotonic() if self._pause_s else 0.0

    def _newest(self) -> Copy | None:
        """Return the newest copy if it is to be sent now; older ones count as sent, so that the training goes on."""
        held = [Copy(slot, *one) for slot in SLOTS if (one := self.image.held(slot)) is not None]
        newest = max(held, key=lambda one: one.number, default=None)
        for slot, number, _ in held:
            if self._pause_s or newest is None or slot != newest.slot:
                self.image.mark_sent(slot, number, self._backup)
        if newest is None or newest.number == self._kept or self._pause_left_s() > 0:
            return None
        return newest

    def _send(self, copy: Copy) -> None:
        try:
            self._send_with_retries(copy)
        except OverwrittenError:
            return
        except OSError as error:
            self._disconnect()
            self._broken_at_s = time.monotonic()
            first = not self._pause_s
            self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if first and not self._ended:
                failure = f"{self.peer.at.name} does not keep its backup: {error}; training continues without it"
                self._notify(copy.note.step, failure)
            return
        if self._pause_s:
            self._pause_s = 0.0
            self._notify(copy.note.step, f"{self.peer.at.name} keeps its backup again")
        self._kept = copy.number
        self.image.mark_sent(copy.slot, copy.number, self._backup)

    def _send_with_retries(self, copy: Copy) -> None:
        """Send it, and retry for a while: a persister that died may be replaced."""
        until_s = time.monotonic() + (0.0 if self._pause_s else _SUCCESSOR_S)
        while (failure := self._try_send(copy)) is not None:
            self._disconnect()
            if self._ended or time.monotonic() > until_s:
                raise failure
            time.sleep(_AGAIN_S)

    def _try_send(self, copy: Copy) -> OSError | None:
        try:
            if self._sock is None:
                self._sock, good = connect(self.peer)
                others = [address for address in self.peer.at.addresses if address != good]
                self.peer = self.peer._replace(at=msgspec.structs.replace(self.peer.at, addresses=(good, *others)))
            send_copy(self._sock, self.image, copy, self.throttle)
        except OSError as error:
            return error
        return None

    def _disconnect(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
