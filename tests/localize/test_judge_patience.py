"""How long a rank must stand still before it is acted on, and who stands still for good reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import (
    BACKWARD,
    EVALUATE,
    FEEDER,
    IMPORT,
    LOADER_WAIT,
    MAIN,
    SAVE,
    USER,
    USER_LOCK,
    WORKER_HTTP,
    WORKER_IDLE,
    WORKER_LOCK,
    WORKER_NATIVE,
    assert_nobody,
    capture,
    evidence,
    frames,
    in_loader,
    process,
    rank,
    repeated,
    waiting,
    with_peers,
)

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.evidence import CapturedProcess, CapturedThread, Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge


def _unmoved(suspect: RankCapture, minutes: int = 10) -> Evidence:
    return repeated(*with_peers(suspect), times=minutes + 1, every_s=60.0)


@pytest.mark.parametrize(
    "suspect",
    [
        rank(1, process(SAVE)),
        rank(1, process((*SAVE, StackFrame("write", "/home/u/store.py", 9)), wchan="hrtimer_nanosleep")),
        rank(1, process(EVALUATE)),
        rank(1, process(EVALUATE, wchan="futex_do_wait")),
        rank(1, process((*EVALUATE, *frames("wait threading.py:327")))),
        rank(1, process(IMPORT)),
        rank(1, process(frames(*MAIN, "download_weights /home/u/a.py:3", "result concurrent/futures/_base.py:451"))),
        rank(1, process(frames(*MAIN, "_compile torch/_dynamo/convert_frame.py:9", "wait threading.py:327"))),
        rank(1, process(USER_LOCK), phase="checkpoint"),
        rank(1, process(USER_LOCK), phase="evaluate"),
        rank(1, process(USER, state="t")),
        rank(1, process(None)),
        in_loader(1, process(None, command="pt_data_worker")),
    ],
    ids=["save", "sleeping store", "evaluate", "evaluate in C++", "evaluate with a pool", "import",
         "download", "compile",
         "announced checkpoint", "announced evaluation", "debugger", "no stack", "loader without a stack"],
)  # fmt: skip
def test_never_by_stacks_alone(suspect: RankCapture) -> None:
    """Checkpoints, evaluation and start-up may stand still for ten minutes."""
    assert not judge(_unmoved(suspect)).corroborated


@pytest.mark.parametrize(
    "suspect",
    [
        rank(1, process(USER, wchan="hrtimer_nanosleep")),
        rank(1, process(USER, wchan="futex_do_wait")),
        rank(1, process(frames(*MAIN, "fetch /home/u/a.py:3", "get requests/api.py:73", "readinto socket.py:706"))),
        rank(1, process(frames(*MAIN, "sync /home/u/a.py:3", "Popen._wait subprocess.py:2000"), wchan="do_wait")),
    ],
    ids=["retry sleep", "native pool", "http", "child process"],
)
def test_the_programs_own_calls_are_weak_evidence(suspect: RankCapture) -> None:
    """A rank that stands in a call of its own is named, and its node is not blamed, however long it stands."""
    verdict = judge(_unmoved(suspect))
    assert (verdict.corroborated, verdict.grade) == (True, Grade.WEAK)
    assert not verdict.suspects[0].infrastructure


@pytest.mark.parametrize(
    ("worker", "patient_s"),
    [
        (process(WORKER_LOCK), 4),
        (process(WORKER_NATIVE), 20),
        (process(WORKER_NATIVE, wchan="hrtimer_nanosleep"), 20),
        (process(WORKER_NATIVE, wchan="futex_do_wait", side=[FEEDER], os_threads=2), 4),
        (process(WORKER_NATIVE, wchan="futex_do_wait"), 8),
        (process(WORKER_NATIVE, wchan="futex_do_wait", side=[FEEDER], os_threads=9), 20),
        (process(WORKER_NATIVE, wchan="folio_wait_bit_common"), 120),
        (process(WORKER_NATIVE, wchan="fuse_dev_do_read"), 120),
        (process(WORKER_HTTP), 120),
        (process(WORKER_NATIVE, state="D", wchan="nfs_wait_bit_killable"), 8),
        (process((*WORKER_NATIVE, StackFrame("download_shard", "/home/u/data.py", 9))), 120),
    ],
    ids=["lock", "native", "sleep", "plain lock", "futex", "native pool", "page", "fuse", "http", "nfs", "download"],
)
def test_patience_with_a_loader(worker: CapturedProcess, patient_s: int) -> None:
    """A loader's stillness counts the later the more likely it is slow storage, a download or a retry."""
    worker = replace(worker, command="pt_data_worker")
    ranks = with_peers(in_loader(1, worker))
    early = repeated(*ranks, times=4, every_s=(patient_s - 1) / 3)
    late = repeated(*ranks, times=4, every_s=(patient_s + 1) / 3)
    assert not judge(early).corroborated
    assert judge(late).corroborated


