"""Is this the only supervisor of its job? Two runs side by side share nodes and the job's Comment: then none acts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


class Sole:
    """A lock of the job on its batch node, and a second one that is held by all who came too late for the first.

    Args:
        cluster: Name of the cluster; several may share a machine.
        job: The job's name.
    """

    def __init__(self, cluster: str, job: str) -> None:
        stem = f"srobust-{os.getuid()}-{cluster}-{job}".replace("/", "_")
        self._lock_path = Path(tempfile.gettempdir()) / f"{stem}.lock"
        self._others_path = self._lock_path.with_suffix(".others")
        self._fd = -1
        self._second = False

    def claim(self) -> bool:
        """Take the lock; False where another supervisor of the job lives. The kernel drops it with our process."""
        try:
            self._fd = _open(self._lock_path)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._second = True
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._fd = _open(self._others_path)
                fcntl.flock(self._fd, fcntl.LOCK_SH)  # the other one holds it for no longer than a look takes
            return False
        except OSError:
            return True  # nowhere to keep a lock: the usual case, one run, must not suffer
        return True

    @property
    def shared(self) -> bool:
        """Whether another one lives beside us, who came later."""
        if not self._others_path.exists():
            return False
        try:
            fd = _open(self._others_path)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def release(self) -> None:
        """Leave no file behind, but what another one holds."""
        if not self._second:
            for path in (self._lock_path,) if self.shared else (self._lock_path, self._others_path):
                with contextlib.suppress(OSError):
                    path.unlink()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
