"""Transport between rank and persister: one message a packet over a Unix socket, with up to two file descriptors.

The socket has an abstract name: it leaves nothing on any disk, and containers that share the network namespace find
it. Abstract names have no owner, so each side asks the kernel which user is on the other side: it must be its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

MOST_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("3i")


def listener(name: str) -> socket.socket:
    """Return a socket that listens at an abstract name. Raises OSError if another process listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(f"\0{name}")
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def connect(name: str, timeout_s: float) -> socket.socket | None:
    """Connect to an abstract name; None if no process, or another user's, listens. Raises OSError without a socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout_s)
    with contextlib.suppress(OSError):
        sock.connect(f"\0{name}")
        if same_user(sock):
            return sock
    sock.close()
    return None


def same_user(sock: socket.socket) -> bool:
    """Return whether the process on the other side runs as this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())


def send(sock: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError if the connection is closed."""
    socket.send_fds(sock, [msgspec.json.encode(message)], list(fds), socket.MSG_NOSIGNAL)


def receive(sock: socket.socket, kind: Any) -> tuple[Any, list[int]] | None:
    """Return the next message, of the union `kind`, and its descriptors; None if the connection is closed.

    Raises:
        BlockingIOError: the socket does not block, and no message is there.
        OSError: the connection failed.
        ValueError: the bytes are no such message.
    """
    data, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, 2)
    if not data:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        return None
    return msgspec.json.decode(data, type=kind), fds
