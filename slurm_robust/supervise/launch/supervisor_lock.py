"""Tells whether this is the only supervisor of its job. Two share nodes and the job's Comment, so then none acts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.wire import own_folder

_LATE = 8
"""If more supervisors than this come behind the first one, some of them are not counted."""
_LOOKS_S = 0.1
"""How long a lock is tried: a process that only looks whether a name is held holds it for a moment, too."""


class SupervisorLock:
    """Holds a name of the job on its batch node; supervisors that came later hold further names.

    The names are locked files in a folder of the user's own, so other users cannot hold one. The kernel unlocks them
    when our process ends in any way. The next supervisor removes files that a killed one has left. A launcher takes the
    name before it starts srun, and hands the name to its supervisor (`take_over`).
    """

    def __init__(self, cluster: str, job: str, clock: SystemClock = CLOCK) -> None:
        self._clock = clock
        self._name = re.sub(r"[^\w.+-]", "_", f"{cluster}-{job}")
        self._folder = -1
        self._held = -1
        self._place = 0

    def _inside(self) -> int:
        """Return the folder with the names: it is common to all processes of this user on this node."""
        if self._folder < 0:
            self._folder, _ = own_folder.first_own(f"/tmp/srobust-{os.geteuid()}", make=0o700)  # noqa: S108 (checked)
        return self._folder

    def claim(self) -> bool:
        """Take the first name; return False if another supervisor of the job holds it."""
        if self._held >= 0:
            return self._place == 0  # our launcher has taken it for us
        try:
            self._tidy_up()
            for place in range(_LATE + 1):
                held = self._locked(place)
                if held >= 0:
                    self._held, self._place = held, place
                    return place == 0
        except OSError:
            return True  # no name can be held: the usual case, a single run, must still work
        return False

    def _locked(self, place: int) -> int:
        """Return a descriptor that holds a name; -1 if somebody else holds it. OSError if no lock file can be made."""
        deadline = self._clock.monotonic_s() + _LOOKS_S
        while True:
            fd = own_folder.open_file(self._at(place), os.O_RDWR | os.O_CREAT, inside=self._inside(), mode=0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at(fd, self._at(place)):
                    return fd
                os.close(fd)  # another process removed the file between the two steps
            except BlockingIOError:
                os.close(fd)
                if self._clock.monotonic_s() >= deadline:
                    return -1
                self._clock.pause(0.01)
            except OSError:
                os.close(fd)
                raise

    def _is_at(self, fd: int, name: str) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=self._inside(), follow_symlinks=False))
        return False

    def _tidy_up(self) -> None:
        """Remove the files that no process holds."""
        for name in os.listdir(self._inside()):  # noqa: PTH208 (a descriptor)
            with contextlib.suppress(OSError):
                fd = own_folder.open_file(name, os.O_RDWR, inside=self._inside())
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._is_at(fd, name):  # else somebody else has removed it, and the name may be held anew
                        os.unlink(name, dir_fd=self._inside())
                finally:
                    os.close(fd)

    @property
    def fd(self) -> int:
        """Return the descriptor that holds the name, for a child that is to hold it too; -1 if the name is not held."""
        return self._held

    def take_over(self, fd: int) -> None:
        """Hold the name that our launcher has claimed, by the descriptor that we have inherited; -1 for none.

        A descriptor of another name is closed: `claim` then takes a name.
        """
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            for place in range(_LATE + 1):
                if self._is_at(fd, self._at(place)):
                    self._held, self._place = fd, place
                    os.set_inheritable(fd, False)
                    return
        with contextlib.suppress(OSError):
            os.close(fd)

    @property
    def taken(self) -> bool:
        """Whether a supervisor holds the first name; takes nothing."""
        return self._taken(0)

    @property
    def shared(self) -> bool:
        """Whether another supervisor of the job runs, which came later."""
        return any(self._taken(place) for place in range(1, _LATE + 1) if place != self._place)

    @property
    def accompanied(self) -> bool:
        """Whether another supervisor of the job runs, earlier or later."""
        return self.shared or (self._place > 0 and self.taken)

    def release(self) -> None:
        """Give the name up."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _at(self, place: int) -> str:
        return f"{self._name}.{place}"

    def _taken(self, place: int) -> bool:
        """Return whether a supervisor of this user holds the name."""
        try:
            fd = own_folder.open_file(self._at(place), os.O_RDONLY, inside=self._inside())
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(fd)
        return False
