"""Lets the ranks of a test meet: only a rank that proves to know the secret of the test takes part.

PyTorch's TCPStore and gloo admit every process that connects. So the first rank itself listens, at the port that the
order names, and each side answers the other's challenge. Only then is the store made, and the members are told its
port, which the kernel chose. The store only accepts connections from the members' addresses, and none once all members
have come. All keys in it begin with a text that follows from the secret. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hmac
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from slurm_robust.stoptime.store_guard import admit_only, close_to_others

_NONCE_BYTES = 16
_PROOF_BYTES = 32
_HELLO = struct.Struct(f"<L{_NONCE_BYTES}s")
"""Rank and nonce of a member."""
_STORE = struct.Struct(f"<L{_NONCE_BYTES}s")
"""The port of the store, and a text from which its keys are made."""
_PROVES_S = 5.0
"""From the connection to the proof."""
_UNPROVEN = 64
"""How many connections may be unproven; if there is one more, the oldest is closed."""
_AGAIN_S = 0.02
_LOOPBACK = "127.0.0.1"


class NotJoinedError(Exception):
    """This rank and the others could not meet, or a process could not prove to be one of them."""


def proof(secret: str, *parts: object) -> bytes:
    """Return the proof, for a process that knows the secret, of these parts, as bytes or as text."""
    made = hmac.new(bytes.fromhex(secret), digestmod="sha256")
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        made.update(struct.pack("<L", len(raw)) + raw)
    return made.digest()


def store(dist: Any, spec: dict[str, Any], host: str, limit_s: float) -> tuple[Any, str]:
    """Return a store that the ranks of this test share, unreadable from other nodes, and its `address:port`.

    Args:
        dist: `torch.distributed`.
        spec: `rank`, `world`, `port` at which the first rank listens, `secret` in hexadecimal digits.
        host: The host of the first rank.
        limit_s: The time within which all ranks have to come.

    Raises:
        NotJoinedError: not all ranks have come and proven themselves.
    """
    end_s = time.monotonic() + limit_s
    wait = dt.timedelta(seconds=limit_s)
    if spec["rank"] == 0:
        address = _LOOPBACK
        try:
            door = _Door(spec, "" if host != _LOOPBACK else host)
        except OSError as error:
            raise NotJoinedError(f"the first rank cannot listen at port {spec['port']}: {error.strerror}") from None
        salt = os.urandom(_NONCE_BYTES)

        def opened(members: Collection[str]) -> tuple[Any, bytes]:
            made = dist.TCPStore(_LOOPBACK, 0, spec["world"], True, wait, wait_for_workers=False)
            if strangers := admit_only(made.port, members):
                raise NotJoinedError(f"{', '.join(strangers[:4])} connected to the store of the test")
            return made, _STORE.pack(made.port, salt)

        made = door.admit_all(opened, end_s)
    else:
        address, told = _joined(spec, host, end_s)
        port, salt = _STORE.unpack(told)
        made = dist.TCPStore(address, port, spec["world"], False, wait, wait_for_workers=False)
    return dist.PrefixStore(proof(spec["secret"], "keys", salt).hex(), made), _plain((address, made.port))


def alone(dist: Any, spec: dict[str, Any], met: tuple[Any, str], ends: Collection[str], end_s: float) -> Any:
    """Return the store, once only its members can reach it, with keys that no other process has seen.

    NCCL's number will be put into the store, and a process on a member's node could list the keys so far, and write
    keys beforehand.

    Args:
        dist: `torch.distributed`.
        spec: The `spec` of `store`.
        met: The result of `store`.
        ends: `address:port` of this process's own ends of connections.
        end_s: Until when all ranks must have told their ends, on the monotonic clock.

    Raises:
        NotJoinedError: a stranger has connected to the store, or changed something in it.
        RuntimeError: from PyTorch: other ranks did not answer in time.
    """
    rank, secret = spec["rank"], spec["secret"]
    shared, at = met

    def tell(key: str, text: str) -> None:
        shared.set(key, f"{proof(secret, key, spec['port'], text).hex()} {text}")

    def told(key: str) -> str:
        shared.wait([key], dt.timedelta(seconds=max(0.1, end_s - time.monotonic())))
        signed, _, text = bytes(shared.get(key)).decode("utf-8", "replace").partition(" ")
        if not hmac.compare_digest(signed.encode(), proof(secret, key, spec["port"], text).hex().encode()):
            raise NotJoinedError("somebody changed what the ranks told each other in the store of the test")
        return text

    tell(f"ends of {rank}", " ".join(sorted(ends)))
    if rank == 0:
        members = {end for member in range(spec["world"]) for end in told(f"ends of {member}").split()}
        if strangers := close_to_others(int(at.rpartition(":")[2]), members):
            raise NotJoinedError(f"{', '.join(strangers[:4])} connected to the store of the test")
        tell("keys", os.urandom(_NONCE_BYTES).hex())
    return dist.PrefixStore(proof(secret, "keys", told("keys")).hex(), shared)


class MeetingConnections:
    """The TCP sockets that this process has opened since this was made."""

    def __init__(self) -> None:
        self._before = set(self._all())

    def ends(self) -> tuple[set[str], set[str]]:
        """Return `address:port` of its own ends, and of the ends to which it has connected (not of incoming ones)."""
        new = [ends for link, ends in self._all().items() if link not in self._before]
        listening = {own for own, other in new if not other}
        ports = {own.rpartition(":")[2] for own in listening}
        return {own for own, _ in new}, {there for own, there in new if there and own.rpartition(":")[2] not in ports}

    @staticmethod
    def _all() -> dict[str, tuple[str, str]]:
        """Return the kernel's name of each connection → its own end, and the other end; empty if it listens."""
        found = {}
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                link = os.readlink(file)  # noqa: PTH115 (Path.readlink is new in Python 3.9)
                if not link.startswith("socket:"):
                    continue
                one = socket.socket(fileno=int(file.name))
                try:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                        found[link] = _plain(one.getsockname()), "" if listens else _plain(one.getpeername())
                finally:
                    one.detach()
        return found


