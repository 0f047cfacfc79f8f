"""Counts the bytes that the TCP connections of each rank's processes have moved, by the kernel's socket diagnosis.

One dump for each address family gives every socket of the node with its inode; `/proc/PID/fd` gives the inodes of each
process. If the kernel does not answer, as in a container or for a network namespace of its own, the figure is unknown.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import Rank, identity

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_STATES = sum(1 << state for state in (1, 4, 5, 8, 9, 11))
"""Connections that are or were established, without listening sockets and sockets of no process (TIME_WAIT)."""
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_SOCKET = struct.Struct("!4xHH")
_INODE = struct.Struct("=68xI")
_ATTRIBUTE = struct.Struct("=HH")
_BYTES = struct.Struct("=120xQQ")
"""In `struct tcp_info`: bytes_acked and bytes_received, since Linux 4.1."""
_MESSAGE_BYTES = 72
_BUFFER_BYTES = 1 << 18
_ANSWER_S = 1.0
_MAX_SOCKETS = 1 << 17
_MAX_DATAGRAMS = 1 << 12
"""The kernel puts about a hundred sockets into each."""
_MAX_DESCRIPTORS = 1 << 14


class TcpSocket(NamedTuple):
    """A TCP connection: its two ports, and the bytes that it has sent (and the peer has acknowledged) and received."""

    local_port: int
    remote_port: int
    moved_bytes: int


def read_sockets() -> dict[int, TcpSocket] | None:
    """Return inode → TCP connection, of this network namespace; None if the kernel does not tell."""
    found: dict[int, TcpSocket] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as diagnosis:
            diagnosis.settimeout(_ANSWER_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                for inode, one in _dump(diagnosis, family):
                    found[inode] = one
                    if len(found) > _MAX_SOCKETS:
                        return None
    except (OSError, struct.error):
        return None
    return found


def _dump(diagnosis: socket.socket, family: int) -> Iterator[tuple[int, TcpSocket]]:
    """Yield the connections of one address family.

    Raises:
        OSError: The kernel refused, or did not answer in time.
        struct.error: The answer is cut off.
    """
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _STATES)
    size = _HEADER.size + len(body)
    diagnosis.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, family, 0) + body)
    for _ in range(_MAX_DATAGRAMS):
        data = diagnosis.recv(_BUFFER_BYTES)
        at = 0
        while at < len(data):
            size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            if kind == _NLMSG_ERROR or not _HEADER.size <= size <= len(data) - at:
                raise OSError("the kernel tells nothing about sockets")
            if kind == _NLMSG_DONE:
                return
            if kind == _SOCK_DIAG_BY_FAMILY and sequence == family:
                yield _read(data[at + _HEADER.size : at + size])
            at += (size + 3) & ~3
    raise OSError("the kernel's answer does not end")


def _read(message: bytes) -> tuple[int, TcpSocket]:
    local, remote = _SOCKET.unpack_from(message)
    at, moved = _MESSAGE_BYTES, 0
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            break
        if kind == _INET_DIAG_INFO:
            moved = sum(_BYTES.unpack_from(message, at + _ATTRIBUTE.size))
        at += (size + 3) & ~3
    return _INODE.unpack_from(message)[0], TcpSocket(local, remote, moved)


class TcpTraffic:
    """The bytes that the processes of ranks have moved, added up over all readings, so that they never fall.

    A connection that several processes of a rank hold counts for the first of these processes, the rank's own first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: dict[tuple[int, int], int] = {}
        """Process → its bytes so far."""
        self._seen: dict[int, int] = {}
        """Inode → bytes at the last look."""

    def read(self, ranks: Iterable[Rank]) -> dict[int, int]:
        """Return pid → bytes sent and received so far, of each process for which they are known.

        Connections to or from a rank's MASTER_PORT do not count: ranks that hang also ask PyTorch's store.
        """
        with self._lock:
            return self._read(ranks)

    def _read(self, ranks: Iterable[Rank]) -> dict[int, int]:
        sockets = read_sockets()
        if sockets is None:
            return {}
        found: dict[int, int] = {}
        moved: dict[tuple[int, int], int] = {}
        seen: dict[int, int] = {}
        here = _network(os.getpid())
        for rank in ranks:
            port = procfs.environ(rank.main.pid).get("MASTER_PORT", "")
            store = int(port) if port.isdecimal() else 0
            for process in (rank.main, *(p for p in rank.tree if p.pid != rank.main.pid)):
                inodes = _inodes(process.pid) if here and _network(process.pid) == here else None
                if inodes is None:
                    continue
                total = self._moved.get(identity(process), 0)
                for inode in inodes & sockets.keys() - seen.keys():
                    one = sockets[inode]
                    seen[inode] = one.moved_bytes
                    if store not in (one.local_port, one.remote_port):
                        before = self._seen.get(inode, 0)
                        # If it is less than before, a new connection has got the number of a closed one.
                        total += one.moved_bytes - (before if before <= one.moved_bytes else 0)
                found[process.pid] = moved[identity(process)] = total
        self._moved, self._seen = moved, seen
        return found


def _network(pid: int) -> str:
    """Return the network namespace of a process, empty if it may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _inodes(pid: int) -> set[int] | None:
    """Return the sockets that a process holds; None if they may not be read, or it has too many descriptors."""
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        return None
    links = list(islice(procfs.open_links(pid), _MAX_DESCRIPTORS + 1))
    if len(links) > _MAX_DESCRIPTORS:
        return None
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}
