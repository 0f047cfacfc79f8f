"""Writes and reads the orders of `srobust update`: a file in the incident folder, read as untrusted."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from slurm_robust.policy.job.code_versions import When
from slurm_robust.wire import plain_file, whole_file

_FILE = "order.json"
_MAX_BYTES = 16 << 10
_PROTOCOL = 1
MAX_WITHIN_S = 30 * 86400.0


class OrderError(Exception):
    """An order is refused; the message says why."""


@dataclass(frozen=True)
class CodeOrder:
    """An order to put a version in force.

    Attributes:
        job: The job's address: an order for another job is refused.
        within_s: After so many seconds the version is put in force at the latest.
        by: The user who gives the order.
        back: The order takes the version in force back.
    """

    job: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    when: When
    within_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_WITHIN_S)]
    at_s: float
    by: Annotated[str, msgspec.Meta(max_length=64)]
    back: bool = False
    protocol: int = _PROTOCOL


def send(folder: Path, order: CodeOrder) -> None:
    """Leave an order for the supervisor; it replaces an order that the supervisor has not read yet.

    Raises:
        OSError: the folder cannot be written.
    """
    whole_file.write(folder / _FILE, msgspec.json.encode(order), mode=0o600)


def waiting(folder: Path) -> bool:
    """Return whether an order waits there for the supervisor."""
    return (folder / _FILE).exists()


def receive(folder: Path, uid: int, job: str) -> CodeOrder | None:
    """Return the order that waits in the folder, None if there is none; it is removed, even if it is refused.

    Raises:
        OrderError: the order is not by the job's user or root, others could have written it, or it cannot be read.
    """
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _read(place, uid, job)
    finally:
        os.close(place)


def _read(place: int, uid: int, job: str) -> CodeOrder | None:
    try:
        fd = plain_file.open_plain(_FILE, inside=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        _take_away(place)
        raise OrderError(f"it cannot be opened: {error.strerror}") from None
    try:
        _take_away(place)
        _check("its folder", os.fstat(place), uid)
        _check("it", os.fstat(fd), uid)
        content = os.read(fd, _MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > _MAX_BYTES:
        raise OrderError(f"it is larger than {_MAX_BYTES} bytes")
    try:
        order = msgspec.json.decode(content, type=CodeOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OrderError(f"it cannot be read: {error}") from None
    if order.protocol != _PROTOCOL:
        raise OrderError(f"it is of protocol {order.protocol}, this srobust run knows {_PROTOCOL}")
    if order.job != job:
        raise OrderError(f"it is for job {order.job!r:.40}")
    return order


def _check(what: str, info: os.stat_result, uid: int) -> None:
    """Check that only the job's user or root could have written this."""
    if info.st_uid not in (uid, 0):
        raise OrderError(f"{what} belongs to uid {info.st_uid}, not to the job's user (uid {uid}) or root")
    if info.st_mode & 0o022:
        raise OrderError(f"{what} can be written by others (mode {stat.S_IMODE(info.st_mode):04o})")


def _take_away(place: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_FILE, dir_fd=place)