def _plain(address: Any) -> str:
    """Return `address:port` of IPv4 and IPv6, equal for both kinds of sockets."""
    host = str(address[0]).partition("%")[0]
    return f"{host.replace('::ffff:', '')}:{address[1]}"


def _parts(spec: dict[str, Any], rank: int, *rest: bytes) -> tuple[object, ...]:
    return (spec["port"], spec["world"], rank, *rest)


def _exactly(sock: socket.socket, length: int, end_s: float) -> bytes:
    found = b""
    while len(found) < length:
        sock.settimeout(max(0.001, end_s - time.monotonic()))
        part = sock.recv(length - len(found))
        if not part:
            raise ConnectionResetError("the connection was closed")
        found += part
    return found


class _Door:
    """The socket at which the first rank listens until all others have proven themselves.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, spec: dict[str, Any], address: str) -> None:
        self._spec = spec
        both = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server((address, spec["port"]), family=family, backlog=128, dualstack_ipv6=both)
        self._unproven: deque[socket.socket] = deque()
        self._members: dict[int, socket.socket] = {}
        self._news = threading.Condition()

    def admit_all(self, opened: Callable[[Collection[str]], tuple[Any, bytes]], end_s: float) -> Any:
        """Wait for all members, make the shared object, tell them where it is, and return it.

        Args:
            opened: Makes the shared object for the members at these addresses.
            end_s: Until when the members may come.
        """
        threading.Thread(target=self._live, daemon=True).start()
        wanted = self._spec["world"] - 1
        try:
            with self._news:
                self._news.wait_for(lambda: len(self._members) == wanted, max(0.0, end_s - time.monotonic()))
                missing = [rank for rank in range(1, wanted + 1) if rank not in self._members]
                if missing:
                    raise NotJoinedError(f"ranks {missing[:8]} of {wanted + 1} did not come, or proved nothing")
                addresses = set()
                for sock in self._members.values():
                    with contextlib.suppress(OSError):
                        addresses.add(str(sock.getpeername()[0]))
                made, told = opened(addresses)
                for rank, sock in self._members.items():
                    signed = proof(self._spec["secret"], "store", *_parts(self._spec, rank, told))
                    with contextlib.suppress(OSError):  # its own end tells it
                        sock.sendall(told + signed)
                return made
        finally:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for sock in [*self._unproven, *self._members.values()]:
                sock.close()

    def _live(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed, or no descriptor is left for the moment
                time.sleep(_AGAIN_S)
                continue
            with self._news:
                self._unproven.append(sock)
                if len(self._unproven) > _UNPROVEN:
                    with contextlib.suppress(OSError):
                        self._unproven.popleft().shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        rank = 0
        with contextlib.suppress(OSError):
            rank = self._proven(sock, time.monotonic() + _PROVES_S)
        with self._news:
            with contextlib.suppress(ValueError):
                self._unproven.remove(sock)
            if not 0 < rank < self._spec["world"]:
                sock.close()
                return
            if rank in self._members:  # it comes again: it has lost the connection before
                self._members[rank].close()
            self._members[rank] = sock
            self._news.notify_all()

    def _proven(self, sock: socket.socket, end_s: float) -> int:
        """Return the rank of the other side; 0 if it does not prove to be a member."""
        rank, theirs = _HELLO.unpack(_exactly(sock, _HELLO.size, end_s))
        mine = os.urandom(_NONCE_BYTES)
        parts = _parts(self._spec, rank, theirs, mine)
        sock.sendall(mine + proof(self._spec["secret"], "first", *parts))
        given = _exactly(sock, _PROOF_BYTES, end_s)
        return rank if hmac.compare_digest(given, proof(self._spec["secret"], "member", *parts)) else 0


def _joined(spec: dict[str, Any], host: str, end_s: float) -> tuple[str, bytes]:
    """Return the first rank's address, and what it tells its members."""
    why = "there was no time"
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, spec["port"]), timeout=left_s) as sock:
                return str(sock.getpeername()[0]), _told(spec, sock, end_s)
        except OSError as error:
            why = str(error)
        time.sleep(_AGAIN_S)
    raise NotJoinedError(f"the first rank was not met at {host} port {spec['port']}: {why}")


def _told(spec: dict[str, Any], sock: socket.socket, end_s: float) -> bytes:
    """Prove to be this rank, and wait until all have come. Raise OSError if the other side is not the first rank."""
    mine = os.urandom(_NONCE_BYTES)
    sock.sendall(_HELLO.pack(spec["rank"], mine))
    proves_s = min(end_s, time.monotonic() + _PROVES_S)
    theirs = _exactly(sock, _NONCE_BYTES, proves_s)
    parts = _parts(spec, spec["rank"], mine, theirs)
    given = _exactly(sock, _PROOF_BYTES, proves_s)
    if not hmac.compare_digest(given, proof(spec["secret"], "first", *parts)):
        raise OSError("who listens there does not know the secret of the test")
    sock.sendall(proof(spec["secret"], "member", *parts))
    told = _exactly(sock, _STORE.size, end_s)
    signed = proof(spec["secret"], "store", *_parts(spec, spec["rank"], told))
    if not hmac.compare_digest(_exactly(sock, _PROOF_BYTES, end_s), signed):
        raise OSError("who listens there does not know the secret of the test")
    return told
