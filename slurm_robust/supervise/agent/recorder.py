"""Asks a rank for its PyTorch flight-recorder dump, and reduces the dump to what the supervisor needs.

A rank writes its dump within a second or two after it was asked (its monitor thread polls the pipe), so one capture
asks for the dump and the next one reads it. A dump has thousands of operations of some hundred bytes each. Only
operations that are not complete are sent, the newest operation of each group, and how many sends and receives are
complete. The dump is read in a separate process, with bounded memory and time, by an unpickler that does not know any
class.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import stat
import subprocess
import sys
from typing import IO, Any, NamedTuple

from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import StepProcess
from slurm_robust.wire.plain_pickle import written_size

MAX_FILE_BYTES = 64 << 20
MAX_SENT_BYTES = 256 << 10
"""The most bytes that are sent of one rank's dump: some hundred pending operations."""
MAX_PENDING = 200
"""How many operations that are not complete are kept, the first ones: waiting ranks wait for those."""
MAX_EXCHANGES = 64
"""The most partners and directions whose completed operations are counted, the latest ones: a pipeline has four."""
OLDEST_S = 120.0
"""If the rank does not report its progress, an older dump is not used: it shows another moment."""
OURS = "srobust-"
"""A pipe whose name begins so was named by `srobust run` or the plugin; pipes of the user are not removed."""
_READ_S = 8.0
_READ_MEMORY_BYTES = 2 << 30
_DROP = ("frames", "duration_ms", "thread_id", "thread_name", "timeout_ms", "op_id", "is_p2p")
_PAIR = re.compile(r"i?(?:send|recv) ?\d+(?:->|<-)\d+")
_SHORT = ("pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "record_id", "profiling_name", "time_created_ns")


class Reading(NamedTuple):
    """A rank's reduced dump, or why there is none; both are empty if no dump was asked for."""

    dump: Any = None
    error: str = ""


def _open(pid: int, path: str, flags: int, kind: int) -> int:
    """Open a file in the rank's own view of the file system (containers), if it belongs to the rank's user.

    Raises:
        OSError: the file does not exist, is a link, or belongs to another user.
    """
    inside = f"/proc/{pid}/root{path}" if os.path.isabs(path) else f"/proc/{pid}/cwd/{path}"
    fd = os.open(inside, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_IFMT(found.st_mode) != kind or found.st_uid not in (os.getuid(), os.stat(f"/proc/{pid}").st_uid):
        os.close(fd)
        raise PermissionError("it is of another kind or belongs to another user")
    return fd


def ask(process: StepProcess, rank: int) -> None:
    """Ask a rank for a dump: PyTorch writes one when its pipe is written to."""
    if not process.dump_pipe:
        return
    try:
        fd = _open(process.pid, f"{process.dump_pipe}{rank}.pipe", os.O_WRONLY, stat.S_IFIFO)
    except OSError:
        return  # no NCCL process group exists: nobody reads the pipe
    try:
        os.write(fd, b"1\n")
    except OSError:
        pass
    finally:
        os.close(fd)


def remove_pipe(process: StepProcess, rank: int) -> None:
    """Remove the pipe of a rank that has ended: PyTorch does not remove it, and we named it to be in /tmp."""
    path = f"{process.dump_pipe}{rank}.pipe"
    if not os.path.basename(path).startswith(OURS):
        return
    try:
        found = os.lstat(path)
        if stat.S_ISFIFO(found.st_mode) and found.st_uid == os.getuid():
            os.unlink(path)
    except OSError:
        pass  # there was none, or it was in the rank's own container


def take(process: StepProcess, rank: int, since_s: float, clock: SystemClock = CLOCK) -> Reading:
    """Return the rank's dump, if the rank wrote one since `since_s`.

    `since_s` is the rank's last sign of life, 0 if it reports none: an older dump does not show what holds the rank
    now.
    """
    if not process.dump_stem:
        return Reading()
    path = f"{process.dump_stem}{rank}"
    try:
        fd = _open(process.pid, path, os.O_RDONLY, stat.S_IFREG)
    except FileNotFoundError:
        return Reading()
    except OSError as error:
        return Reading(error=f"{path}: {error.strerror or error}")
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(stream.fileno())
        if found.st_mtime < max(since_s, clock.now_s() - OLDEST_S):
            return Reading()
        if not 0 < found.st_size <= MAX_FILE_BYTES:
            return Reading(error=f"{path}: {found.st_size} bytes (at most {MAX_FILE_BYTES})" if found.st_size else "")
        reading = _read_apart(stream, path)
    if reading.dump is not None:
        # A file that is read twice is one dump: only a second dump shows that nothing has moved.
        reading.dump["written_at_s"] = found.st_mtime
    return reading


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
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Reading(error=f"{path}: {lines[-1][:160] if lines else 'not read'}")
    return Reading(dump=json.loads(done.stdout))


class _Containers(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}: nothing was run")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def reduced(plain: Any) -> dict[str, Any]:
    """Return the needed part of a dump, which `localize.recorder` reads like a whole dump.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not a dump.
    """
    entries = sorted(plain["entries"], key=lambda e: int(e["record_id"]))
    pending = [e for e in entries if e.get("state") != "completed" and not e.get("retired")]
    kept = {int(e["record_id"]): {k: v for k, v in e.items() if k not in _DROP} for e in pending[:MAX_PENDING]}
    newest = {int(e["pg_id"]): e for e in entries}
    for entry in newest.values():
        short = {key: entry[key] for key in _SHORT if key in entry}
        kept.setdefault(int(entry["record_id"]), dict(short, state="completed"))
    groups = {name: _group(raw) for name, raw in (plain.get("pg_config") or {}).items()}
    return {
        "version": str(plain.get("version", "")),
        "pg_config": groups,
        "pg_status": plain.get("pg_status") or {},
        "first_record_id": int(entries[0]["record_id"]) if entries else -1,
        "exchanges": _exchanges(entries),
        "entries": [kept[number] for number in sorted(kept)],
    }


def _exchanges(entries: list[Any]) -> list[list[Any]]:
    """Return the completed sends and receives: group, name, how many, and the number of the newest."""
    found: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        name = str(entry["profiling_name"])[:80].rpartition(":")[2]
        if _PAIR.match(name) and (entry.get("state") == "completed" or entry.get("retired")):
            key = (str(entry["process_group"][0]), name)
            count, newest = found.pop(key, [0, -1])
            found[key] = [count + 1, max(newest, int(entry["p2p_seq_id"]))]
    return [[group, name, count, newest] for (group, name), (count, newest) in list(found.items())[-MAX_EXCHANGES:]]


def _group(raw: Any) -> dict[str, Any]:
    """Return a group with its ranks as ranges (first, last, step): a list of all ranks of a large job is long."""
    ranks = raw["ranks"]
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
    return {"name": str(raw.get("name", "")), "desc": str(raw.get("desc", "")), "ranges": ranges}


def main() -> None:
    """Read a dump from standard input and print it reduced; if that fails, print a sentence and exit with 1."""
    most_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
    most_bytes = _READ_MEMORY_BYTES if most_bytes == resource.RLIM_INFINITY else min(most_bytes, _READ_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        body = sys.stdin.buffer.read(MAX_FILE_BYTES)
        plain = json.loads(body) if body[:1] == b"{" else _Containers(io.BytesIO(body)).load()
        # Gigabytes would otherwise pass through the agent. A healthy file names each type once: twice its bytes.
        written_size(plain, max(MAX_FILE_BYTES, 4 * len(body)), skip="frames")
        text = json.dumps(reduced(plain), separators=(",", ":"), allow_nan=False)
        if len(text) > MAX_SENT_BYTES:
            raise ValueError(f"{len(text)} bytes of pending operations, too many to send")  # noqa: TRY301
        sys.stdout.write(text)
    except Exception as error:  # noqa: BLE001 (a garbled file may raise anything)
        sys.stderr.write(f"not a flight-recorder dump ({type(error).__name__}: {error})"[:200])
        sys.exit(1)
