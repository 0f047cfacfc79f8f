"""Sends a rank's copies to a node that keeps a backup of it, at a bounded rate and out of the step's way."""

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

CHUNK_BYTES = 1 << 20
CONNECT_S = 2.0
SILENCE_S = 30.0
"""The other node takes nothing, or says nothing, for so long: it is given up for this copy."""
_SUCCESSOR_S = 10.0
"""For a persister that died over there to be replaced."""
_AGAIN_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Peer(NamedTuple):
    """A node that keeps a backup of a rank.

    Attributes:
        name: For people.
        node: Its persister's own number, which it proves to have.
        addresses: Of which one is tried after the other.
        secret: Of the run.
    """

    name: str
    node: str
    addresses: tuple[str, ...]
    port: int
    run: str
    secret: bytes


class Throttle:
    """A rate that several senders share.

    Args:
        bytes_per_s: 0 for no bound.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0
        self._lock = threading.Lock()

    def turn(self, size_bytes: int, now_s: float) -> float:
        """When so many bytes may be sent, by the clock of `now_s`."""
        if not self.bytes_per_s:
            return now_s
        with self._lock:
            at_s = max(now_s, self._free_at_s)
            self._free_at_s = at_s + size_bytes / self.bytes_per_s
            return at_s


def dial(peer: Peer, for_s: float = _SUCCESSOR_S) -> tuple[socket.socket, str]:
    """Connect to it at the first address where it proves to be the one; the connection, and that address.

    Raises:
        OSError: it is at none of them, or that takes longer than it may.
    """
    failure: OSError = ConnectionRefusedError("it has no address")
    until_s = time.monotonic() + max(for_s, CONNECT_S)
    for address in peer.addresses:
        if time.monotonic() > until_s:
            break
        try:
            sock = socket.create_connection((address, peer.port), timeout=CONNECT_S)
        except OSError as error:
            failure = error
            continue
        try:
            handshake.greet(sock, peer.secret, peer.run, peer.node)
        except OSError as error:
            sock.close()
            failure = error
            continue
        sock.settimeout(SILENCE_S)
        return sock, address
    raise failure


class Copy(NamedTuple):
    """A complete copy: where it is, its number, and what it is of."""

    slot: int
    number: int
    note: Note


class OverwrittenError(Exception):
    """The copy was overwritten while it was sent: a newer one is there."""


def send_copy(sock: socket.socket, image: Image, copy: Copy, throttle: Throttle) -> None:
    """Send one copy, and hear that it is kept.

    Raises:
        TornError: see there.
        OSError: it is not kept.
    """
    slot, number, note = copy
    described = image.described()
    assert described is not None
    text, metadata = image.static
    told = msgspec.to_builtins(note)
    handshake.send(sock, {"description": text.decode(), "sizes": list(image.sizes), "number": number, "note": told})
    answer = handshake.receive(sock)
    if "no" in answer:
        raise ConnectionRefusedError(str(answer["no"]))
    if answer.get("static"):
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
    handshake.send(sock, {"digest": hasher.hexdigest(), "whole": whole})
    answer = handshake.receive(sock)
    if not whole:
        raise OverwrittenError
    if "no" in answer:
        raise ConnectionAbortedError(str(answer["no"]))
    file_writer.reached("backup kept")


class Sender:
    """The thread that sends one rank's newest copy, whenever there is a newer one.

    Args:
        image: The rank's.
        peer: Where to.
        throttle: Of this node.
        tell: Called with (step, what went wrong, or that it works again) when that changes.
        backup: Which of the rank's this is, 0 or 1.
    """

    def __init__(
        self, image: Image, peer: Peer, throttle: Throttle, tell: Callable[[int, str], None], backup: int = 0
    ) -> None:
        self.image, self.peer, self.throttle, self._tell, self._backup = image, peer, throttle, tell, backup
        self.wake = threading.Event()
        self._ended = False
        self._kept = 0
        """The number of the copy that is kept over there."""
        self._sock: socket.socket | None = None
        self._broken_at_s = self._pause_s = 0.0
        """When it last failed, and for how long it is left alone since; 0 while it works."""
        for slot in SLOTS:
            image.mark_sent(slot, 0, backup)  # to somebody else
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self.wake.set()

    def give_up(self) -> None:
        """Have the thread end soon, whatever it sends."""
        self._ended = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.wake.set()

    def end(self) -> None:
        """The same, and wait for it."""
        self.give_up()
        self._thread.join()

    def _live(self) -> None:
        while not self._ended:
            self.wake.wait(max(0.05, self._resting_s()) if self._pause_s else None)
            self.wake.clear()
            while not self._ended and (newest := self._newest()) is not None:
                self._send(newest)
        self._hang_up()

    def _resting_s(self) -> float:
        """How long it is left alone yet; the training is not to wait for a node that is gone."""
        return self._broken_at_s + self._pause_s - time.monotonic() if self._pause_s else 0.0

    def _newest(self) -> Copy | None:
        """The newest copy, if it is to be sent now; others are marked as if they had been: nobody waits for them."""
        held = [Copy(slot, *one) for slot in SLOTS if (one := self.image.held(slot)) is not None]
        newest = max(held, key=lambda one: one.number, default=None)
        for slot, number, _ in held:
            if self._pause_s or newest is None or slot != newest.slot:
                self.image.mark_sent(slot, number, self._backup)
        if newest is None or newest.number == self._kept or self._resting_s() > 0:
            return None
        return newest

    def _send(self, copy: Copy) -> None:
        try:
            self._patiently(copy)
        except OverwrittenError:
            return
        except OSError as error:
            self._hang_up()
            self._broken_at_s = time.monotonic()
            first = not self._pause_s
            self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if first and not self._ended:
                failure = f"{self.peer.name} does not keep its backup: {error}; training goes on without it"
                self._tell(copy.note.step, failure)
            return
        if self._pause_s:
            self._pause_s = 0.0
            self._tell(copy.note.step, f"{self.peer.name} keeps its backup again")
        self._kept = copy.number
        self.image.mark_sent(copy.slot, copy.number, self._backup)

    def _patiently(self, copy: Copy) -> None:
        """Send it, and again for a while where that fails: a persister that died may have a successor."""
        until_s = time.monotonic() + (0.0 if self._pause_s else _SUCCESSOR_S)
        while (failure := self._tried(copy)) is not None:
            self._hang_up()
            if self._ended or time.monotonic() > until_s:
                raise failure
            time.sleep(_AGAIN_S)

    def _tried(self, copy: Copy) -> OSError | None:
        try:
            if self._sock is None:
                self._sock, good = dial(self.peer)
                others = [address for address in self.peer.addresses if address != good]
                self.peer = self.peer._replace(addresses=(good, *others))
            send_copy(self._sock, self.image, copy, self.throttle)
        except OSError as error:
            return error
        return None

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
