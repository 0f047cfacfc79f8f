"""Runs the prolog's fast path: was this node found fit a moment ago, and has nothing changed since?

A run of the checks that found the node fit leaves a *cached verdict*: until when it is valid, for which boot, version
and configuration, and which conditions must still hold (new lines of the kernel log, the number of GPUs, mounts). As
long as it is valid, no check is loaded. Anything else, and any error here, leads to a full run of the stage's checks.

Every import counts here: only what the interpreter has loaded anyway, and one module of our own.
"""

from __future__ import annotations

import os
import sys
import time

from slurm_robust.nodecheck import state_folder

TYPE_CHECKING = False  # without `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_NEW_LOG_BYTES = 1 << 20
_ANSWER_S = 1.0


class StaleVerdict(Exception):  # noqa: N818 (not an error: the verdict is no longer valid, and the message says why)
    """The cached verdict is not valid."""


def cached_verdict(config: str, node: str) -> tuple[str, dict[str, str]]:
    """Return the cached verdict, if it is still valid.

    Returns:
        A summary for the log, and the verdict's lines by their first word; `again` names the checks that must run all
        the same.

    Raises:
        StaleVerdict: it is not valid, and why.
        Exception: any other error means the same.
    """
    if not node:
        raise StaleVerdict("SLURMD_NODENAME names no node")
    lines = state_folder.read_own(state_folder.cache_dir_of(config, node), state_folder.VERDICT).splitlines()
    if not lines or lines[0] != state_folder.FORMAT or lines[-1] != "end":
        raise StaleVerdict("written by another version")
    verdict = dict(line.split("\t", 1) for line in lines[1:-1] if not line.startswith("watch\t"))
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    made_s, until_s = float(verdict["made"]), float(verdict["until"])
    if verdict["node"] != node or verdict["boot"] != state_folder.boot_id(verdict["root"]):
        raise StaleVerdict("from another boot or node")
    if not made_s <= now_s < until_s:
        raise StaleVerdict(f"{now_s - made_s:.0f} s old")
    if verdict["config"] != f"{config}\t{state_folder.identity(config)}":
        raise StaleVerdict("made with another configuration")
    may_block = []
    for line in lines[1:-1]:
        if line.startswith("watch\t"):
            _, kind, *arguments = line.split("\t")
            if kind in MAY_BLOCK:
                may_block.append((MAY_BLOCK[kind], arguments))
            else:
                CONDITIONS[kind](verdict["root"].rstrip("/"), *arguments)
    ask_in_child(verdict["root"].rstrip("/"), may_block)
    return f"{verdict['checks']} checks found it fit {now_s - made_s:.0f} s ago, no change since", verdict


def node_of(name: str) -> str:
    """Return `SLURMD_NODENAME`, if it looks like a node's name; else empty, and the full run uses the host's name."""
    return name if name and name.isascii() and name.replace("-", "").replace(".", "").replace("_", "").isalnum() else ""


def main(stage: str, config: str = "", verbose: str = "") -> int:
    """Run one stage: the entry point of the scripts.

    Args:
        stage: `prolog`, `epilog` or `periodic`.
        config: The configuration's path; empty for the default.
        verbose: Not empty: log one line also where all is well.

    Returns:
        The exit code: 0 the job may start, 20 the script must exit 1, 2 wrong configuration.
    """
    config = config or state_folder.DEFAULT_CONFIG
    again, why = "", ""
    if stage == "prolog":
        try:
            summary, verdict = cached_verdict(config, node_of(os.environ.get("SLURMD_NODENAME", "")))
            again = verdict["again"]
        except FileNotFoundError:
            why = "there is none"
        except Exception as error:  # noqa: BLE001 (the full run handles every error)
            why = str(error) or type(error).__name__
        else:
            if not again:
                if verbose:
                    print(f"srobust-prolog: cached verdict: {summary}", file=sys.stderr)
                return 0
    import gc  # noqa: PLC0415 (the fast path does not need it)

    # A process that lives for a tenth of a second needs no garbage collection.
    gc.disable()
    try:
        from slurm_robust.nodecheck.stages import stage_run  # noqa: PLC0415 (the fast path does not load it)

        return stage_run.main(stage, config, verbose=bool(verbose), why=why, again=again)
    finally:
        gc.enable()


