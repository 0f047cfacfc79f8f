"""Writes a small file whole or not at all: after a crash, and for readers, the old or the new content is complete.

This loads nothing but os: every launch waits for it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    inside: int | None = None,
    mode: int | None = None,
    durable: bool = False,
    check: Callable[[str], None] | None = None,
) -> os.stat_result:
    """Write `data` to a new file beside `path`, and rename the new file to `path`.

    A link or pipe at either name is not used.

    Args:
        path: The file.
        data: All of its content.
        inside: Descriptor of the folder that `path` is relative to; None for the working folder.
        mode: The permissions, independent of the umask; None for those that the umask leaves.
        durable: Flush it to the disk, so that it survives a power cut.
        check: Called with the path of the new file before the rename; refuses the file by raising.

    Returns:
        The kernel's stat of the new file.

    Raises:
        OSError: The file cannot be written. The old file is intact, and nothing is left of the new one.
    """
    folder, name = os.path.split(os.fspath(path))
    temporary = os.path.join(folder, f".{name[:200]}.{os.getpid()}.tmp")
    _remove(temporary, inside)  # of a writer that was killed
    asked = 0o666 if mode is None else 0o600
    try:
        try:
            fd = os.open(temporary, _OPEN, asked, dir_fd=inside)
        except FileExistsError:  # another user's, in a folder such as /tmp: nobody can guess the next name
            temporary = os.path.join(folder, f".{name[:180]}.{os.urandom(8).hex()}.tmp")
            fd = os.open(temporary, _OPEN, asked, dir_fd=inside)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if mode is not None:
                os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
            written = os.fstat(fd)
        finally:
            os.close(fd)
        if check is not None:
            check(temporary)
        os.replace(temporary, path, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        # A partial file would fill the rest of the disk.
        _remove(temporary, inside)
        raise
    return written


def _remove(name: str, inside: int | None) -> None:
    try:
        os.unlink(name, dir_fd=inside)
    except OSError:
        pass
