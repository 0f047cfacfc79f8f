"""PyTorch's flight recorder of one rank: asking for a dump, and taking what is needed of it to the supervisor.

A rank writes its dump within a second or two of being asked (its monitor thread looks at the pipe now and then), so a
capture asks, and the next one takes. A dump is some hundred bytes an operation, thousands of operations long: only
what is not complete is sent, and the newest of each group. It is read in a process of its own, with little memory and
time, by an unpickler that knows no class at all.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import stat
import subprocess
import sys
import time
from typing import IO, Any, NamedTuple

from slurm_robust.supervise.agent.ranks import StepProcess

MAX_FILE_BYTES = 64 << 20
MAX_SENT_BYTES = 256 << 10
"""What one rank may send: some hundred pending operations."""
MAX_PENDING = 200
"""Of the operations that are not complete, the first ones: whoever waits, waits for those."""
OLDEST_S = 120.0
"""An older dump tells of another moment, where the rank itself says nothing of its progress."""
OURS = "srobust-"
"""A pipe whose name begins so was named by `srobust run` or the plugin; the user's own stay."""
_READ_S = 8.0
_READ_MEMORY_BYTES = 2 << 30
_DROP = ("frames", "duration_ms", "thread_id", "thread_name", "timeout_ms", "op_id", "is_p2p")
_SHORT = ("pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "record_id", "profiling_name", "time_created_ns")


class Reading(NamedTuple):
    """What came of a rank's dump: the reduced dump, or why there is none; both empty where nobody asked for one."""

    dump: Any = None
    error: str = ""


def _open(pid: int, path: str, flags: int, kind: int) -> int:
    """Open a file of the rank's, as the rank's own file system has it (containers), if it is its owner's.

    Raises:
        OSError: it is not there, is a link, or is another's.
    """
    inside = f"/proc/{pid}/root{path}" if os.path.isabs(path) else f"/proc/{pid}/cwd/{path}"
    fd = os.open(inside, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_IFMT(found.st_mode) != kind or found.st_uid not in (os.getuid(), os.stat(f"/proc/{pid}").st_uid):
        os.close(fd)
        raise PermissionError("neither this job's own nor what it should be")
    return fd


def ask(member: StepProcess, rank: int) -> None:
    """Ask a rank for a dump: PyTorch writes one when its pipe is written to."""
    if not member.dump_pipe:
        return
    try:
        fd = _open(member.pid, f"{member.dump_pipe}{rank}.pipe", os.O_WRONLY, stat.S_IFIFO)
    except OSError:
        return  # no NCCL process group was made: there is nobody to read the pipe
    try:
        os.write(fd, b"1\n")
    except OSError:
        pass
    finally:
        os.close(fd)


def remove_pipe(member: StepProcess, rank: int) -> None:
    """Remove the pipe of a rank that has ended: PyTorch leaves it where it is, and our name for it lies in /tmp."""
    path = f"{member.dump_pipe}{rank}.pipe"
    if not os.path.basename(path).startswith(OURS):
        return
    try:
        found = os.lstat(path)
        if stat.S_ISFIFO(found.st_mode) and found.st_uid == os.getuid():
            os.unlink(path)
    except OSError:
        pass  # none was made, or it lay in the rank's own container


def take(member: StepProcess, rank: int, since_s: float) -> Reading:
    """The rank's dump, if it wrote one since then.

    Args:
        member: Its main process.
        rank: Its number: the end of the file's name.
        since_s: Its last sign of life, seconds since the epoch: an older dump does not show what holds it now. 0 where
            it tells none.
    """
    if not member.dump_stem:
        return Reading()
    path = f"{member.dump_stem}{rank}"
    try:
        fd = _open(member.pid, path, os.O_RDONLY, stat.S_IFREG)
    except FileNotFoundError:
        return Reading()
    except OSError as error:
        return Reading(error=f"{path}: {error.strerror or error}")
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(stream.fileno())
        if found.st_mtime < max(since_s, time.time() - OLDEST_S):
            return Reading()
        if not 0 < found.st_size <= MAX_FILE_BYTES:
            return Reading(error=f"{path}: {found.st_size} bytes (at most {MAX_FILE_BYTES})" if found.st_size else "")
        return _read_apart(stream, path)


def _read_apart(stream: IO[bytes], path: str) -> Reading:
    top = os.path.dirname(os.path.abspath(__file__))
    for _ in range(3):
        top = os.path.dirname(top)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from slurm_robust.supervise.agent.recorder import main; main()"
    argv = [sys.executable, "-S", "-s", "-E", "-c", code, top]
    try:
        done = subprocess.run(argv, stdin=stream, capture_output=True, timeout=_READ_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Reading(error=f"{path}: not read ({type(error).__name__})")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Reading(error=f"{path}: {said[-1][:160] if said else 'not read'}")
    if len(done.stdout) > MAX_SENT_BYTES:
        return Reading(error=f"{path}: {len(done.stdout)} bytes of pending operations, too many to send")
    return Reading(dump=json.loads(done.stdout))


class _Containers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}: nothing was run")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def reduced(plain: Any) -> dict[str, Any]:
    """A dump without what nobody needs: `localize.recorder` reads it as it reads a whole one.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is no dump.
    """
    entries = sorted(plain["entries"], key=lambda e: int(e["record_id"]))
    pending = [e for e in entries if e.get("state") != "completed" and not e.get("retired")]
    kept = {int(e["record_id"]): {k: v for k, v in e.items() if k not in _DROP} for e in pending[:MAX_PENDING]}
    newest = {int(e["pg_id"]): e for e in entries}
    for entry in newest.values():
        short = {key: entry[key] for key in _SHORT if key in entry}
        kept.setdefault(int(entry["record_id"]), dict(short, state="completed"))
    groups = {name: _group(told) for name, told in (plain.get("pg_config") or {}).items()}
    return {
        "version": str(plain.get("version", "")),
        "pg_config": groups,
        "pg_status": plain.get("pg_status") or {},
        "entries": [kept[number] for number in sorted(kept)],
    }


def _group(told: Any) -> dict[str, Any]:
    """The same with its ranks as ranges (first, last, step): a group of all ranks of a large job is long."""
    ranks = told["ranks"]
    if isinstance(ranks, str):
        ranks = json.loads(ranks or "[]")
    ranges: list[list[int]] = []
    for rank in map(int, ranks):
        if ranges and len(ranges[-1]) == 3 and rank - ranges[-1][1] == ranges[-1][2]:
            ranges[-1][1] = rank
        elif ranges and ranges[-1][0] == ranges[-1][1] and rank > ranges[-1][1]:
            ranges[-1][1:] = [rank, rank - ranges[-1][0]]
        else:
            ranges.append([rank, rank, 0])
    return {"name": str(told.get("name", "")), "desc": str(told.get("desc", "")), "ranges": ranges}


def main() -> None:
    """Read a dump from standard input, print what is needed of it; exit 1 with a sentence where that cannot be done."""
    resource.setrlimit(resource.RLIMIT_AS, (_READ_MEMORY_BYTES, _READ_MEMORY_BYTES))
    try:
        body = sys.stdin.buffer.read(MAX_FILE_BYTES)
        plain = json.loads(body) if body[:1] == b"{" else _Containers(io.BytesIO(body)).load()
        sys.stdout.write(json.dumps(reduced(plain), separators=(",", ":")))
    except Exception as error:  # noqa: BLE001 (whatever a garbled file makes of itself)
        sys.stderr.write(f"not a flight-recorder dump ({type(error).__name__}: {error})"[:200])
        sys.exit(1)
