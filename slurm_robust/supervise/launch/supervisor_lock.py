"""Is this the only supervisor of its job? Two runs at once share nodes and the job's Comment: then none acts."""

from __future__ import annotations

import errno
import os
import socket
import struct

from slurm_robust.supervise.clock import Clock

_LATE = 8
"""With more supervisors than this behind the first one, some count as none."""
_PEER = struct.Struct("3i")
"""The kernel's description of a socket's owner: pid, uid, gid."""
_LISTENS_S = 0.5


class SupervisorLock:
    """Holds a name of the job on its batch node; supervisors that came later hold further names.

    The names are abstract sockets: the kernel drops them with our process, however that ends, so a cancelled job leaves
    nothing in /tmp.
    """

    def __init__(self, cluster: str, job: str, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._name = f"\0srobust-{os.getuid()}-{cluster}-{job}"
        self._held: socket.socket | None = None
        self._place = 0

    def claim(self) -> bool:
        """Take the first name; False where another supervisor of the job holds it."""
        for place in range(_LATE + 1):
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                held.bind(self._at(place))
                held.listen()
            except OSError as error:
                held.close()
                if error.errno != errno.EADDRINUSE or not self._taken(place, patience_s=_LISTENS_S):
                    return True  # no name can be held: the usual case, a single run, must still work
                continue
            self._held, self._place = held, place
            return place == 0
        return False

    @property
    def taken(self) -> bool:
        """Whether a supervisor holds the first name; takes nothing."""
        return self._taken(0)

    @property
    def shared(self) -> bool:
        """Whether another supervisor of the job runs, which came later."""
        return any(self._taken(place) for place in range(1, _LATE + 1) if place != self._place)

    def release(self) -> None:
        """Give the name up."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _at(self, place: int) -> str:
        return f"{self._name}.{place}"

    def _taken(self, place: int, patience_s: float = 0.0) -> bool:
        """Whether a supervisor of this user holds the name. Anybody may take a name; another user's does not count.

        An owner that has just taken the name and does not listen yet gets `patience_s`.
        """
        deadline = self._clock.monotonic_s() + patience_s
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.setblocking(False)
                try:
                    asking.connect(self._at(place))
                except BlockingIOError:
                    return True  # its queue of connections is full
                except OSError:
                    if self._clock.monotonic_s() >= deadline:
                        return False
                    self._clock.pause(0.01)
                    continue
                peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                return bool(_PEER.unpack(peer)[1] == os.getuid())
