"""Holds a name on each node of a test, so that two tests notice each other; it leaves no file behind.

It is the name of an abstract socket, and any user may hold such a name. Holders that do not listen, and holders of
other users, are ignored.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

_PLACES = 8
"""How many names are tried; if strangers hold all of them, the test runs without a name."""
_PEER = struct.Struct("3i")
_BACKLOG = 64
_LISTENS_S = 0.05
"""From the bind to the listen of another test."""


class NodeName:
    """The name of one node, held while this object lives."""

    def __init__(self, cluster: str, node: str) -> None:
        self._names = [f"\0srobust-test.{cluster}.{node}.{place}" for place in range(_PLACES)]
        self._held: socket.socket | None = None

    def take(self) -> bool:
        """Take a name; return False if another test of this user, or of root, holds it."""
        for name in self._names:
            held = socket.socket(socket.AF_UNIX)
            try:
                held.bind(name)
                held.listen(_BACKLOG)
            except OSError as error:
                held.close()
                if error.errno == errno.EADDRINUSE and _of_a_test(name):
                    return False
                continue
            self._held = held
            return True
        return True

    def release(self) -> None:
        """Release the name."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _of_a_test(name: str) -> bool:
    """Return whether this user, or root, listens at the name."""
    for pause_s in (_LISTENS_S, 0.0):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)  # a stranger may let its queue be full
            try:
                asking.connect(name)
                peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                return _PEER.unpack(peer)[1] in (0, os.getuid())
            except OSError:
                time.sleep(pause_s)
    return False
