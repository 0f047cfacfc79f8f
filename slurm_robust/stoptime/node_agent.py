"""Runs as the test step's task on each node: carries out orders from stdin, and tells results on stdout.

It loads the standard library only, so that it answers within a second even if PyTorch or a file system hangs. It ends
with its stdin, and kills the processes that it started.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_robust.stoptime import job_environment
from slurm_robust.stoptime.node_name import NodeName

MARK = "@srobust-test "
BEAT_S = 1.0
_LINE_CHARS = 900
"""Slurm cuts lines at 1,024 bytes."""
_GRACE_S = 3.0
"""Time after a rank server's own limit; if it has not answered by then, it hangs itself."""
_TERM_S = 2.0
_TAKEN_S = 8.0
"""Time for an earlier test to end its ranks and its check: two signals of two seconds each."""
_CHECKS = "gpu,host,network"
"""Groups of the full check that do not compute."""
_CHILDS = ("check", "tools")
"""Orders that are carried out by a process of their own, not by ranks."""
_SERVER = (
    "import sys; sys.path.append(sys.argv[1]); from slurm_robust.stoptime.rank_server import main; "
    "sys.path.remove(sys.argv[1]); main()"
)
_PR_SET_PDEATHSIG = 1


def packed(orders: dict[str, Any]) -> str:
    """Return an order as one line: it goes to every node, and the groups of thousands of nodes are long."""
    return base64.b64encode(zlib.compress(json.dumps(orders).encode())).decode()


