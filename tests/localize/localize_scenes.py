"""Ranks, captures and evidence for tables of tests; frames as py-spy 0.4.3 showed them on torch 2.13 over gloo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_robust.core.model import Conclusion, Signal, SignalKind, Verdict
from slurm_robust.localize.evidence import (
    Capture,
    CapturedProcess,
    CapturedThread,
    Evidence,
    Progress,
    RankCapture,
    RankExit,
    StackFrame,
)
from slurm_robust.localize.stacks.archive import NodeArchive, encode

SITE = "/opt/env/lib/python3.11/site-packages/"
STD = "/usr/lib/python3.11/"


def frames(*labels: str) -> tuple[StackFrame, ...]:
    """`function file:line` each, outermost first; `torch/…` goes into site-packages, the rest into the library."""
    made = []
    for label in labels:
        function, place = label.split(" ")
        file, _, line = place.rpartition(":")
        if file.startswith("torch/"):
            file = SITE + file
        elif not file.startswith(("/", "<")):
            file = STD + file
        made.append(StackFrame(function, file, int(line)))
    return tuple(made)


MAIN = ("<module> /home/u/train.py:90", "main /home/u/train.py:57")
SYNC_BUFFERS = frames(
    *MAIN,
    "Module._call_impl torch/nn/modules/module.py:1789",
    "DistributedDataParallel.forward torch/nn/parallel/distributed.py:1886",
    "DistributedDataParallel._sync_buffers torch/nn/parallel/distributed.py:2425",
    "DistributedDataParallel._distributed_broadcast_coalesced torch/nn/parallel/distributed.py:2363",
)
ALL_REDUCE = frames(
    *MAIN,
    "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83",
    "all_reduce torch/distributed/distributed_c10d.py:3252",
)
BARRIER = frames(
    *MAIN,
    "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83",
    "barrier torch/distributed/distributed_c10d.py:5356",
)
BACKWARD = frames(
    *MAIN,
    "Tensor.backward torch/_tensor.py:623",
    "backward torch/autograd/__init__.py:395",
    "_engine_run_backward torch/autograd/graph.py:979",
)
_QUEUE_GET = (
    "Queue.get multiprocessing/queues.py:113",
    "_ConnectionBase.poll multiprocessing/connection.py:257",
    "wait multiprocessing/connection.py:947",
    "_PollLikeSelector.select selectors.py:415",
)
LOADER_WAIT = frames(
    *MAIN,
    "_BaseDataLoaderIter.__next__ torch/utils/data/dataloader.py:725",
    "_MultiProcessingDataLoaderIter._next_data torch/utils/data/dataloader.py:1505",
    "_MultiProcessingDataLoaderIter._try_get_data torch/utils/data/dataloader.py:1291",
    *_QUEUE_GET,
)
_WORKER = (
    *MAIN,
    "DataLoader.__iter__ torch/utils/data/dataloader.py:505",
    "Popen._launch multiprocessing/popen_fork.py:71",
    "BaseProcess._bootstrap multiprocessing/process.py:314",
    "BaseProcess.run multiprocessing/process.py:108",
)
WORKER_IDLE = frames(*_WORKER, "_worker_loop torch/utils/data/_utils/worker.py:334", *_QUEUE_GET)
_FETCH = (
    *_WORKER,
    "_worker_loop torch/utils/data/_utils/worker.py:374",
    "_MapDatasetFetcher.fetch torch/utils/data/_utils/fetch.py:54",
    "Data.__getitem__ /home/u/data.py:12",
)
WORKER_LOCK = frames(*_FETCH, "Event.wait threading.py:629", "Condition.wait threading.py:327")
WORKER_NATIVE = frames(*_FETCH)
WORKER_HTTP = frames(*_FETCH, "get requests/api.py:73", "readinto socket.py:706", "recv_into ssl.py:1314")
USER = frames(*MAIN, "augment /home/u/train.py:31")
USER_LOCK = frames(*MAIN, "drain /home/u/train.py:31", "Condition.wait threading.py:327")
EVALUATE = frames(*MAIN, "evaluate /home/u/train.py:40")
SAVE = frames(*MAIN, "save torch/serialization.py:1003", "_save torch/serialization.py:1259")
SHUTDOWN = frames("_shutdown threading.py:1590", "join threading.py:1147")
IMPORT = (*frames("<module> /home/u/train.py:1"), StackFrame("_find_and_load", "<frozen importlib._bootstrap>", 1178))
FEEDER = CapturedThread(
    frames("Thread._bootstrap threading.py:1002", "Thread.run threading.py:982",
           "Queue._feed multiprocessing/queues.py:231", "Condition.wait threading.py:327"),
    name="QueueFeederThread", os_thread_id=99,
)  # fmt: skip


def process(
    stack: tuple[StackFrame, ...] | None,
    pid: int = 100,
    *,
    state: str = "S",
    cpu_s: float = 5.0,
    io_bytes: int = 1000,
    wchan: str = "",
    command: str = "python train.py",
    side: Iterable[CapturedThread] = (),
    os_threads: int = -1,
) -> CapturedProcess:
    """One process whose main thread has this stack (None: it could not be read)."""
    threads = (CapturedThread(stack, "MainThread", pid, main=True), *side) if stack is not None else ()
    error = "" if threads else "permission denied"
    return CapturedProcess(pid, 1, state, command, cpu_s, io_bytes, wchan, threads, error, os_threads)


def rank(
    number: int, *processes: CapturedProcess, node: str = "", step: int | None = 20, phase: str = "train"
) -> RankCapture:
    """A rank on node `n<number>` unless another is named."""
    progress = None if step is None else Progress(step, phase)
    return RankCapture(number, node or f"n{number}", processes, progress)


def waiting(number: int, stack: tuple[StackFrame, ...] = ALL_REDUCE, node: str = "") -> RankCapture:
    """A rank that waits in a collective."""
    return rank(number, process(stack, side=[FEEDER]), node=node)


def in_loader(number: int, worker: CapturedProcess, node: str = "") -> RankCapture:
    """A rank that waits for its data loader, whose only worker is given."""
    return rank(number, process(LOADER_WAIT, side=[FEEDER]), replace(worker, pid=101), node=node)


def capture(at_s: float, *ranks: RankCapture, missing: Iterable[str] = ()) -> Capture:
    """All ranks at one moment."""
    return Capture(at_s, ranks, tuple(missing))


def evidence(
    *captures: Capture,
    exits: Iterable[RankExit] = (),
    signals: Iterable[Signal] = (),
    nodes: Mapping[int, str] | None = None,
) -> Evidence:
    """Evidence of these captures; ranks and nodes as they show, unless given."""
    known = dict(nodes) if nodes is not None else {r.rank: r.node for c in captures for r in c.ranks}
    return Evidence(len(known), known, captures, tuple(exits), tuple(signals))


def repeated(*ranks: RankCapture, times: int = 2, every_s: float = 5.0, signals: Iterable[Signal] = ()) -> Evidence:
    """The same ranks, unmoved, captured several times."""
    return evidence(*(capture(1000.0 + i * every_s, *ranks) for i in range(times)), signals=signals)


def signal(kind: SignalKind, node: str, detail: str = "") -> Signal:
    """A node signal."""
    return Signal(kind, 1000.0, "test", detail, node)


PEERS = (waiting(0, SYNC_BUFFERS), waiting(2, BACKWARD), waiting(3))


def with_peers(suspect: RankCapture, peers: Sequence[RankCapture] = PEERS) -> tuple[RankCapture, ...]:
    """A suspect among ranks that wait."""
    return (*peers, suspect)


def named(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    """Nodes and ranks of the suspects."""
    return [(s.node, s.ranks) for s in verdict.suspects]


def assert_nobody(verdict: Verdict, *conclusions: Conclusion) -> None:
    """No node is named, nothing is corroborated, and there is a sentence."""
    assert verdict.conclusion in conclusions
    assert not verdict.suspects
    assert not verdict.corroborated
    assert verdict.reason


def two_rounds(folder: Path, ranks: Iterable[RankCapture]) -> Path:
    """A folder with two rounds of archives, five seconds apart, one a node and round."""
    folder.mkdir()
    members = list(ranks)
    for number in (1, 2):
        for member in members:
            body = encode(NodeArchive(member.node, 1000.0 + 5 * number, number, (member,)))
            (folder / f"{member.node}.r{number}.json.gz").write_bytes(body)
    return folder
