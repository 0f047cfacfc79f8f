"""Runs a part of a test as another user of this machine."""

from __future__ import annotations

import errno
import os
import pickle
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VICTIM, ATTACKER, GROUP = 54321, 54322, 54320
"""Numbers that no account of a usual machine has; both users are in the group."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")


def as_user(uid: int, function: Callable[[], Any], home: Path | None = None) -> Any:
    """What `function` returns when this user calls it, in a process of its own.

    Raises:
        AssertionError: it has raised something, which is in the message.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(uid)
            os.umask(0o002)
            os.environ["HOME"] = str(home or "/nonexistent")
            answer = (function(), "")
        except BaseException:  # noqa: BLE001 (told to the test)
            answer = (None, traceback.format_exc())
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:  # noqa: PTH123 (a descriptor)
        answer, error = pickle.loads(stream.read())
    os.waitpid(child, 0)
    assert not error, error
    return answer


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """This process does what it does as this user, and is itself again afterwards."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(GROUP)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def shared_folder(path: Path, mode: int) -> Path:
    """A folder of root's in which both users may make entries: sticky as /tmp, or a project's with a common group."""
    path.mkdir()
    os.chown(path, 0, GROUP)
    path.chmod(mode)
    for above in path.parents:
        if above.stat().st_mode & 0o555 != 0o555:
            above.chmod(above.stat().st_mode | 0o555)
    return path


def home_of(uid: int, path: Path) -> Path:
    """A home folder for this user."""
    path.mkdir()
    os.chown(path, uid, GROUP)
    path.chmod(0o700)
    return path


def access_list(path: Path, uid: int) -> None:
    """Let one more user write it, as `setfacl -m u:UID:rwx` does; the test is skipped where there are no such lists."""
    entry = struct.Struct("<HHI").pack
    none = 0xFFFFFFFF
    entries = [(1, 7, none), (2, 7, uid), (4, 5, none), (16, 7, none), (32, 5, none)]
    try:
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(entry(*e) for e in entries))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system has no access lists")
        raise