def test_a_lock_that_a_thread_at_work_may_open() -> None:
    """A worker in a Python lock with another thread in native code is not a deadlock yet."""
    side = CapturedThread((StackFrame("pull", "/home/u/data.py", 4),), "pull", 7)
    ranks = with_peers(in_loader(1, process(WORKER_LOCK, side=[side])))
    assert not judge(repeated(*ranks)).corroborated


@pytest.mark.parametrize(
    "after",
    [
        process(WORKER_LOCK, cpu_s=5.3),
        process(WORKER_LOCK, cpu_s=9.0),
        process(WORKER_LOCK, io_bytes=10**6),
        process(WORKER_IDLE),
        process(WORKER_LOCK, pid=555),
    ],
    ids=["a little CPU", "busy", "bytes", "another stack", "a new worker"],
)
def test_a_loader_that_moves(after: CapturedProcess) -> None:
    """Anything that moves in the suspect's tree keeps it from being acted on."""
    first = capture(1000.0, *with_peers(in_loader(1, process(WORKER_LOCK))))
    moved = rank(1, process(LOADER_WAIT), replace(after, pid=101 if after.pid == 100 else after.pid))
    assert not judge(evidence(first, capture(1005.0, *with_peers(moved)))).corroborated


def test_peers_at_work_in_backward() -> None:
    """A long backward pass on the others' CPUs is not waiting: the loader is just slow, or idle."""
    captures = [
        capture(
            1000.0 + t, *(rank(n, process(BACKWARD, cpu_s=t)) for n in (0, 2, 3)), in_loader(1, process(WORKER_LOCK))
        )
        for t in (0, 5)
    ]
    assert not judge(evidence(*captures)).corroborated


def test_peers_that_only_just_began_to_wait() -> None:
    """The others waited in the last capture only."""
    first = capture(1000.0, *(rank(n, process(USER)) for n in (0, 2, 3)), in_loader(1, process(WORKER_LOCK)))
    second = capture(1005.0, *with_peers(in_loader(1, process(WORKER_LOCK))))
    assert not judge(evidence(first, second)).corroborated


def test_too_many_ranks_unseen() -> None:
    """With a third of the ranks unreadable, the source may be among them."""
    peers = [waiting(0), waiting(2), rank(3, process(None)), rank(4, process(None))]
    verdict = judge(repeated(*peers, in_loader(1, process(WORKER_LOCK))))
    assert not verdict.corroborated
    assert any("no stack of ranks 3-4" in what for what in verdict.missing)


def test_first_evaluation_on_rank_0() -> None:
    """Rank 0 evaluates with moving stacks while the others wait: no culprit."""
    lines = [frames(*MAIN, f"evaluate /home/u/train.py:{40 + n}") for n in range(4)]
    peers = (waiting(1), waiting(2), waiting(3))
    captures = [capture(1000.0 + 5 * n, rank(0, process(s, cpu_s=5 * n)), *peers) for n, s in enumerate(lines)]
    assert_nobody(judge(evidence(*captures)), Conclusion.NONE)
