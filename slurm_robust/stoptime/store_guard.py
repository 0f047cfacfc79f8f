"""Keeps strangers of the network away from PyTorch's TCPStore, which answers anybody and lists its keys.

The kernel drops what comes from other addresses than the members', by a filter at the socket that listens. Who is on a
member's own node still reaches the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of asm/socket.h, which Python's module does not name."""
_STEP = struct.Struct("=HBBL")
_LOAD, _EQUAL, _END = 0x20, 0x15, 0x06
_PROTOCOL, _SOURCE = 0xFFFFF000, 0xFFF0000C
"""Of linux/filter.h: the packet's protocol, and the source in its IPv4 header."""
_IPV4 = 0x0800
_MOST = 200
"""A step of the filter leaps over 255 others."""
_LISTENS = "0A"


def admit_only(port: int, members: Collection[str]) -> list[str]:
    """Have only these addresses reach what this process listens at; others are not filtered where one is IPv6's own.

    Returns:
        Addresses of strangers who had connected before.
    """
    known = {address.rpartition("::ffff:")[2] for address in members} | {"127.0.0.1"}
    if len(known) > _MOST or any(":" in address for address in known):
        return []
    with contextlib.suppress(OSError):  # the store is then as open as PyTorch makes it
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names only)
            if not os.path.realpath(f"/proc/self/fd/{fd}").rpartition("/")[2].startswith("socket:"):
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as sock:
                inet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port
                if inet and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    _filter(sock, [struct.unpack("!L", socket.inet_aton(address))[0] for address in known])
        return sorted({address for address in _connected(port) if address not in known})
    return []


def _filter(sock: socket.socket, sources: Collection[int]) -> None:
    number = len(sources)
    steps = [(_LOAD, 0, 0, _PROTOCOL), (_EQUAL, 0, number + 1, _IPV4), (_LOAD, 0, 0, _SOURCE)]
    steps += [(_EQUAL, number - index, 0, source) for index, source in enumerate(sources)]
    steps += [(_END, 0, 0, 0), (_END, 0, 0, 0xFFFFFFFF)]
    program = ctypes.create_string_buffer(b"".join(_STEP.pack(*step) for step in steps))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(steps), ctypes.addressof(program)))


def _connected(port: int) -> list[str]:
    """Addresses with IPv4 of who is connected to this port, or was a moment ago."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text(encoding="ascii").splitlines()[1:]:
            ours, theirs, state = line.split()[1:4]
            if int(ours.rpartition(":")[2], 16) == port and state != _LISTENS:
                # The last 32 bits, in the order of this machine's bytes.
                found.append(socket.inet_ntoa(struct.pack("=L", int(theirs.rpartition(":")[0][-8:], 16))))
    return found
