"""What trainer and persister say to each other: one JSON object a packet over a Unix socket, with a descriptor or two.

The socket has an abstract name, so that nothing of it is left on any disk, and containers that share the network
namespace find it. Such names have no owner: each side asks the kernel for the user on the other, and talks to its
own only.
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
    """A socket that listens at an abstract name.

    Raises:
        OSError: somebody else does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(f"\0{name}")
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def connect(name: str, timeout_s: float) -> socket.socket | None:
    """Connect to who listens at an abstract name; None where nobody does, or another user.

    Raises:
        OSError: the system refuses sockets altogether.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout_s)
    try:
        sock.connect(f"\0{name}")
    except OSError:
        sock.close()
        return None
    if not same_user(sock):
        sock.close()
        return None
    return sock


def same_user(sock: socket.socket) -> bool:
    """Whether the other side is this user's."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
    """
    socket.send_fds(sock, [msgspec.json.encode(message)], list(fds), socket.MSG_NOSIGNAL)


def receive(sock: socket.socket, flags: int = 0) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None where the other side is gone.

    Raises:
        BlockingIOError: `flags` say not to wait, and there is none.
        OSError: as sockets do.
        ValueError: it makes no sense.
    """
    data, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, 2, flags)
    if not data:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        return None
    message = msgspec.json.decode(data)
    if not isinstance(message, dict):
        raise ValueError("no message")  # noqa: TRY004 (what came is wrong, not what was called)
    return message, fds
