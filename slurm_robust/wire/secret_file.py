"""Reads a secret (a token, a key, a URL that contains one) from a file that no other user may read."""

from __future__ import annotations

import os
import stat


class SecretFileError(Exception):
    """The file cannot be used; the text says which file, why, and what to type."""


def read(path: str | os.PathLike[str], max_bytes: int, *, others: int = 0o077, own: bool = False) -> str:
    """Return the one word that the file holds. A link is followed: secrets are often mounted as one.

    Args:
        path: The file.
        max_bytes: The size beyond which a file is refused.
        others: Permission bits that the file must not have.
        own: Whether the file has to belong to the caller.

    Raises:
        SecretFileError: The file cannot be read, is not plain, is another user's or open to others, or holds anything
            else than one word.
    """
    name = os.fspath(path)
    try:
        # A pipe without a writer would block.
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            state = os.fstat(fd)
            if not stat.S_ISREG(state.st_mode):
                raise SecretFileError(f"{name} is not a plain file")
            if own and state.st_uid != os.geteuid():
                raise SecretFileError(f"{name} belongs to another user: use a file of your own")
            if state.st_mode & others:
                raise SecretFileError(f"others may read or write {name}: chmod 600 {name}")
            data = os.read(fd, max_bytes + 1)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SecretFileError(f"{name} cannot be read ({why}): ls -l {name}") from None
    text = data.decode("utf-8", "replace").strip()
    if not text or len(data) > max_bytes or not text.isprintable() or " " in text:
        raise SecretFileError(f"{name} does not hold one word on one line: the secret alone")
    return text
