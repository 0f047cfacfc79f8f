"""Reads /proc of one process. Every reader returns None (or an empty value) for a process that has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_ENVIRON_MAX_BYTES = 1 << 20
_MOUNTINFO_MAX_CHARS = 1 << 22


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat that matter here. `start_ticks` tells a reused pid from the old process."""

    command: str
    state: str
    ppid: int
    cpu_s: float
    start_ticks: int
    threads: int

    @property
    def alive(self) -> bool:
        """Whether the process is neither a zombie nor dead."""
        return self.state not in ("Z", "X")


def pids() -> list[int]:
    """Return all processes of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str, size: int = 4096) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, size)
    except OSError:
        return None
    finally:
        os.close(fd)


def stat(pid: int) -> ProcessStat | None:
    """Return the command, state, parent, processor time and start of a process."""
    raw = _read(f"/proc/{pid}/stat")
    if not raw:
        return None
    # The command may hold spaces and brackets: it ends at the last one.
    close = raw.rfind(b")")
    fields = raw[close + 2 :].split()
    if len(fields) < 20:
        return None
    command = raw[raw.find(b"(") + 1 : close].decode("utf-8", "replace")
    cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
    return ProcessStat(command, fields[0].decode(), int(fields[1]), cpu_s, int(fields[19]), int(fields[17]))


def lives(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    found = stat(pid)
    return found is not None and found.alive


def owner(pid: int) -> int:
    """Return the real user id of a process; -1 if the process has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def environ(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            raw = f.read(_ENVIRON_MAX_BYTES)
    except OSError:
        return {}
    out = {}
    for item in raw.split(b"\0"):
        key, sep, value = item.partition(b"=")
        if sep:
            out[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return out


def io_bytes(pid: int) -> int:
    """Return the bytes read and written so far by system calls; -1 if they may not be read."""
    raw = _read(f"/proc/{pid}/io")
    if not raw:
        return -1
    total = 0
    for line in raw.split(b"\n"):
        key, _, value = line.partition(b":")
        if key in (b"rchar", b"wchar"):
            total += int(value)
    return total


def memory_map_totals(pid: int) -> list[bytes]:
    """Return the lines of the process's /proc/PID/smaps_rollup; empty if they may not be read."""
    return (_read(f"/proc/{pid}/smaps_rollup") or b"").splitlines()


def wchan(pid: int) -> str:
    """Return the kernel function in which the process waits; empty if unknown."""
    raw = _read(f"/proc/{pid}/wchan", 128)
    text = raw.decode("utf-8", "replace").strip("\0\n") if raw else ""
    return "" if text == "0" else text


def cgroup(pid: int) -> str:
    """Return the lines of the process's /proc/PID/cgroup; empty if they may not be read."""
    return (_read(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace")


def namespace_pid(pid: int) -> int:
    """Return the process's id as the process sees it (containers have their own ids), or `pid` if unknown."""
    raw = _read(f"/proc/{pid}/status")
    for line in (raw or b"").split(b"\n"):
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def tracer(pid: int) -> int:
    """Return the process that traces it (a debugger); 0 for none, or if it may not be read."""
    for line in (_read(f"/proc/{pid}/status") or b"").split(b"\n"):
        if line.startswith(b"TracerPid:"):
            return int(line.split()[-1])
    return 0


def command_line(pid: int) -> str:
    """Return the command as typed, shortened."""
    raw = _read(f"/proc/{pid}/cmdline", 512)
    return " ".join((raw or b"").decode("utf-8", "replace").split("\0")).strip()[:200]


def mountinfo() -> str:
    """Return the mount table, as this process sees it; empty if it may not be read."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            return f.read(_MOUNTINFO_MAX_CHARS)
    except OSError:
        return ""


def command_word(pid: int) -> str:
    """Return the first word of the process's command line; empty if it may not be read."""
    return os.fsdecode((_read(f"/proc/{pid}/cmdline") or b"").partition(b"\0")[0])


def open_links(pid: int) -> Iterator[str]:
    """Yield the targets of the process's open descriptors: paths, `socket:[inode]` and the like."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue
