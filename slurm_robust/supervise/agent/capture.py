"""Takes the stacks of every process of every rank of this node: in parallel, within bounds, without any change to them.

The archive is content-addressed: equal stacks are stored once. `localize/stacks/archive.py` describes its format.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, NamedTuple

from slurm_robust.supervise.agent import procfs, recorder
from slurm_robust.supervise.agent.clock import CLOCK, SystemClock
from slurm_robust.supervise.agent.ranks import Rank, StepProcess
from slurm_robust.supervise.agent.tcp_traffic import TcpTraffic

_ONE_DUMP_S = 5.0
_MAX_THREADS = 64
_MAX_FRAMES = 200


def py_spy_dump(py_spy: str, pid: int, timeout_s: float) -> Any:
    """Run py-spy on one process.

    Use `--nonblocking`: a blocking dump stops every thread, and leaves the process stopped if py-spy itself is killed,
    or at times without a cause (py-spy#390). Never use `--locals`: it prints secrets.

    Returns:
        py-spy's JSON, or a text that says why there is none.
    """
    command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        env = dict(os.environ, RUST_BACKTRACE="0")
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        return f"py-spy did not end within {timeout_s:.0f} s"
    except OSError as error:
        return f"py-spy cannot be started: {error}"
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return (lines[0] if lines else f"py-spy exited with {done.returncode}")[:200]
    try:
        return json.loads(done.stdout)
    except ValueError:
        return "py-spy did not print JSON"


def threads_of(dump: Any, pid: int) -> list[dict[str, Any]]:
    """Turn py-spy's JSON into the archive's threads, outermost frame first.

    The id of a process's first thread is its pid; the name MainThread exists only if `threading` was imported.
    """
    out = []
    for t in dump[:_MAX_THREADS]:
        frames = [[f.get("name", "?"), f.get("filename", ""), f.get("line") or 0] for f in t.get("frames", [])]
        frames.reverse()
        out.append(
            {
                "name": t.get("thread_name") or "",
                "main": t.get("os_thread_id") == pid or t.get("thread_name") == "MainThread",
                "os_thread_id": t.get("os_thread_id") or 0,
                "active": bool(t.get("active")),
                "owns_gil": bool(t.get("owns_gil")),
                "frames": frames[-_MAX_FRAMES:],
            }
        )
    return out


def _process(m: StepProcess, dump: Callable[[int], Any], stacks: dict[str, Any]) -> dict[str, Any]:
    before = procfs.stat(m.pid)
    result = dump(m.pid)
    after = procfs.stat(m.pid)
    key: str | None = None
    error = ""
    if isinstance(result, str):
        error = result
    else:
        threads = threads_of(result, m.pid)
        # Thread ids differ from rank to rank; stacks that differ only in them count as equal.
        text = json.dumps([dict(t, os_thread_id=0) for t in threads], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        stacks.setdefault(key, threads)
    now = after or before
    return {
        "pid": m.pid,
        "ppid": m.ppid,
        "state": before.state if before else "X",
        "command": procfs.command_line(m.pid) or m.command,
        "cpu_s": now.cpu_s if now else -1.0,
        "io_bytes": procfs.io_bytes(m.pid),
        "wchan": procfs.wchan(m.pid),
        "error": error,
        "os_threads": now.threads if now else -1,
        "stack": key,
    }


def _last_sign_s(progress: Any, now_s: float) -> float:
    return now_s - float(progress["age_s"]) if progress else 0.0


def _read_recorder(rank: Rank, last_sign_s: float, clock: SystemClock) -> recorder.Reading:
    """Return the dump that an earlier capture asked for, and ask for the next dump."""
    reading = recorder.take(rank.main, rank.rank, last_sign_s, clock)
    recorder.ask(rank.main, rank.rank)
    return reading


class CaptureOptions(NamedTuple):
    """Options of a capture.

    `timeout_s` limits the whole capture: a process that is not reached in time has an `error`. With `with_recorder`,
    ranks are asked for the dumps of their flight recorders, too, and dumps that were asked for before are taken.
    """

    node: str
    round_number: int
    py_spy: str
    timeout_s: float
    with_recorder: bool = True


def capture(
    ranks: list[Rank],
    progress: dict[int, Any],
    options: CaptureOptions,
    clock: SystemClock = CLOCK,
    traffic: TcpTraffic | None = None,
) -> dict[str, Any]:
    """Take the stacks of every process of `ranks`; return the archive as a JSON-able object.

    `progress` has each rank's entry of the archive (`step`, `phase`, `age_s`), if known. `traffic` remembers the
    traffic that earlier captures saw.
    """
    started_s = clock.now_s()
    deadline_s = clock.monotonic_s() + options.timeout_s

    def dump(pid: int) -> Any:
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0.05:
            return "no time was left for this process"
        return py_spy_dump(options.py_spy, pid, min(_ONE_DUMP_S, left_s))

    stacks: dict[str, Any] = {}
    with ThreadPoolExecutor(max_workers=max(4, 2 * (os.cpu_count() or 1))) as pool:
        jobs = []
        for r in ranks:
            ordered = [r.main] + [m for m in r.tree if m.pid != r.main.pid]
            # Stacks first: the capture waits for them.
            jobs.append((r, [pool.submit(_process, m, dump, stacks) for m in ordered]))
        moved = pool.submit((traffic or TcpTraffic()).read, ranks)
        readings = {}
        for r in ranks if options.with_recorder else []:
            last_sign_s = _last_sign_s(progress.get(r.rank), started_s)
            readings[r.rank] = pool.submit(_read_recorder, r, last_sign_s, clock)
        entries = []
        for r, futures in jobs:
            processes = [f.result() for f in futures]
            for process in processes:
                process["net_bytes"] = moved.result().get(process["pid"], -1)
            entry = {"rank": r.rank, "progress": progress.get(r.rank), "processes": processes}
            reading = readings[r.rank].result() if r.rank in readings else recorder.Reading()
            if reading.dump is not None or reading.error:
                entry["recorder"] = {"dump": reading.dump, "error": reading.error}
            entries.append(entry)
    return {
        "v": 1,
        "node": options.node,
        "at_s": started_s,
        "round": options.round_number,
        "ranks": entries,
        "stacks": stacks,
    }
