"""NCCL's own view of a job: the RAS service that every NCCL process (2.24 and later) takes part in.

The first NCCL process of a node listens on localhost, port 28028 or where NCCL_RAS_ADDR says. A client says hello,
asks for JSON (2.28.7 and later; older ones know text only), asks for the status and reads to the end. One answer tells
of the whole job, so one node is asked. Only a socket that one of the job's own processes holds is spoken to.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, NamedTuple

from slurm_robust.supervise.agent import procfs

PORT = 28028
MAX_ANSWER_BYTES = 64 << 20
MAX_TEXT_BYTES = 256 << 10
"""What text may be sent on: outliers only are named in it, so it is short."""
MAX_NAMED = 64
"""Ranks that are named for each communicator and operation; more are no outliers."""
MAX_AHEAD = 1024
"""Ranks that are ahead, for each communicator and operation; of larger ones they are all the others."""
NCCL_WAITS_S = 3
"""How long NCCL waits for its other processes before it answers without them."""
_PROTOCOL = b"CLIENT PROTOCOL 2\n"
_LISTEN = "0A"


class RasReply(NamedTuple):
    """What RAS said: `json` (reduced) or `text`, or why there is nothing; all empty where nobody listens."""

    json: Any = None
    text: str = ""
    error: str = ""


def address(environ: dict[str, str]) -> tuple[str, int]:
    """Where the RAS service of a process with this environment listens."""
    host, sep, port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    if not sep or not port.isdigit():
        return "localhost", PORT
    return host.strip("[]") or "localhost", int(port)


def listens(pids: list[int], port: int) -> bool:
    """Whether one of these processes holds a socket that listens on this port."""
    if not pids:
        return False
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pids[0]}/net/{table}") as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(f":{port:04X}"):
                        inodes.add(f"socket:[{fields[9]}]")
        except OSError:
            continue
    return bool(inodes) and any(not inodes.isdisjoint(procfs.open_links(pid)) for pid in pids)


def ask(pids: list[int], environ: dict[str, str], timeout_s: float) -> RasReply:
    """Ask the RAS service of these ranks' node.

    Args:
        pids: The ranks' processes on this node.
        environ: Of one of them.
        timeout_s: For everything.
    """
    host, port = address(environ)
    if not listens(pids, port):
        return RasReply()
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            return _talk(connection, deadline)
    except (OSError, ValueError) as error:
        return RasReply(error=f"NCCL RAS at {host}:{port}: {error or type(error).__name__}"[:200])


def _talk(connection: socket.socket, deadline: float) -> RasReply:
    hello = _command(connection, _PROTOCOL, deadline)
    if not hello.upper().startswith("SERVER PROTOCOL "):
        raise ValueError(f"not NCCL's: {hello[:60]!r}")
    waits_s = max(1, min(NCCL_WAITS_S, int((deadline - time.monotonic()) / 3)))
    _command(connection, b"TIMEOUT %d\n" % waits_s, deadline)
    knows_json = _command(connection, b"SET FORMAT json\n", deadline) == "OK"
    connection.sendall(b"VERBOSE STATUS\n")
    body = _rest(connection, deadline)
    if knows_json:
        return RasReply(json=reduced(json.loads(body)))
    return RasReply(text=body[-MAX_TEXT_BYTES:].decode("utf-8", "replace"))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("no answer in time")
    return left


def _command(connection: socket.socket, line: bytes, deadline: float) -> str:
    """Send one line, and return the line that answers it."""
    connection.sendall(line)
    said = b""
    while not said.endswith(b"\n"):
        connection.settimeout(_left(deadline))
        got = connection.recv(1024)
        if not got or len(said) > 4096:
            raise ValueError(f"no answer to {line.decode().strip()!r}")
        said += got
    return said.decode("utf-8", "replace").strip()


def _rest(connection: socket.socket, deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        connection.settimeout(_left(deadline))
        got = connection.recv(1 << 16)
        if not got:
            return b"".join(parts)
        size += len(got)
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
        parts.append(got)


def reduced(plain: Any) -> dict[str, Any]:
    """What differs: processes that do not answer, and operations that some ranks launched less often than others.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not RAS's JSON (all of them ValueError for the caller).
    """
    try:
        comms = [_communicator(told) for told in plain["communicators"]]
        return {"nccl": str(plain.get("nccl_version", ""))[:40], "communicators": [c for c in comms if c]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not RAS's JSON ({type(error).__name__}: {error})") from None


def _communicator(told: Any) -> dict[str, Any] | None:
    missing = [
        [int(r["rank"]), str(r["host"]), int(r["pid"]), bool(r["status"]["considered_dead"])]
        for r in told.get("missing_ranks", [])
        if r["status"]["unresponsive"] or r["status"]["considered_dead"]
    ]
    operations = []
    ranks = told["ranks"]
    for name in sorted({name for r in ranks for name in r.get("collective_counts", {})}):
        counts = [(int(r["collective_counts"].get(name, 0)), r) for r in ranks]
        most = max(count for count, _ in counts)
        behind = [[int(r["rank"]), str(r["host"]), int(r["pid"]), count] for count, r in counts if count < most]
        if behind:
            ahead = [[int(r["rank"]), str(r["host"]), int(r["pid"])] for count, r in counts if count == most]
            operations.append(
                {
                    "name": name,
                    "most": most,
                    "ahead": ahead if len(ahead) <= MAX_AHEAD else [],
                    "behind": behind[:MAX_NAMED],
                    "behind_count": len(behind),
                }
            )
    if not missing and not operations:
        return None
    size = int(told["size"])
    return {"hash": str(told["hash"])[:40], "size": size, "missing": missing[:MAX_NAMED],
            "missing_count": len(missing), "operations": operations}  # fmt: skip
