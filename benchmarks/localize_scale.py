"""How long it takes to fold and judge the stacks of many ranks, how much memory, and what a rank sends.

    python benchmarks/localize_scale.py [--quick] [--json] [--ranks 1000,10000,100000] [--rounds 2]

Each size runs in a process of its own on one core. A rank is one process of 65 threads of 30 frames and one data
loader; eight ranks a node; all but one wait in collectives, and one rank's data loader stands in a lock. Evidence is
built as decoding the nodes' archives leaves it (equal stacks of a node are one object, equal frames one object
everywhere); decoding itself is timed on one node's archive, since archives come in one by one, while the slower nodes
still capture: `decode s` is that time for all nodes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import lib
import scale

from slurm_robust.localize.evidence import (
    Capture,
    CapturedProcess,
    CapturedThread,
    Evidence,
    Progress,
    RankCapture,
    StackFrame,
)
from slurm_robust.localize.judge import judge
from slurm_robust.localize.stacks.archive import NodeArchive, decode, encode
from slurm_robust.localize.stacks.merge import render_tree

SITE = "/opt/env/lib/python3.11/site-packages/"
RANKS_PER_NODE = 8
THREADS, FRAMES = 65, 30
DECODED = 20
"""Times one archive is decoded, for a figure."""
NOTE = "Processor time of one core. Invented stacks, in number and depth like real ones."


def _stack(label: str, *innermost: tuple[str, str]) -> tuple[StackFrame, ...]:
    outer = FRAMES - len(innermost)
    frames = [StackFrame(f"step_{label}_{i}", f"/home/u/project/model_{i % 7}.py", 10 + i) for i in range(outer)]
    frames += [StackFrame(function, file, 100 + i) for i, (function, file) in enumerate(innermost)]
    return tuple(frames)


_C10D = f"{SITE}torch/distributed/distributed_c10d.py"
WAITING = (
    _stack("reduce", ("wrapper", f"{SITE}torch/distributed/c10d_logger.py"), ("all_reduce", _C10D)),
    _stack("gather", ("wrapper", f"{SITE}torch/distributed/c10d_logger.py"), ("all_gather_into_tensor", _C10D)),
    _stack("barrier", ("wrapper", f"{SITE}torch/distributed/c10d_logger.py"), ("barrier", _C10D)),
)
LOADING = _stack(
    "data",
    ("_next_data", f"{SITE}torch/utils/data/dataloader.py"),
    ("get", "/usr/lib/python3.11/multiprocessing/queues.py"),
    ("poll", "/usr/lib/python3.11/multiprocessing/connection.py"),
)
_WORKER = (
    ("_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py"),
    ("_worker_loop", f"{SITE}torch/utils/data/_utils/worker.py"),
)
IDLE = _stack("idle", *_WORKER, ("get", "/usr/lib/python3.11/multiprocessing/queues.py"))
LOCKED = _stack("lock", *_WORKER, ("__getitem__", "/home/u/data.py"), ("wait", "/usr/lib/python3.11/threading.py"))
SIDE = tuple(
    _stack(f"side{n}", ("run", "/usr/lib/python3.11/threading.py"), ("wait", "/usr/lib/python3.11/threading.py"))
    for n in range(THREADS - 1)
)


def _threads(main: tuple[StackFrame, ...], node: int) -> tuple[CapturedThread, ...]:
    side = (CapturedThread(frames, f"pool-{n}", node * 1000 + n + 2) for n, frames in enumerate(SIDE))
    return (CapturedThread(main, "MainThread", node * 1000 + 1, main=True), *side)


def node_of(number: int, guilty: bool, at_s: float) -> NodeArchive:
    """One node's eight ranks; one of them hangs where the node is guilty."""
    name = f"n{number:05}"
    waits = _threads(WAITING[number % len(WAITING)], number)
    idle = (CapturedThread(IDLE, "MainThread", 7, main=True),)
    ranks = []
    for place in range(RANKS_PER_NODE):
        rank = number * RANKS_PER_NODE + place
        hangs = guilty and place == 3
        threads = _threads(LOADING, number) if hangs else waits
        worker = (CapturedThread(LOCKED, "MainThread", 7, main=True),) if hangs else idle
        processes = (
            CapturedProcess(1000 + place, 1, "S", "python train.py", 50.0, 10_000, "futex_do_wait", threads, "", 90),
            CapturedProcess(
                2000 + place, 1000 + place, "S", "pt_data_worker", 5.0, 9_000, "futex_do_wait", worker, "", 1
            ),
        )
        ranks.append(RankCapture(rank, name, processes, Progress(20)))
    return NodeArchive(name, at_s, 1, tuple(ranks))


def evidence(ranks: int, rounds: int) -> Evidence:
    """So many ranks, captured so often, five seconds apart."""
    nodes = ranks // RANKS_PER_NODE
    captures = []
    for number in range(rounds):
        at_s = 1000.0 + 5 * number
        members = tuple(r for n in range(nodes) for r in node_of(n, n == nodes // 2, at_s).ranks)
        captures.append(Capture(at_s, members))
    return Evidence(ranks, {r.rank: r.node for r in captures[0].ranks}, tuple(captures), layout={"tp": 8})


def measure(ranks: int, rounds: int) -> dict[str, object]:
    """One size, in this process."""
    seen = evidence(ranks, rounds)
    started = time.process_time()
    verdict = judge(seen)
    judged_s = time.process_time() - started
    started = time.process_time()
    tree = render_tree(seen.captures[-1])
    folded_s = time.process_time() - started
    data = encode(node_of(1, True, 1000.0))
    decode(data)
    started = time.process_time()
    for _ in range(DECODED):
        decode(data)
    decode_s = (time.process_time() - started) / DECODED
    return {
        "ranks": ranks,
        "judge_s": round(judged_s, 3),
        "fold_s": round(folded_s, 3),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "bytes_a_rank": len(data) // RANKS_PER_NODE,
        "judge_and_fold_s": round(judged_s + folded_s, 3),
        "decode_ms_a_node": round(decode_s * 1e3, 2),
        "decode_s": round(decode_s * ranks / RANKS_PER_NODE, 3),
        "named": [s.node for s in verdict.suspects],
        "tree_lines": len(tree.splitlines()),
    }


def targets(figures: Sequence[Mapping[str, Any]]) -> list[lib.Target]:
    """The design's, where the largest size was measured."""
    large = next((f for f in figures if f["ranks"] == scale.LARGE), None)
    names = [("judge and fold 100,000 ranks", 2.0, "s", "judge_and_fold_s"), ("memory for it", 1024, "MiB", "peak_mib"),
             ("a rank's share of an archive", 4096, "bytes", "bytes_a_rank")]  # fmt: skip
    found = [lib.Target(name, limit, unit, None if large is None else large[key]) for name, limit, unit, key in names]
    return [*found, *scale.growth(figures, "judge_and_fold_s")]


BENCHMARK = scale.ScaleBenchmark(
    __file__,
    __doc__,
    NOTE,
    ("rounds", 2, "captures"),
    measure,
    targets,
    {
        "ranks": "ranks",
        "judge s": "judge_s",
        "fold s": "fold_s",
        "MiB": "peak_mib",
        "bytes a rank": "bytes_a_rank",
        "decode ms a node": "decode_ms_a_node",
        "decode s": "decode_s",
    },
)


if __name__ == "__main__":
    sys.exit(scale.run(BENCHMARK))
