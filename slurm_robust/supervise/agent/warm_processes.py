"""Finds this node's warm processes: Pythons that have imported what the ranks import, and wait for their release.

They run `warm/hook/srobust_warm_gate.py`, which defines the orders. They are found like ranks, by the attempt in their
environment, which has not begun. Each process answers in milliseconds; a process that does not is frozen, and is
skipped.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from typing import Any

from slurm_robust.supervise.agent import packing, procfs
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.ranks import ProcessFinder, Rank
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer

RECORD_LINK = "/memfd:srobust-imports"
"""The link of the descriptor in which a rank records its imports begins so."""
ANSWER_SHARE, GO_SHARE = 0.8, 0.9
"""Of the time that the supervisor waits: for a process's answer, and for it to read its release.

One that reads it later does not start the program: another step has been started."""
_PEER = struct.Struct("3i")
_MOST_BYTES = 4 << 20
_CGROUPS = "/sys/fs/cgroup"
_NO_LIMIT = 1 << 60


def answer(finder: ProcessFinder, request: AskWarm, ranks: list[Rank], clock: SystemClock) -> WarmAnswer:
    """Carry out a request of the supervisor.

    The finder remembers the processes that it has read: between two requests about one attempt there is little to read.
    """
    node, number = finder.target.node, request.request_id
    if request.order == "record":
        records = (imports_of(rank.main.pid) for rank in ranks)
        packed = next((packing.pack(record) for record in records if record), "")
        return WarmAnswer(node, number, packed=packed)
    if request.order == "room":
        return WarmAnswer(node, number, available_bytes=available_bytes(os.getpid()))
    order: dict[str, Any] = {"order": "state" if request.order == "memory" else request.order}
    if request.packed:
        try:
            order.update(json.loads(packing.unpack(request.packed)))
        except ValueError:
            return WarmAnswer(node, number)
    if request.order == "go":
        order["until_s"] = clock.monotonic_s() + GO_SHARE * request.within_s
    if finder.target.attempt != request.attempt:
        finder.watch(request.attempt)
    pids = [p.pid for p in finder.processes()]
    states = _ask_all(pids, json.dumps(order).encode() + b"\n", ANSWER_SHARE * request.within_s)
    wanted = "went" if request.order == "go" else "ready"
    refused = next((s for s in states if s.get("refused")), {})
    ready = [s for s in states if s.get(wanted) is True]
    return WarmAnswer(
        node,
        number,
        tuple(sorted(int(s["task"]) for s in ready)),
        str(refused.get("refused", ""))[:300],
        str(refused.get("offender", ""))[:200],
        min((int(s.get("modules", 0)) for s in ready), default=0),
        max((float(s.get("seconds", 0.0)) for s in ready), default=0.0),
        sum(map(own_bytes, pids)) if request.order == "memory" else 0,
        available_bytes(os.getpid()) if request.order == "memory" else -1,
    )


def _ask_all(pids: list[int], order: bytes, within_s: float) -> list[dict[str, Any]]:
    """Return the answers of the processes that answer in time."""
    states: list[dict[str, Any]] = []
    threads = [threading.Thread(target=_ask, args=(pid, order, within_s, states), daemon=True) for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return states


def _ask(pid: int, order: bytes, within_s: float, states: list[dict[str, Any]]) -> None:
    reply = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(within_s)
            connection.connect(f"\0srobust-warm-{pid}")
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(peer)[:2] != (pid, os.getuid()):
                return
            connection.sendall(order)
            while not reply.endswith(b"\n") and len(reply) < 1 << 16:
                piece = connection.recv(4096)
                if not piece:
                    return
                reply += piece
        state = json.loads(reply)
        int(state["task"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    states.append(state)


def imports_of(pid: int) -> str:
    """Return the imports of a rank so far, as the rank records them; empty if it does not."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.readlink(f"{folder}/{name}").startswith(RECORD_LINK):
                with open(f"{folder}/{name}", "rb") as file:
                    # The last line may be half written.
                    return os.pread(file.fileno(), _MOST_BYTES, 0).rpartition(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        pass
    return ""


def own_bytes(pid: int) -> int:
    """Return the memory that a process does not share, in bytes; 0 if it is not known."""
    total = 0
    for line in procfs.memory_map_totals(pid):
        key, _, value = line.partition(b":")
        if key in (b"Private_Clean", b"Private_Dirty"):
            total += int(value.split()[0]) << 10
    return total


def available_bytes(pid: int, root: str = _CGROUPS) -> int:
    """Return how much memory a process like this one may still take, by the node and by every cgroup above it."""
    free = [_meminfo_bytes(), *(_free_in_cgroup(folder) for folder in _memory_cgroups(procfs.cgroup(pid), root))]
    known = [size for size in free if size >= 0]
    return min(known, default=-1)


def _meminfo_bytes() -> int:
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return -1


def _memory_cgroups(lines: str, root: str) -> list[str]:
    """Return the folders of a process's memory cgroup and of all cgroups above it, of version 1 or 2."""
    found: list[str] = []
    for line in lines.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        top = root if number == "0" else os.path.join(root, "memory")
        if number == "0" or "memory" in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            found += [os.path.join(top, *parts[: i + 1]) for i in range(len(parts))]
    return found


def _free_in_cgroup(folder: str) -> int:
    """Return the bytes that are left below a cgroup's limit, with page cache that it can free; -1 for no limit."""
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", b"inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file "),
    ):
        try:
            with open(os.path.join(folder, limit_name), "rb") as file:
                limit = int(file.read())
            with open(os.path.join(folder, used_name), "rb") as file:
                used = int(file.read())
            with open(os.path.join(folder, "memory.stat"), "rb") as file:
                cached = next((int(line.split()[1]) for line in file if line.startswith(cache)), 0)
        except (OSError, ValueError):
            continue
        if limit < _NO_LIMIT:
            return max(0, limit - used + cached)
    return -1
