"""Is this the only supervisor of its job? Two runs at once share nodes and the job's Comment: then none acts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

_LATE = 8
"""With more supervisors than this behind the first one, some count as none."""
_PEER = struct.Struct("3i")
"""The kernel's description of a socket's owner: pid, uid, gid."""
_LISTENS_S = 0.5


class SupervisorLock:
    """Holds a name of the job on its batch node; supervisors that came later hold further names.

    The names are abstract sockets: the kernel drops them with our process, however that ends, so a cancelled job leaves
    nothing in /tmp. A launcher takes the name before it starts srun, and hands it to its supervisor (`handed_over`).
    """

    def __init__(self, cluster: str, job: str, clock: SystemClock = CLOCK) -> None:
        self._clock = clock
        self._name = f"\0srobust-{os.getuid()}-{cluster}-{job}"
        self._held: socket.socket | None = None
        self._place = 0

    def claim(self) -> bool:
        """Take the first name; False where another supervisor of the job holds it."""
        if self._held is not None:
            return self._place == 0  # our launcher has taken it for us
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
    def fd(self) -> int:
        """The descriptor that holds the name, for a child that is to hold it too; -1 where none does."""
        return self._held.fileno() if self._held is not None else -1

    def take_over(self, fd: int) -> None:
        """Hold the name that our launcher has claimed, by the descriptor that we have inherited; -1 for none.

        A descriptor of another name is closed: `claim` then takes a name.
        """
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            held = socket.socket(fileno=fd)
            names = [self._at(place).encode() for place in range(_LATE + 1)]
            if held.getsockname() in names:
                self._held, self._place = held, names.index(held.getsockname())
                held.set_inheritable(False)
            else:
                held.close()

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
