"""What must not change while a fresh verdict holds, each asked with a call or two.

As in `quick`, which runs these: no import but of what the interpreter has loaded anyway.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # without `typing`, which takes longer to load than all that stands here
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_NEW_LOG_BYTES = 1 << 20
_ANSWER_S = 1.0


class Stale(Exception):  # noqa: N818 (no error: the verdict does not hold, and its words say why)
    """The fresh verdict does not hold."""


def _log_is_quiet(_: str, path: str, file_name: str, position: str, *needles: str) -> None:
    """No new record of the kernel log has one of these words.

    Args:
        path: The device or a plain file.
        file_name: `device:inode` of the plain file, empty for the device.
        position: Bytes of the file, or the last record's number, that were looked at already.
        needles: Words, as they stand in the log.
    """
    words = [needle.encode() for needle in needles]
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = _new_bytes(fd, path, file_name, int(position)) if file_name else _new_records(fd, int(position))
    finally:
        os.close(fd)
    if any(word in data for word in words):
        raise Stale(f"{path} has new lines to look at")


def _new_bytes(fd: int, path: str, file_name: str, position: int) -> bytes:
    info = os.fstat(fd)
    new = info.st_size - position
    if f"{info.st_dev}:{info.st_ino}" != file_name or not 0 <= new <= _MAX_NEW_LOG_BYTES:
        raise Stale(f"{path} is another file, or much was written")
    return os.pread(fd, new, position)


def _new_records(fd: int, last: int) -> bytes:
    found: list[bytes] = []
    try:
        # The first record that is left decides: one that is newer than what follows `last` means that some were lost.
        while record := os.read(fd, 8192):
            number = int(record.split(b",", 2)[1])
            if number > last:
                if not found and number != last + 1:
                    raise Stale("the kernel log ran over")
                found.append(record)
    except BlockingIOError:
        pass
    return b"".join(found)


def _entries(root: str, path: str, count: str) -> None:
    """A folder has as many entries as then; one that is missing has none."""
    try:
        now = len(os.listdir(root + path))
    except FileNotFoundError:
        now = 0
    if now != int(count):
        raise Stale(f"{path} has {now} entries, {count} before")


def _no_more_gpus(_: str, count: str) -> None:
    """This job was given no more GPUs than were there; ids of another shape (MIG, shares) say nothing."""
    given = os.environ.get("SLURM_JOB_GPUS", "").split(",")
    if given != [""] and len(given) > int(count):
        raise Stale(f"the job was given {len(given)} GPUs, {count} were there")


def ask(root: str, asked: list[tuple[Callable[..., bool], list[str]]]) -> None:
    """What could block in the kernel (a mount, a card's firmware), asked in a process that is not waited for long."""
    if not asked:
        return
    pid = os.fork()
    if pid == 0:
        left = list(asked)
        try:
            # slurmd reads our output to its end: a process that hangs in the kernel must not keep it open.
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            while left and left[0][0](root, *left[0][1]):
                del left[0]
        finally:
            # How many are left says which was not as it was.
            os._exit(min(len(left), 255))
    end_s, pause_s = time.monotonic() + _ANSWER_S, 0.0001
    while time.monotonic() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                first = -min(max(os.waitstatus_to_exitcode(status), 1), len(asked))
                raise Stale(f"{' '.join(asked[first][1])[:80]}: has changed")
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.01)
    # It sleeps in the kernel: nobody may wait for it.
    os.kill(pid, 9)
    raise Stale("a mount or a card does not answer")


def _answers(root: str, *places: str) -> bool:
    """Each mount answers at once, is the same, can be written and has room.

    Args:
        root: Where these paths are looked for.
        places: `PATH|device number|MiB that must be free|w where it must be writable`.
    """
    return all(_usable(*(root + place).rsplit("|", 3)) for place in places)


def _usable(path: str, device: str, min_free_mb: str, writable: str) -> bool:
    info = os.statvfs(path)
    if os.stat(path).st_dev != int(device) or (writable and info.f_flag & os.ST_RDONLY):
        return False
    return info.f_bavail * info.f_frsize >> 20 >= int(min_free_mb)


def _says(root: str, path: str, word: str) -> bool:
    """A small file still has this word."""
    return word in _words_of(root + path)


def _at_most(root: str, path: str, most: str) -> bool:
    """The number in a small file, 0 where there is none, has not grown."""
    return int((_words_of(root + path) or ["0"])[0]) <= int(most)


def _words_of(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("utf-8", "replace").split()
    except OSError:
        return []


def _shut(_: str, path: str) -> None:
    """A log that could not be read still cannot."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return
    raise Stale(f"{path} can be read now")


WATCHES: dict[str, Callable[..., None]] = {
    "log": _log_is_quiet,
    "shut": _shut,
    "entries": _entries,
    "gpus": _no_more_gpus,
}
ASKED: dict[str, Callable[..., bool]] = {"answers": _answers, "says": _says, "most": _at_most}
"""What a fresh verdict can have watched, by its first word; the second kind is asked in a process of its own."""
