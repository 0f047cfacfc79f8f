"""The task of the test step on each node: carries out orders from stdin, and tells results on stdout.

It loads the standard library only, so that it answers within a second where PyTorch or a file system hangs. It ends
with its stdin, and kills what it started. While it lives it holds a socket's name, so that two tests on one node see
each other; that leaves no file behind.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import zlib
from typing import Any

MARK = "@srobust-test "
BEAT_S = 1.0
_LINE_CHARS = 900
"""Slurm cuts lines at 1,024 bytes."""
_GRACE_S = 3.0
"""After a rank server's own limit: then it hangs itself."""
_TERM_S = 2.0
_SERVER = (
    "import sys; sys.path.append(sys.argv[1]); from slurm_robust.stoptime.rank_server import main; "
    "sys.path.remove(sys.argv[1]); main()"
)
_PR_SET_PDEATHSIG = 1


def packed(orders: dict[str, Any]) -> str:
    """An order as one line: it goes to every node, and the groups of thousands of nodes are long."""
    return base64.b64encode(zlib.compress(json.dumps(orders).encode())).decode()


def unpacked(line: bytes) -> dict[str, Any] | None:
    """The order of a line; None for a foreign one."""
    try:
        found = json.loads(zlib.decompress(base64.b64decode(line, validate=True)))
    except (ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Child:
    """A process of ours in a group of its own, whose lines are read."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (an agent has one thread)
        )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.fileno()
        self.buffer = b""

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self.process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        """End it and its group: by a signal that it may obey, then for good."""
        for number, wait_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


class NodeAgent:
    """The orders of one node, one after the other."""

    def __init__(self, root: str, rank_python: str) -> None:
        self.root, self.rank_python = root, rank_python
        self.node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        self.index = int(os.environ.get("SLURM_PROCID", "0"))
        self.devices: list[str] = ["cpu"]
        self.order: dict[str, Any] = {}
        self.end_s = 0.0
        self.server: _Child | None = None
        self.check: _Child | None = None
        self.selector = selectors.DefaultSelector()
        self.name = socket.socket(socket.AF_UNIX)

    def tell(self, kind: str, **fields: Any) -> None:
        """One line to the test's command; long texts are cut."""
        message = {"t": kind, "node": self.node, **fields}
        text = json.dumps(message)
        if len(text) > _LINE_CHARS:
            message = {k: v[:300] if isinstance(v, str) else v for k, v in message.items()}
            text = json.dumps(message)
        with contextlib.suppress(OSError):
            os.write(1, f"{MARK}{text}\n".encode())

    def run(self) -> int:
        """Until stdin ends."""
        self.tell("hello", host=socket.gethostname(), step=_step(), index=self.index)
        try:
            # Two clusters on one machine may have nodes of the same name.
            self.name.bind(f"\0srobust-test.{os.environ.get('SLURM_CLUSTER_NAME', '')}.{self.node}")
        except OSError:
            self.tell("taken")
            return 0
        try:
            self._start_server()
            self.selector.register(0, selectors.EVENT_READ, self._read_stdin)
            self._loop()
        finally:
            for child in (self.check, self.server):
                if child is not None:
                    child.end()
        return 0

    def _start_server(self) -> None:
        argv = [self.rank_python, "-c", _SERVER, self.root]
        try:
            self.server = _Child(argv, dict(os.environ))
        except OSError as error:
            self.tell("no_torch", reason=f"{self.rank_python} cannot be started: {error.strerror}")
            return
        self.selector.register(self.server.stdout, selectors.EVENT_READ, self._read_server)

    def _loop(self) -> None:
        self.stopped = False
        beat_s = 0.0
        while not self.stopped:
            now_s = time.monotonic()
            if now_s >= beat_s:
                beat_s = now_s + BEAT_S
                self.tell("beat")
            if self.order and now_s >= self.end_s:
                self._late()
            for key, _ in self.selector.select(max(0.0, beat_s - time.monotonic())):
                key.data()

    def _lines(self, fd: int, buffer: bytes) -> tuple[list[bytes], bytes, bool]:
        part = os.read(fd, 1 << 16)
        *lines, rest = (buffer + part).split(b"\n")
        return lines, rest, not part

    _stdin = b""

    def _read_stdin(self) -> None:
        lines, self._stdin, ended = self._lines(0, self._stdin)
        for line in lines:
            order = unpacked(line)
            if order is not None:
                self._begin(order)
        self.stopped = self.stopped or ended

    def _begin(self, order: dict[str, Any]) -> None:
        """Start what an order asks for; nodes that it does not concern say nothing."""
        only = order.get("only")
        if only is not None and self.index not in only:
            return
        if order["c"] == "cancel":
            if self.order.get("id") == order["id"] and self.server is not None:
                self.server.write({"cancel": order["id"]})
            return
        self.order, self.end_s = order, time.monotonic() + order["limit_s"] + _GRACE_S
        if order["c"] == "check":
            self._begin_check(order)
        elif order["c"] == "pairs":
            group = next((g for g in order["groups"] if self.index in [member for member, _ in g[2]]), None)
            if group is None:
                self.order = {}
            else:
                self._fork("pair", order, _ranks(group, self.index, order["limit_s"]))
        else:
            devices = [f"cuda:{i}" for i in range(order["devices"])] if order["devices"] else self.devices
            self._fork("step", order, [{"device": d, "repeats": order["repeats"]} for d in devices])

    def _fork(self, kind: str, order: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
        self.ranks = ranks
        if self.server is None:
            self.tell("result", id=order["id"], error="its rank server has ended")
            self.order = {}
            return
        self.server.write({"id": order["id"], "kind": kind, "ranks": ranks, "limit_s": order["limit_s"]})

    def _begin_check(self, order: dict[str, Any]) -> None:
        path = os.pathsep.join(filter(None, (self.root, os.environ.get("PYTHONPATH", ""))))
        argv = [sys.executable, "-m", "slurm_robust.cli.main", "check", "--stage", "full", "--json"]
        try:
            self.check = _Child(argv, {**os.environ, "PYTHONPATH": path})
        except OSError as error:
            self.tell("result", id=order["id"], error=f"srobust check cannot be started: {error.strerror}")
            self.order = {}
            return
        self.selector.register(self.check.stdout, selectors.EVENT_READ, self._read_check)

    def _read_check(self) -> None:
        assert self.check is not None
        part = os.read(self.check.stdout, 1 << 16)
        self.check.buffer += part
        if part:
            return
        check, self.check = self.check, None
        self.selector.unregister(check.stdout)
        check.end()
        order, self.order = self.order, {}
        try:
            report = json.loads(check.buffer)
            verdict = report["verdict"]
            wanted = {"unfit": "fail", "unknown": "unknown"}.get(verdict, "")
            reasons = [f"{c['name']}: {c['sentence']}" for c in report["checks"] if c["status"] == wanted]
            self.tell("result", id=order["id"], verdict=verdict, reason="; ".join(reasons))
        except (ValueError, KeyError, TypeError):
            self.tell("result", id=order["id"], error=f"srobust check ended with {check.process.returncode}, no report")

    def _read_server(self) -> None:
        server = self.server
        assert server is not None
        lines, server.buffer, ended = self._lines(server.stdout, server.buffer)
        for line in lines:
            self._server_says(json.loads(line))
        if ended:
            self.selector.unregister(server.stdout)
            server.end()
            self.server = None
            if self.order and self.order["c"] != "check":
                self.tell("result", id=self.order["id"], error="its rank server has ended")
                self.order = {}

    def _server_says(self, message: dict[str, Any]) -> None:
        if "no_torch" in message:
            self.tell("no_torch", reason=message["no_torch"])
        elif "ready" in message:
            found = message["ready"]
            reason = found.get("error", "") or ("its GPUs do not answer" if found.get("late") else "")
            self.tell("ready", gpus=found.get("count", 0), busy=found.get("busy", ""), reason=reason)
        elif self.order and message["id"] == self.order["id"]:
            order, self.order = self.order, {}
            if order["c"] == "pairs":
                self.tell("result", id=order["id"], **_together(message["results"]))
                return
            for rank, result in zip(self.ranks, message["results"], strict=False):
                self.tell("digests", id=order["id"], device=rank["device"], **result)
            self.tell("result", id=order["id"])

    def _late(self) -> None:
        """Something did not keep its own limit: kill it, and have a new rank server."""
        order, self.order = self.order, {}
        self.tell("result", id=order["id"], late=True)
        child = self.check if order["c"] == "check" else self.server
        if child is not None:
            self.selector.unregister(child.stdout)
            child.end()
        if order["c"] == "check":
            self.check = None
        else:
            self._start_server()


def _step() -> str:
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"


def _ranks(group: list[Any], index: int, limit_s: float) -> list[dict[str, Any]]:
    """The ranks of this node in its group: one for each GPU, one on the CPU where there is none."""
    port, host, members = group
    world = sum(max(1, gpus) for _, gpus in members)
    first, gpus = 0, 0
    for member, gpus in members:
        if member == index:
            break
        first += max(1, gpus)
    devices = [f"cuda:{i}" for i in range(gpus)] if gpus else ["cpu"]
    shared = {"world": world, "host": host, "port": port, "limit_s": limit_s}
    return [{**shared, "rank": first + i, "device": device} for i, device in enumerate(devices)]


def _together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of the ranks of a node: all wrong numbers, the slowest rank, the first error."""
    found: dict[str, Any] = {}
    errors = [result["error"] for result in results if "error" in result]
    if errors:
        return {"error": errors[0]}
    if any(result.get("late") for result in results):
        return {"late": True}
    for kind in results[0]["wrong"]:
        found.setdefault("wrong", {})[kind] = sum(result["wrong"][kind] for result in results)
        found.setdefault("gb_per_s", {})[kind] = round(min(result["gb_per_s"][kind] for result in results), 4)
    return found


def main(argv: list[str]) -> int:
    """Run the agent: `ROOT RANK_PYTHON`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return NodeAgent(argv[0], argv[1]).run()
