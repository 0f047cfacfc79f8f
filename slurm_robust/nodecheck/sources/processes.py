"""Reads all processes from `/proc/<pid>/stat` (proc_pid_stat(5)), once for all checks that share a process."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import small_files

_KERNEL_THREAD = 0x0020_0000
_MAX_PROCESSES = 50_000
_REAL_UID = re.compile(rb"^Uid:\s+(\d{1,10})\s", re.MULTILINE)
_STEPD = re.compile(rb"slurmstepd: \[(\d{1,10})[.\]]")


@dataclass(frozen=True)
class NodeProcess:
    """One process.

    Attributes:
        command: The process's own name, at most 15 characters.
        state: `R`, `S`, `D`, `Z`, `T`, ….
        started: Clock ticks since boot; with the pid it names one process for good.
        kernel: True for the kernel's own threads.
        cpu_ticks: Clock ticks of CPU time that it has used.
    """

    pid: int
    command: str
    state: str
    parent: int
    threads: int
    started: int
    kernel: bool
    cpu_ticks: int = 0


def parse(data: bytes) -> NodeProcess | None:
    """Read one stat file; None if it is cut short or of another shape."""
    before, opened, rest = data.partition(b"(")
    command, closed, behind = rest.rpartition(b")")
    fields = behind.split()
    if not opened or not closed or len(fields) < 20:
        return None
    try:
        return NodeProcess(
            pid=int(before),
            command=command.decode("utf-8", "replace")[:64],
            state=fields[0].decode("ascii", "replace")[:1],
            parent=int(fields[1]),
            threads=int(fields[17]),
            started=int(fields[19]),
            kernel=bool(int(fields[6]) & _KERNEL_THREAD),
            cpu_ticks=int(fields[11]) + int(fields[12]),
        )
    except ValueError:
        return None


def read(path: str, limit: int) -> bytes:
    """Return a small file's bytes; empty if it is missing or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def scan(context: Context) -> list[NodeProcess]:
    """Return every process; a process that ends meanwhile is passed over."""

    def every() -> list[NodeProcess]:
        folder = str(context.path("/proc"))
        try:
            names = [name for name in os.listdir(folder) if name.isdecimal() and name.isascii()]  # noqa: PTH208
        except OSError:
            return []
        found = (parse(read(f"{folder}/{name}/stat", 4096)) for name in names[:_MAX_PROCESSES])
        return [process for process in found if process is not None]

    return context.once("processes", every)


def job_managers(context: Context) -> dict[int, int]:
    """Pid of each slurmstepd → the job it manages."""

    def managers() -> dict[int, int]:
        found = {}
        for process in scan(context):
            if process.command.startswith("slurm"):
                match = _STEPD.match(read(str(context.path(f"/proc/{process.pid}/cmdline")), 4096))
                if match and is_systems(context, process.pid):
                    found[process.pid] = int(match[1])
        return found

    return context.once("job_managers", managers)


def is_systems(context: Context, pid: int) -> bool:
    """Tell whether root or the present user runs the process: users may give their processes any name.

    The real user id counts: slurmstepd takes on its user's rights for a while, and /proc/PID is root's if a user's
    program may not be read.
    """
    status = read(str(context.path(f"/proc/{pid}/status")), 4096)
    if not status and not context.real_root:
        return True  # a saved tree without it
    match = _REAL_UID.search(status)
    return match is not None and int(match[1]) in (0, os.geteuid())


def has_own_mounts(context: Context) -> bool:
    """Return whether this process has another mount name space than slurmd: a job's own (`PrologFlags=RunInJob`)."""
    here = small_files.target(context.path("/proc/self/ns/mnt"))
    slurmds = [p.pid for p in scan(context) if p.command == "slurmd" and is_systems(context, p.pid)]
    spaces = {small_files.target(context.path(f"/proc/{pid}/ns/mnt")) for pid in slurmds} - {""}
    return bool(here and spaces) and here not in spaces


def owners(context: Context) -> set[int]:
    """Return the uids of users who run something here; root always does."""
    uids = {0}
    for process in scan(context):
        if not process.kernel:
            with contextlib.suppress(OSError):  # each may end between being seen and being asked
                uids.add(context.path(f"/proc/{process.pid}").stat(follow_symlinks=False).st_uid)
    return uids
