"""Keeps strangers of the network away from PyTorch's TCPStore, which answers everybody and lists its keys.

By a filter at the listening socket, the kernel drops packets from other addresses than the members'. A stranger on a
member's own node has a member's address, so the filter drops all packets once all members are connected.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of asm/socket.h, which Python's module does not name."""
_STEP = struct.Struct("=HBBL")
_LOAD, _EQUAL, _END = 0x20, 0x15, 0x06
_PROTOCOL, _SOURCE = 0xFFFFF000, 0xFFF0000C
"""Offsets of linux/filter.h: the packet's protocol, and the source in its IPv4 header."""
_IPV4 = 0x0800
_MOST = 200
"""The most addresses: a step of the filter can jump over at most 255 others."""
_LISTENS = "0A"


def admit_only(port: int, members: Collection[str]) -> list[str]:
    """Have only these addresses reach this process's listening port; no filter if one is a true IPv6 address.

    Returns:
        Addresses of strangers who had connected before.
    """
    known = {address.rpartition("::ffff:")[2] for address in members} | {"127.0.0.1"}
    if len(known) > _MOST or any(":" in address for address in known):
        return []
    sources = [struct.unpack("!L", socket.inet_aton(address))[0] for address in known]
    number = len(sources)
    steps = [(_LOAD, 0, 0, _PROTOCOL), (_EQUAL, 0, number + 1, _IPV4), (_LOAD, 0, 0, _SOURCE)]
    steps += [(_EQUAL, number - index, 0, source) for index, source in enumerate(sources)]
    steps += [(_END, 0, 0, 0), (_END, 0, 0, 0xFFFFFFFF)]
    with contextlib.suppress(OSError):  # the store is then as open as PyTorch makes it
        _filter(port, steps)
        # Only IPv6 addresses that stand for IPv4 addresses can be recognised.
        return sorted({end.rpartition(":")[0] for end in _connected(port)} - known)
    return []


def close_to_others(port: int, ends: Collection[str]) -> list[str]:
    """Have no further process connect to this process's listening port.

    Args:
        port: The port at which it listens.
        ends: `address:port` of the members' ends of their connections to it.

    Returns:
        The ends of strangers who were connected.
    """
    with contextlib.suppress(OSError):
        _filter(port, [(_END, 0, 0, 0)])
        return sorted(set(_connected(port)) - set(ends))
    return []


def _filter(port: int, steps: Sequence[tuple[int, int, int, int]]) -> None:
    program = ctypes.create_string_buffer(b"".join(_STEP.pack(*step) for step in steps))
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names only)
        if not os.path.realpath(f"/proc/self/fd/{fd}").rpartition("/")[2].startswith("socket:"):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as sock:
            inet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port
            if inet and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                packed = struct.pack("@HP", len(steps), ctypes.addressof(program))
                sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, packed)


def _connected(port: int) -> list[str]:
    """Return `address:port` of processes that are connected to this port, or were a moment ago."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text(encoding="ascii").splitlines()[1:]:
            ours, theirs, state = line.split()[1:4]
            if int(ours.rpartition(":")[2], 16) == port and state != _LISTENS:
                address, _, remote = theirs.rpartition(":")
                # Words of 32 bits, each in the order of this machine's bytes.
                words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
                raw = b"".join(struct.pack("=L", word) for word in words)
                plain = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
                found.append(f"{plain.replace('::ffff:', '')}:{int(remote, 16)}")
    return found