def _log_is_quiet(_: str, path: str, file_name: str, position: str, *needles: str) -> None:
    """Require that no new record of the kernel log contains one of these words.

    Args:
        path: The device or a plain file.
        file_name: `device:inode` of the plain file, empty for the device.
        position: The end of the last reading: bytes of the file, or the last record's number.
        needles: Words, as they appear in the log.
    """
    words = [needle.encode() for needle in needles]
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = _new_bytes(fd, path, file_name, int(position)) if file_name else _new_records(fd, int(position))
    finally:
        os.close(fd)
    if any(word in data for word in words):
        raise StaleVerdict(f"{path} has new lines that matter")


def _new_bytes(fd: int, path: str, file_name: str, position: int) -> bytes:
    info = os.fstat(fd)
    new = info.st_size - position
    if f"{info.st_dev}:{info.st_ino}" != file_name or not 0 <= new <= _MAX_NEW_LOG_BYTES:
        raise StaleVerdict(f"{path} was replaced, or grew too much to search")
    return os.pread(fd, new, position)


def _new_records(fd: int, last: int) -> bytes:
    found: list[bytes] = []
    try:
        # If the oldest record that is left is not the one after `last`, records between them were lost.
        while record := os.read(fd, 8192):
            number = int(record.split(b",", 2)[1])
            if number > last:
                if not found and number != last + 1:
                    raise StaleVerdict("the kernel log has overflowed")
                found.append(record)
    except BlockingIOError:
        pass
    return b"".join(found)


def _entries(root: str, path: str, count: str) -> None:
    """Require that a folder has as many entries as before; a missing folder has none."""
    try:
        now = len(os.listdir(root + path))
    except FileNotFoundError:
        now = 0
    if now != int(count):
        raise StaleVerdict(f"{path} has {now} entries, {count} before")


def _no_more_gpus(_: str, count: str) -> None:
    """Require that this job got no more GPUs than the node had; ids of another shape (MIG, shares) are ignored."""
    given = os.environ.get("SLURM_JOB_GPUS", "").split(",")
    if given != [""] and len(given) > int(count):
        raise StaleVerdict(f"the job got {len(given)} GPUs, the node had {count}")


def ask_in_child(root: str, asked: list[tuple[Callable[..., bool], list[str]]]) -> None:
    """Evaluate conditions that may block in the kernel (a mount, a card's firmware) in a process, for a second at most.

    Raises:
        StaleVerdict: one does not hold, or did not answer.
    """
    if not asked:
        return
    pid = os.fork()
    if pid == 0:
        left = list(asked)
        try:
            # slurmd reads our output until it is closed: a process that hangs in the kernel must not keep it open.
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            while left and left[0][0](root, *left[0][1]):
                del left[0]
        finally:
            # The number of conditions that are left tells which one does not hold.
            os._exit(min(len(left), 255))
    end_s, pause_s = time.monotonic() + _ANSWER_S, 0.0001
    while time.monotonic() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                first = -min(max(os.waitstatus_to_exitcode(status), 1), len(asked))
                raise StaleVerdict(f"{' '.join(asked[first][1])[:80]}: has changed")
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.01)
    # It may sleep in the kernel, where SIGKILL does not end it: do not wait for it.
    os.kill(pid, 9)
    raise StaleVerdict("a mount or a device does not answer")


def _answers(root: str, *places: str) -> bool:
    """Tell whether each mount answers, is the same as before, can be written and has room.

    Args:
        root: The folder that stands for `/`.
        places: `PATH|device number|MiB that must be free|w if it must be writable`.
    """
    return all(_usable(*(root + place).rsplit("|", 3)) for place in places)


def _usable(path: str, device: str, min_free_mb: str, writable: str) -> bool:
    info = os.statvfs(path)
    if os.stat(path).st_dev != int(device) or (writable and info.f_flag & os.ST_RDONLY):
        return False
    return info.f_bavail * info.f_frsize >> 20 >= int(min_free_mb)


def _says(root: str, path: str, word: str) -> bool:
    """Return a small file still contains this word."""
    return word in _words_of(root + path)


def _at_most(root: str, path: str, most: str) -> bool:
    """Return the number in a small file (0 without one) has not grown."""
    return int((_words_of(root + path) or ["0"])[0]) <= int(most)


def _words_of(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("utf-8", "replace").split()
    except OSError:
        return []


def _shut(_: str, path: str) -> None:
    """Require that a log that could not be read still cannot be read."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return
    raise StaleVerdict(f"{path} can be read now")


CONDITIONS: dict[str, Callable[..., None]] = {
    "log": _log_is_quiet,
    "shut": _shut,
    "entries": _entries,
    "gpus": _no_more_gpus,
}
MAY_BLOCK: dict[str, Callable[..., bool]] = {"answers": _answers, "says": _says, "most": _at_most}
"""The conditions of a cached verdict, by the first word of a `watch`; those that may block run in a process."""
