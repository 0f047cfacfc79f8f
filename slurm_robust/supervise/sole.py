"""Is this the only supervisor of its job? Two runs side by side share nodes and the job's Comment: then none acts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


class Sole:
    """A lock of the job on its batch node, and a marker of those that came second.

    Args:
        cluster: Name of the cluster; several may share a machine.
        job: The job's name.
    """

    def __init__(self, cluster: str, job: str) -> None:
        stem = f"srobust-{os.getuid()}-{cluster}-{job}".replace("/", "_")
        self._lock_path = Path(tempfile.gettempdir()) / f"{stem}.lock"
        self._marker = self._lock_path.with_suffix(".shared")
        self._fd = -1

    def claim(self) -> bool:
        """Take the lock; False where another supervisor of the job lives. The kernel drops it with our process."""
        try:
            self._fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(OSError):
                self._marker.touch()
            return False
        except OSError:
            return True  # nowhere to keep a lock: the usual case, one run, must not suffer
        with contextlib.suppress(OSError):
            self._marker.unlink()
        return True

    @property
    def shared(self) -> bool:
        """Whether another one came while we were there."""
        return self._marker.exists()

    def release(self) -> None:
        """Leave no file behind."""
        for path in (self._lock_path, self._marker):
            with contextlib.suppress(OSError):
                path.unlink()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
