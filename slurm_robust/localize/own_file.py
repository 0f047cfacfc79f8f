"""Reads a file of a folder that somebody else may write to: it never waits, and follows no link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_own(path: Path, max_bytes: int) -> bytes:
    """The file's first bytes. It is looked at after it was opened: nobody can exchange it in between.

    Raises:
        OSError: it cannot be read, is a link, or is no plain file (a pipe would wait for ever).
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed") from None
        raise
    with open(opened, "rb") as stream:  # noqa: PTH123 (a descriptor)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return stream.read(max_bytes)