def unpacked(line: bytes) -> dict[str, Any] | None:
    """Return the order of a line; None for any other line."""
    try:
        found = json.loads(zlib.decompress(base64.b64decode(line, validate=True)))
    except (ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) else None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Child:
    """A process of ours in a process group of its own, whose lines are read."""

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
        """End the process and its group: by SIGTERM, then by SIGKILL."""
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
        self.gpus = 0
        self.unknown: list[str] = []
        """Checks of the last run that came to no answer."""
        self.order: dict[str, Any] = {}
        self.end_s = 0.0
        self.server: _Child | None = None
        self.check: _Child | None = None
        self.selector = selectors.DefaultSelector()
        self.name = NodeName(cluster(os.environ), self.node)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send one line to the test's command; long texts are cut."""
        message = {"t": kind, "node": self.node, **fields}
        text = json.dumps(message)
        if len(text) > _LINE_CHARS:
            message = {k: v[:250] if isinstance(v, str) else v for k, v in message.items()}
            text = json.dumps(message)
        with contextlib.suppress(OSError):
            os.write(1, f"{MARK}{text}\n".encode())

    def run(self) -> int:
        """Carry out orders until stdin ends."""
        self.tell("hello", host=socket.gethostname(), step=_step(), index=self.index)
        if not self._take_name():
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

    def _take_name(self) -> bool:
        """Take the node for this test, after waiting for a test that has just ended and still ends its ranks."""
        hung_up = select.poll()
        hung_up.register(0, 0)  # Orders that come meanwhile stay unread; only the end of the test is of interest.
        for _ in range(round(_TAKEN_S / BEAT_S)):
            if self.name.take():
                return True
            self.tell("beat")
            if hung_up.poll(BEAT_S * 1000):
                return False
        return False

    def _start_server(self) -> None:
        self._loaded, self._foreign = False, ""
        argv = [self.rank_python, "-c", _SERVER, self.root]
        ranks = job_environment.of_ranks(Path("/proc"), os.environ)
        self.tell("environment", of_job=ranks is not None)
        try:
            self.server = _Child(argv, job_environment.merged(os.environ, ranks))
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
        """Start what an order asks for; nodes that the order does not concern do not answer."""
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
        elif order["c"] == "tools":
            argv = [sys.executable, "-m", "slurm_robust.stoptime.node_tools", str(order["limit_s"])]
            argv += ["--eud"] if order.get("eud") else []
            self._begin_child(order, argv, "NVIDIA's tests")
        elif order["c"] == "devices":
            self._fork("node", order, self._own_ranks(order["limit_s"]))
        elif order["c"] == "pairs":
            group = next((g for g in order["groups"] if self.index in [member for member, _ in g[2]]), None)
            if group is None:
                self.order = {}
            else:
                self._fork("pair", order, _ranks(group, self.index, order))
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

    def _own_ranks(self, limit_s: float) -> list[dict[str, Any]]:
        """Return a rank for each device of this node; these ranks meet on the loopback."""
        devices = [f"cuda:{i}" for i in range(self.gpus)] or ["cpu"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {"world": len(devices), "port": free.getsockname()[1], "limit_s": limit_s}
        shared["secret"] = secrets.token_hex(32)
        return [{**shared, "rank": rank, "device": device} for rank, device in enumerate(devices)]

    def _begin_check(self, order: dict[str, Any]) -> None:
        # Tests that compute run in the rank server, where PyTorch is already loaded: loading it for each check takes
        # seconds of processor time.
        argv = [sys.executable, "-m", "slurm_robust.nodecheck", "--stage", "full", "--json", "--only"]
        argv.append(",".join(self.unknown) if order.get("again") else _CHECKS)
        argv += [f"--deadline={order['deadline_s']}"] if "deadline_s" in order else []
        self._begin_child(order, argv, "srobust check")

    def _begin_child(self, order: dict[str, Any], argv: list[str], name: str) -> None:
        path = os.pathsep.join(filter(None, (self.root, os.environ.get("PYTHONPATH", ""))))
        try:
            self.check = _Child(argv, {**os.environ, "PYTHONPATH": path})
        except OSError as error:
            self.tell("result", id=order["id"], error=f"{name} cannot be started: {error.strerror}")
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
            if order["c"] == "tools":
                self.tell("result", id=order["id"], **{kind: "; ".join(found) for kind, found in report.items()})
                return
            wanted = {"unfit": "fail", "unknown": "unknown"}.get(report["verdict"], "")
            self.unknown = [c["name"] for c in report["checks"] if c["status"] == "unknown"]
            reasons = [f"{c['name']}: {c['sentence']}" for c in report["checks"] if c["status"] == wanted]
            self.tell("result", id=order["id"], verdict=report["verdict"], reason="; ".join(reasons))
        except (ValueError, KeyError, TypeError, AttributeError):
            name = "srobust check" if order["c"] == "check" else "the run of NVIDIA's tests"
            self.tell("result", id=order["id"], error=f"{name} ended with {check.process.returncode}, no report")

    def _read_server(self) -> None:
        server = self.server
        assert server is not None
        lines, server.buffer, ended = self._lines(server.stdout, server.buffer)
        for line in lines:
            found = None
            with contextlib.suppress(ValueError):
                found = json.loads(line)
            if isinstance(found, dict):
                self._server_says(found)
            elif line.strip():  # whatever the training's Python says when it starts
                self._foreign = line.decode("utf-8", "replace").strip()[:200]
        if ended:
            self.selector.unregister(server.stdout)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(_TERM_S)  # so that its exit code is its own, and not of our signal
            server.end()
            self.server = None
            self._loading_ended(server.process.returncode)
            if self.order and self.order["c"] not in _CHILDS:
                self.tell("result", id=self.order["id"], error="its rank server has ended")
                self.order = {}

    def _loading_ended(self, code: int) -> None:
        """Report that the rank server has ended before it told whether it can work."""
        if self._loaded:
            return
        said = f"; it said: {self._foreign}" if self._foreign else ""
        if code < 0:  # which says nothing about the Python: the devices stay untested
            why = f"{self.rank_python} was killed while it loaded PyTorch (signal {-code}){said}"
            self.tell("ready", gpus=0, busy="", reason=why)
        else:
            self.tell("no_torch", reason=f"{self.rank_python} ended with {code} before it had loaded PyTorch{said}")

    def _server_says(self, message: dict[str, Any]) -> None:
        self._loaded = self._loaded or "no_torch" in message or "ready" in message
        if "no_torch" in message:
            self.tell("no_torch", reason=message["no_torch"])
        elif "ready" in message:
            found = message["ready"]
            self.gpus = found.get("count", 0)
            reason = found.get("error", "") or ("its GPUs do not answer" if found.get("late") else "")
            self.tell("ready", gpus=found.get("count", 0), busy=found.get("busy", ""), reason=reason)
        elif self.order and message.get("id") == self.order["id"]:
            order, self.order = self.order, {}
            if order["c"] == "pairs":
                self.tell("result", id=order["id"], **_together(message["results"]))
                return
            kind = "digests" if order["c"] == "step" else "rank"
            for rank, result in zip(self.ranks, message["results"], strict=False):
                self.tell(kind, id=order["id"], device=rank["device"], **result)
            self.tell("result", id=order["id"])

    def _late(self) -> None:
        """Kill a process that did not keep its own limit, and start a new rank server if needed."""
        order, self.order = self.order, {}
        self.tell("result", id=order["id"], late=True)
        child = self.check if order["c"] in _CHILDS else self.server
        if child is not None:
            self.selector.unregister(child.stdout)
            child.end()
        if order["c"] in _CHILDS:
            self.check = None
        else:
            self._start_server()


def cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name: two clusters on one machine may have nodes with equal names.

    A step always has SLURM_WORKING_CLUSTER (`name:host:port:…`), but SLURM_CLUSTER_NAME only in some jobs.
    """
    return environ.get("SLURM_WORKING_CLUSTER", "").partition(":")[0] or environ.get("SLURM_CLUSTER_NAME", "")


def _step() -> str:
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"


def _ranks(group: list[Any], index: int, order: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ranks of this node in its group: one for each GPU, one on the CPU if there is no GPU."""
    port, host, members = group
    world = sum(max(1, gpus) for _, gpus in members)
    first, gpus = 0, 0
    for member, gpus in members:
        if member == index:
            break
        first += max(1, gpus)
    devices = [f"cuda:{i}" for i in range(gpus)] if gpus else ["cpu"]
    shared = {"world": world, "host": host, "port": port, **{k: order.get(k) for k in ("secret", "limit_s", "shape")}}
    return [{**shared, "rank": first + i, "device": device} for i, device in enumerate(devices)]


def _together(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one result of the ranks of a node: all wrong numbers, the slowest rank, the first failure.

    A failure from before a rank met the others comes first, since it is the rank's own failure.
    """
    found: dict[str, Any] = {}
    failures = [result for result in results if "wrong" not in result]
    if failures:
        return min(failures, key=lambda one: (1 if "unjoined" in one else 2 * ("joined" in one), "late" in one))
    for kind in results[0]["wrong"]:
        found.setdefault("wrong", {})[kind] = sum(result["wrong"][kind] for result in results)
        found.setdefault("gb_per_s", {})[kind] = round(min(result["gb_per_s"][kind] for result in results), 4)
    return found


def main(argv: list[str]) -> int:
    """Run the agent: `ROOT RANK_PYTHON`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return NodeAgent(argv[0], argv[1]).run()
