"""Opens and reads a plain file at a name where others may put a link or a pipe: it follows none, and never waits.

Standard library only, Python 3.8: agents read files so.
"""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: str | os.PathLike[str], inside: int | None = None) -> int:
    """Return a descriptor of the file. The checks look at the open file, so that it cannot be exchanged in between.

    Args:
        path: The file. Links on the way to its folder are followed.
        inside: Descriptor of the folder that `path` is relative to; None for the working folder.

    Raises:
        OSError: The file cannot be opened, is a link, or is not a plain file.
    """
    try:
        fd = os.open(path, _FLAGS, dir_fd=inside)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", os.fspath(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
    return fd


def read(path: str | os.PathLike[str], max_bytes: int, inside: int | None = None) -> bytes:
    """Return the file's first bytes.

    Raises:
        OSError: Raised as by `open_plain`, or the file cannot be read.
    """
    with open(open_plain(path, inside), "rb") as stream:
        return stream.read(max_bytes)
