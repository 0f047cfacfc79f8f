"""Starts processes of a devcluster that outlive us, and finds them again without confusing them with others.

A command (`run`) is waited for; if it fails, its output becomes part of the error.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from slurm_robust.devcluster.spec import DevClusterError

PROC = Path("/proc")

# Runs in a bare interpreter: one fork and exec for each daemon, in a session of its own, adopted by init.
_LAUNCHER = """
import json, os, sys
for item in json.load(sys.stdin):
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    os.setsid()
    log = os.open(item["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0); os.dup2(log, 1); os.dup2(log, 2); os.closerange(3, 64)
    try:
        os.chdir(item["cwd"])
        os.execvpe(item["argv"][0], item["argv"], item["env"])
    except OSError as error:
        os.write(2, ("%s: %s\\n" % (item["argv"][0], error)).encode())
        os._exit(127)
"""


@dataclass(frozen=True)
class ClusterProcess:
    """One process, distinguished by its start from a later process with the same pid.

    Attributes:
        start_ticks: Field 22 of /proc/PID/stat: clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        stat = read_stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state not in "ZX"

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process; return False if it has ended or we may not signal it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            # Checked after the descriptor is open: from here on it cannot refer to another process.
            if not self.alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


@dataclass(frozen=True)
class StatFields:
    """Fields of /proc/PID/stat."""

    name: str
    state: str
    parent: int
    start_ticks: int


def read_stat(pid: int) -> StatFields | None:
    """Return a process's stat, or None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name may hold blanks and parentheses: it ends at the last one.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return StatFields(name, fields[0], int(fields[1]), int(fields[19]))


def identify(pid: int) -> ClusterProcess | None:
    """Return the process that has this pid now, or None."""
    stat = read_stat(pid)
    return None if stat is None else ClusterProcess(pid, stat.start_ticks)


def environ(pid: int) -> dict[str, str]:
    """Return a process's environment as it was at its start; empty if it cannot be read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode("utf-8", "surrogateescape").partition("=") for item in raw.split(b"\0") if item)
    return {key: value for key, _, value in pairs}


def working_directory(pid: int) -> str:
    """Return a process's working directory; empty if it cannot be read."""
    try:
        return str((PROC / str(pid) / "cwd").readlink())
    except OSError:
        return ""


def every_pid() -> Iterator[int]:
    """Return the pids of this machine without our own and our ancestors', which are never part of a cluster."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return (pid for pid in psutil.pids() if pid not in ours)


def descendants(roots: Iterable[int]) -> set[int]:
    """Return all processes below `roots`, without the roots."""
    children: dict[int, list[int]] = {}
    for pid in every_pid():
        if stat := read_stat(pid):
            children.setdefault(stat.parent, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


@dataclass(frozen=True)
class Command:
    """A daemon to be started: its name in the record, arguments, environment, log and working directory."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    cwd: Path


def launch(commands: list[Command]) -> list[ClusterProcess]:
    """Start daemons that outlive us, each in its own session.

    Raises:
        DevClusterError: the daemons could not be forked.
    """
    if not commands:
        return []
    items = [{"argv": c.argv, "env": dict(c.env), "log": str(c.log), "cwd": str(c.cwd)} for c in commands]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER],
        input=json.dumps(items),
        # If we are killed now, the launcher itself is found by the mark in its environment, as its children are.
        env=dict(commands[0].env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    pids = [int(line) for line in done.stdout.split()]
    if len(pids) != len(commands):
        raise DevClusterError(f"cannot start processes: {done.stderr.strip() or done.returncode}")
    # One that has ended and is already reaped gets a start time that no process has.
    return [identify(pid) or ClusterProcess(pid, -1) for pid in pids]


def end(
    find: Callable[[], Iterable[ClusterProcess]], *, grace_s: float = 0, timeout_s: float = 10
) -> list[ClusterProcess]:
    """End the processes that `find` returns, until it returns none: jobs fork while they are being killed.

    SIGTERM may take `grace_s` before SIGKILL; 0 kills at once.

    Returns:
        Processes that still live (uninterruptible, or we may not signal them).
    """
    began_s = time.monotonic()
    asked: set[ClusterProcess] = set()
    seen: set[ClusterProcess] = set()
    none_left = False
    while True:
        # A process seen once stays in the set: an orphan with a wiped environment is found only while its parent lives.
        seen |= set(find())
        left = [process for process in seen if process.alive]
        spent_s = time.monotonic() - began_s
        # Looked at twice: a process whose program is just being started has no environment to be found by.
        if (not left and none_left) or spent_s > grace_s + timeout_s:
            return left
        none_left = not left
        for process in left:
            if spent_s >= grace_s:
                process.signal(signal.SIGKILL)
            elif process not in asked:
                process.signal(signal.SIGTERM)
                asked.add(process)
        time.sleep(0.02)


class CommandError(subprocess.CalledProcessError):
    """A command in the devcluster failed; the text contains its output."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout or ''}{self.stderr or ''}"


@dataclass(frozen=True)
class CommandOptions:
    """The options of a command.

    Attributes:
        env: The whole environment of the command.
        timeout_s: The command is killed after so many seconds.
        user: The account that runs the command; only root can name another account.
        check: Whether to raise if the command does not exit with 0.
        stdin: Text for its stdin; None for no input.
    """

    env: Mapping[str, str]
    cwd: str | os.PathLike[str]
    timeout_s: float = 30
    user: str | None = None
    check: bool = True
    stdin: str | None = None


def run(args: Sequence[str | os.PathLike[str]], options: CommandOptions) -> subprocess.CompletedProcess[str]:
    """Run a command, with its output captured as text.

    Raises:
        CommandError: the command failed, and `check` is set.
        DevClusterError: there is no such account.
        subprocess.TimeoutExpired: the command took too long.
    """
    values, user = dict(options.env), options.user
    more: dict[str, Any] = {"stdin": subprocess.DEVNULL} if options.stdin is None else {"input": options.stdin}
    if user is not None:
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            raise DevClusterError(f"{user}: no such account on this machine") from None
        values |= {"USER": user, "LOGNAME": user, "HOME": account.pw_dir}
        groups = os.getgrouplist(user, account.pw_gid)
        more |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    done = subprocess.run(
        [os.fspath(word) for word in args],
        env=values,
        cwd=options.cwd,
        timeout=options.timeout_s,
        capture_output=True,
        text=True,
        errors="replace",  # jobs' owners write what they like
        check=False,
        **more,
    )
    if options.check and done.returncode:
        raise CommandError(done.returncode, done.args, done.stdout, done.stderr)
    return done
