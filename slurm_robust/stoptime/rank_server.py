"""Forks the ranks of the tests on one node, and loads PyTorch once for all, with the training's Python.

Orders come as JSON lines on stdin, and each gets one JSON line on stdout; a line that comes meanwhile ends the order.
When stdin ends, or the agent that started the server dies, the server kills its ranks and ends. Only ranks use CUDA: a
process that has used CUDA cannot fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from slurm_robust.stoptime import node_rank, pair_rank, reference_step

_PR_SET_PDEATHSIG = 1
_DEVICES_LIMIT_S = 30.0
_IN_USE_GIB = 2.0
"""GPU memory in use before any test; a driver takes less than half a GiB."""
_REASON_CHARS = 200


def devices(_: dict[str, Any]) -> dict[str, Any]:
    """Return how many GPUs there are, and which of them another process uses."""
    import torch  # noqa: PLC0415 (loaded by `main`)

    if not torch.cuda.is_available():
        return {"count": 0, "busy": ""}
    busy = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        used_gib = (total - free) / 2**30
        if used_gib > _IN_USE_GIB:
            busy.append(f"cuda:{index} ({used_gib:.0f} of {total / 2**30:.0f} GiB in use)")
    users = _users() if busy else ""
    return {"count": torch.cuda.device_count(), "busy": ", ".join(busy) + users}


def _users() -> str:
    """Return the processes that NVIDIA's tool shows on the GPUs; empty if it cannot be asked."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=True).stdout
        others = [line for line in shown.splitlines() if line.split(",")[0].strip() != str(os.getpid())]
        return f"; processes: {'; '.join(others[:4])}" if others else ""
    return ""


def step(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the reference step on one device."""
    return reference_step.run(spec["device"], spec["repeats"])


WORK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "devices": devices,
    "node": node_rank.run,
    "pair": pair_rank.run,
    "step": step,
}


def die_with_parent() -> None:
    """Have Linux kill this process when its parent dies in any way."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _ForkedRank:
    """One forked rank, and its output so far."""

    def __init__(self, kind: str, spec: dict[str, Any]) -> None:
        self.output, theirs = os.pipe()
        self.text = b""
        self.pid = os.fork()
        if self.pid == 0:
            _be_rank(kind, spec, theirs)
        os.close(theirs)

    def result(self, *, late: bool) -> dict[str, Any]:
        """Return its result, or why there is none; the process has ended when this returns.

        A failure while it joined the others is `unjoined`: a stranger may be the reason. `joined` marks a later
        failure.
        """
        found = self._end(late=late)
        marks = len(self.text) - len(self.text.lstrip(b"\n"))
        if marks == 1:
            return {"unjoined": found.get("error", "the others were not met in time")}
        return {**found, "joined": True} if marks > 1 and "wrong" not in found else found

    def _end(self, *, late: bool) -> dict[str, Any]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.output)
        with contextlib.suppress(ValueError):
            found: dict[str, Any] = json.loads(self.text)
            return found
        if late:
            return {"late": True}
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            return {"error": f"the test's process died of {signal.Signals(os.WTERMSIG(status)).name}"}
        return {"error": "the test's process ended without a result"}


def _be_rank(kind: str, spec: dict[str, Any], output: int) -> None:
    """Do the work in the forked process; never returns."""
    try:
        die_with_parent()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        try:
            # A new line for each step of joining the others, before the result.
            found = WORK[kind]({**spec, "mark": lambda: os.write(output, b"\n")})
        except Exception as error:  # noqa: BLE001 (whatever a library raises is the test's result)
            text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            found = {"error": f"{type(error).__name__}: {text}"[:_REASON_CHARS]}
        os.write(output, json.dumps(found).encode())
    finally:
        # Do not run the parent's clean-up: its buffers and threads do not belong to this process.
        os._exit(0)


def _run(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Run all ranks of an order, side by side; exit if stdin ends meanwhile."""
    ranks = [_ForkedRank(order["kind"], spec) for spec in order["ranks"]]
    end_s = time.monotonic() + order["limit_s"]
    late = False
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.output, selectors.EVENT_READ, rank)
        selector.register(0, selectors.EVENT_READ, None)
        while len(selector.get_map()) > 1 and not late:
            ready = selector.select(max(0.0, end_s - time.monotonic()))
            late = not ready
            for key, _ in ready:
                if key.data is None:
                    # While an order is carried out, only its cancellation can come: a line, or the end of stdin.
                    late = True
                    if not os.read(0, 65536):
                        for rank in ranks:
                            rank.result(late=True)
                        sys.exit(0)
                    continue
                part = os.read(key.fd, 65536)
                key.data.text += part
                if not part:
                    selector.unregister(key.fd)
    return [rank.result(late=late) for rank in ranks]


def _say(message: dict[str, Any]) -> None:
    # On a line of its own, even if the training's Python has begun a line.
    os.write(1, b"\n" + json.dumps(message).encode() + b"\n")


def main() -> None:
    """Serve until stdin ends."""
    die_with_parent()
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except Exception as error:  # noqa: BLE001 (a broken installation raises anything)
        text = next(iter(str(error).splitlines()), "")
        _say({"no_torch": f"{sys.executable} cannot load PyTorch: {type(error).__name__}: {text}"[:_REASON_CHARS]})
        return
    found = _run({"kind": "devices", "ranks": [{}], "limit_s": _DEVICES_LIMIT_S})[0]
    _say({"ready": found, "torch": str(torch.__version__)})
    buffer = b""
    while part := os.read(0, 65536):
        buffer += part
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            order = json.loads(line)
            if "cancel" in order:  # it came too late
                continue
            _say({"id": order["id"], "results": _run(order)})
