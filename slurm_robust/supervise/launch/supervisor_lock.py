"""Is this the only supervisor of its job? Two runs side by side share nodes and the job's Comment: then none acts."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

_LATE = 8
"""So many supervisors that came too late are told from none at all."""
_PEER = struct.Struct("3i")
"""What the kernel tells of a socket's owner: pid, uid, gid."""
_LISTENS_S = 0.5


class Sole:
    """A name of the job on its batch node, and further ones for all who came too late for the first.

    The names are those of sockets without a file: the kernel drops them with our process, however that ends, so a job
    that is cancelled leaves nothing in /tmp.

    Args:
        cluster: Name of the cluster; several may share a machine.
        job: The job's name.
    """

    def __init__(self, cluster: str, job: str) -> None:
        self._name = f"\0srobust-{os.getuid()}-{cluster}-{job}"
        self._held: socket.socket | None = None
        self._place = 0

    def claim(self) -> bool:
        """Take the first name; False where another supervisor of the job has it."""
        for place in range(_LATE + 1):
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                held.bind(self._at(place))
                held.listen()
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE or not self._taken(place, patience_s=_LISTENS_S):
                    return True  # nowhere to keep a name: the usual case, one run, must not suffer
                continue
            self._held, self._place = held, place
            return place == 0
        return False

    @property
    def taken(self) -> bool:
        """Whether somebody has the first name; asks only."""
        return self._taken(0)

    @property
    def shared(self) -> bool:
        """Whether another one lives beside us, who came later."""
        return any(self._taken(place) for place in range(1, _LATE + 1) if place != self._place)

    def release(self) -> None:
        """Give the name up."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _at(self, place: int) -> str:
        return f"{self._name}.{place}"

    def _taken(self, place: int, patience_s: float = 0.0) -> bool:
        """Whether a supervisor of ours has this name. Anybody may take a name; another user's means nothing.

        Args:
            place: Which of the names.
            patience_s: For one that was taken a moment ago, by somebody who does not listen yet.
        """
        deadline = time.monotonic() + patience_s
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.setblocking(False)
                try:
                    asking.connect(self._at(place))
                except BlockingIOError:
                    return True  # so many have asked before that no more fit into its queue
                except OSError:
                    if time.monotonic() >= deadline:
                        return False
                    time.sleep(0.01)
                    continue
                peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                return bool(_PEER.unpack(peer)[1] == os.getuid())
