"""Asks NCCL's RAS service, in which every NCCL process (2.24 and later) takes part, for its view of a job.

The first NCCL process of a node listens on localhost, port 28028, or at the address in NCCL_RAS_ADDR. A client
introduces itself, asks for JSON (2.28.7 and later; older versions only know text), asks for the status and reads to the
end. One reply describes the whole job, so only one node is asked. A socket is only contacted if one of the job's own
processes holds it.
"""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock

PORT = 28028
MAX_ANSWER_BYTES = 64 << 20
MAX_TEXT_BYTES = 256 << 10
"""The most bytes of text that are passed on: the text names outliers only, so it is short."""
MAX_NAMED = 64
"""The most ranks that are named for each communicator and operation; more ranks are not outliers."""
MAX_AHEAD = 1024
"""The most ranks ahead that are named for each communicator and operation; if more are ahead, none is named."""
NCCL_WAITS_S = 3
"""How long NCCL waits for its other processes before it answers without them."""
_PROTOCOL = b"CLIENT PROTOCOL 2\n"
_LISTEN = "0A"


class RasReply(NamedTuple):
    """The reply of RAS: `json` (reduced) or `text`, or an error; all empty if no process listens."""

    json: Any = None
    text: str = ""
    error: str = ""


def address(environ: dict[str, str]) -> tuple[str, int]:
    """Return the address of the RAS service of a process with this environment."""
    host, sep, port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    if not sep or not port.isdigit():
        return "localhost", PORT
    return host.strip("[]") or "localhost", int(port)


def listens(pids: list[int], port: int) -> bool:
    """Return whether one of these processes holds a socket that listens on this port."""
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


def ask(pids: list[int], environ: dict[str, str], timeout_s: float, clock: SystemClock = CLOCK) -> RasReply:
    """Ask the RAS service of these ranks' node.

    `environ` is the environment of one of the ranks; `timeout_s` limits the whole exchange.
    """
    host, port = address(environ)
    if not listens(pids, port):
        return RasReply()
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            return _Client(connection, clock.monotonic_s() + timeout_s, clock).ask()
    except (OSError, ValueError) as error:
        return RasReply(error=f"NCCL RAS at {host}:{port}: {error or type(error).__name__}"[:200])


class _Client:
    def __init__(self, connection: socket.socket, deadline_s: float, clock: SystemClock) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._clock = clock

    def ask(self) -> RasReply:
        hello = self._command(_PROTOCOL)
        if not hello.upper().startswith("SERVER PROTOCOL "):
            raise ValueError(f"not NCCL's: {hello[:60]!r}")
        waits_s = max(1, min(NCCL_WAITS_S, int((self._deadline_s - self._clock.monotonic_s()) / 3)))
        self._command(b"TIMEOUT %d\n" % waits_s)
        knows_json = self._command(b"SET FORMAT json\n") == "OK"
        self._connection.sendall(b"VERBOSE STATUS\n")
        body = self._read_to_end()
        if knows_json:
            return RasReply(json=reduced(json.loads(body)))
        return RasReply(text=body[-MAX_TEXT_BYTES:].decode("utf-8", "replace"))

    def _receive(self, size_bytes: int) -> bytes:
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise socket.timeout("no answer in time")
        self._connection.settimeout(left_s)
        return self._connection.recv(size_bytes)

    def _command(self, line: bytes) -> str:
        """Send one line, and return the line that answers it."""
        self._connection.sendall(line)
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._receive(1024)
            if not part or len(answer) > 4096:
                raise ValueError(f"no answer to {line.decode().strip()!r}")
            answer += part
        return answer.decode("utf-8", "replace").strip()

    def _read_to_end(self) -> bytes:
        body = bytearray()
        while part := self._receive(1 << 16):
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


def reduced(plain: Any) -> dict[str, Any]:
    """Return the differences: processes that do not answer, and operations that some ranks launched less often.

    Raises:
        ValueError: `plain` is not RAS's JSON.
    """
    try:
        comms = [_communicator(raw) for raw in plain["communicators"]]
        return {"nccl": str(plain.get("nccl_version", ""))[:40], "communicators": [c for c in comms if c]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not RAS's JSON ({type(error).__name__}: {error})") from None


def _communicator(raw: Any) -> dict[str, Any] | None:
    missing = [
        [int(r["rank"]), str(r["host"]), int(r["pid"]), bool(r["status"]["considered_dead"])]
        for r in raw.get("missing_ranks", [])
        if r["status"]["unresponsive"] or r["status"]["considered_dead"]
    ]
    operations = []
    ranks = raw["ranks"]
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
    size = int(raw["size"])
    return {"hash": str(raw["hash"])[:40], "size": size, "missing": missing[:MAX_NAMED],
            "missing_count": len(missing), "operations": operations}  # fmt: skip
