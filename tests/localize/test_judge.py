from collections.abc import Sequence
from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    EVALUATE,
    FEEDER,
    IMPORT,
    LOADER_WAIT,
    MAIN,
    SAVE,
    SYNC_BUFFERS,
    USER,
    USER_LOCK,
    WORKER_HTTP,
    WORKER_IDLE,
    WORKER_LOCK,
    WORKER_NATIVE,
    capture,
    evidence,
    frames,
    in_loader,
    process,
    rank,
    repeated,
    signal,
    waiting,
)

from slurm_robust.localize.evidence import CapturedProcess, CapturedThread, Evidence, RankCapture, StackFrame
from slurm_robust.localize.judge import judge
from slurm_robust.model import Conclusion, SignalKind, Verdict

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


# Someone is at fault.


def test_loader_deadlock_twice() -> None:
    """A loader that stands in a lock in two captures while all others wait: its node, corroborated."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK)))))
    assert verdict.conclusion is Conclusion.CULPRIT
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert verdict.suspects[0].infrastructure
    assert "data loader" in verdict.suspects[0].why


def test_a_reason_is_one_short_sentence() -> None:
    """Node, fault and evidence in about a hundred characters; what was seen besides is told as detail."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK)))))
    assert verdict.reason == verdict.suspects[0].why
    assert verdict.reason.startswith("rank 1 on n1: its data loader hangs at ")
    assert len(verdict.reason) <= 100
    assert "captures over" in verdict.suspects[0].detail
    assert "while ranks 0,2-3 wait at" in verdict.detail


def test_loader_deadlock_once() -> None:
    """One capture names it, with less confidence, and says that a second one is missing."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_LOCK))), times=1))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated
    assert verdict.suspects[0].confidence <= 0.6
    assert verdict.missing


def test_lost_item() -> None:
    """The rank waits for data and all its workers wait for work: nothing will come any more."""
    verdict = judge(repeated(*with_peers(in_loader(1, process(WORKER_IDLE)))))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated


@pytest.mark.parametrize(
    "suspect",
    [
        rank(1, process(USER, state="T")),
        rank(1, process(None, state="T")),
        in_loader(1, process(WORKER_IDLE, state="T")),
        rank(1, process(ALL_REDUCE, wchan="do_freezer_trap")),
        rank(1, process(SAVE, state="T")),
    ],
    ids=["rank", "without a stack", "its loader", "frozen by a cgroup", "in a checkpoint"],
)
def test_stopped(suspect: RankCapture) -> None:
    """A stopped process in a rank's tree, in both captures: whatever its stack is."""
    verdict = judge(repeated(*with_peers(suspect)))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert verdict.suspects[0].infrastructure


def test_stopped_once_is_not_enough() -> None:
    """py-spy or a debugger may stop a process for a moment."""
    going = capture(1000.0, *with_peers(rank(1, process(USER))))
    stopped = capture(1005.0, *with_peers(rank(1, process(USER, state="T"))))
    verdict = judge(evidence(going, stopped))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated


def test_lone_rank_stopped() -> None:
    """There is nobody to wait for it, and still it cannot go on."""
    assert judge(repeated(rank(0, process(USER, state="T")))).corroborated


def test_uninterruptible_for_as_long_as_the_kernel_calls_hung() -> None:
    """D state outside storage code for 130 s is a fault; for 5 s it may be a slow read."""
    suspect = rank(1, process(USER, state="D", wchan="os_acquire_rwlock"))
    short, long = repeated(*with_peers(suspect)), repeated(*with_peers(suspect), times=3, every_s=65.0)
    assert named(judge(short)) == named(judge(long)) == [("n1", (1,))]
    assert not judge(short).corroborated
    assert judge(long).corroborated


def test_whole_node_outside() -> None:
    """Several ranks of one node outside the collective are one suspect."""
    peers = [waiting(n, node=f"n{n // 2}") for n in range(8) if n // 2 != 1]
    loaders = [in_loader(n, process(WORKER_LOCK), node="n1") for n in (2, 3)]
    verdict = judge(repeated(*peers, *loaders))
    assert named(verdict) == [("n1", (2, 3))]
    assert verdict.corroborated


def test_silent_agent_twice() -> None:
    """A node whose agent is gone in both captures, the others waiting."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [capture(t, *PEERS, missing=["n1"]) for t in (1000.0, 1005.0)]
    verdict = judge(evidence(*captures, nodes=nodes))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    once = judge(evidence(captures[1], nodes=nodes))
    assert named(once) == [("n1", (1,))]
    assert not once.corroborated


def test_an_agents_silence_is_counted_once() -> None:
    """The supervisor reports a missing answer as a signal too; that does not make it two."""
    nodes = {n: f"n{n}" for n in range(4)}
    once = evidence(
        capture(1000.0, *PEERS, waiting(1)),
        capture(1005.0, *PEERS, missing=["n1"]),
        nodes=nodes,
        signals=[signal(SignalKind.AGENT_SILENT, "n1")],
    )
    assert not judge(once).corroborated
    both = replace(once, node_signals=(signal(SignalKind.NODE_NOT_RESPONDING, "n1"),))
    assert judge(both).corroborated


def test_node_down_without_captures() -> None:
    """Slurm's word is enough."""
    verdict = judge(Evidence(2, {0: "n0", 1: "n1"}, node_signals=(signal(SignalKind.NODE_DOWN, "n1", "DOWN"),)))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated


def test_node_fault_while_all_wait() -> None:
    """Stacks alone cannot tell; an XID on one node can."""
    ranks = [waiting(n) for n in range(4)]
    verdict = judge(repeated(*ranks, signals=[signal(SignalKind.NODE_FAULT, "n2", "XID 79")]))
    assert named(verdict) == [("n2", (2,))]
    assert verdict.corroborated
    assert "XID 79" in verdict.reason


def test_visible_culprit_beats_a_fault_report_elsewhere() -> None:
    """A link that flapped on another node does not explain a loader's deadlock here."""
    ranks = with_peers(in_loader(1, process(WORKER_LOCK)))
    verdict = judge(repeated(*ranks, signals=[signal(SignalKind.NODE_FAULT, "n3", "link flapped")]))
    assert named(verdict) == [("n1", (1,))]


def test_user_lock_is_the_rank_not_the_node() -> None:
    """A deadlock in the program's own code: the rank, late, and nothing about its node."""
    verdict = judge(repeated(*with_peers(rank(1, process(USER_LOCK))), times=5))
    assert named(verdict) == [("n1", (1,))]
    assert verdict.corroborated
    assert not verdict.suspects[0].infrastructure


def test_left_behind() -> None:
    """All wait, one of them five steps behind: named, but not acted on by that alone."""
    behind = rank(1, process(ALL_REDUCE), step=15)
    verdict = judge(repeated(*with_peers(behind)))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated


# Nobody is at fault, or nobody can tell.


def test_all_in_the_same_collective() -> None:
    """A link fault leaves every rank there; stacks cannot name a node, and the verdict says what would."""
    verdict = judge(repeated(*[waiting(n) for n in range(4)], times=4, every_s=60.0))
    assert_nobody(verdict, Conclusion.UNDETERMINED)
    assert any("flight recorder" in what for what in verdict.missing)


def test_wrong_order_of_collectives() -> None:
    """One rank in a barrier, the others in an all-reduce: code, or a lost message; no node."""
    verdict = judge(repeated(*with_peers(waiting(1, BARRIER)), times=4))
    assert_nobody(verdict, Conclusion.UNDETERMINED)


def test_progress_is_innocence() -> None:
    """A step completed between the captures ends every suspicion."""
    before = capture(1000.0, *with_peers(in_loader(1, process(WORKER_LOCK))))
    later = [replace(r, progress=replace(r.progress, step=21)) if r.progress else r for r in before.ranks]
    assert_nobody(judge(evidence(before, capture(1005.0, *later))), Conclusion.NONE)


def test_nothing_known() -> None:
    """No evidence, no culprit."""
    assert_nobody(judge(Evidence(4, {n: f"n{n}" for n in range(4)})), Conclusion.UNDETERMINED)


def test_suspended_job() -> None:
    """Every rank stopped: Slurm's suspend, a preemption."""
    assert_nobody(judge(repeated(*[rank(n, process(USER, state="T")) for n in range(4)])), Conclusion.NONE)


def test_all_wait_for_data() -> None:
    """Every rank stands in its loader: shared storage, no node."""
    verdict = judge(repeated(*[in_loader(n, process(WORKER_NATIVE)) for n in range(4)], times=4, every_s=60.0))
    assert_nobody(verdict, Conclusion.UNDETERMINED)


def test_most_nodes_outside() -> None:
    """Loaders of three of four nodes stand: what they share is at fault."""
    ranks = [*(in_loader(n, process(WORKER_LOCK)) for n in range(3)), waiting(3)]
    assert_nobody(judge(repeated(*ranks)), Conclusion.UNDETERMINED)


def test_most_nodes_silent() -> None:
    """More silent nodes than half: the network, or ourselves."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [capture(t, waiting(0), missing=["n1", "n2", "n3"]) for t in (1000.0, 1005.0)]
    assert_nobody(judge(evidence(*captures, nodes=nodes)), Conclusion.UNDETERMINED)


def test_lost_agent_of_a_moving_job() -> None:
    """An agent killed beside healthy ranks: the others move, so its node is not blamed."""
    nodes = {n: f"n{n}" for n in range(4)}
    captures = [
        capture(1000.0 + i, *(rank(n, process(EVALUATE, cpu_s=float(i))) for n in (0, 2, 3)), missing=["n1"])
        for i in (0, 5)
    ]
    assert_nobody(judge(evidence(*captures, nodes=nodes)), Conclusion.UNDETERMINED)


def test_endless_loop_is_told_from_motion() -> None:
    """Busy at one line: slow or endless, nobody can tell yet; no node."""
    captures = [capture(1000.0 + t, *with_peers(rank(1, process(USER, cpu_s=t, state="R")))) for t in (0, 5, 10)]
    assert_nobody(judge(evidence(*captures)), Conclusion.UNDETERMINED)


# Clean runs, looked at with suspicion: never corroborated, however long it takes.


def _unmoved(suspect: RankCapture, minutes: int = 10) -> Evidence:
    return repeated(*with_peers(suspect), times=minutes + 1, every_s=60.0)


@pytest.mark.parametrize(
    "suspect",
    [
        rank(1, process(SAVE)),
        rank(1, process(SAVE, state="D", wchan="folio_wait_bit_common")),
        rank(1, process((*SAVE, StackFrame("write", "/home/u/store.py", 9)), wchan="hrtimer_nanosleep")),
        rank(1, process(EVALUATE)),
        rank(1, process(EVALUATE, wchan="futex_do_wait")),
        rank(1, process((*EVALUATE, *frames("wait threading.py:327")))),
        rank(1, process(IMPORT)),
        rank(1, process(IMPORT, state="D", wchan="rpc_wait_bit_killable")),
        rank(1, process(USER, wchan="hrtimer_nanosleep")),
        rank(1, process(USER, wchan="futex_do_wait")),
        rank(1, process(frames(*MAIN, "fetch /home/u/a.py:3", "get requests/api.py:73", "readinto socket.py:706"))),
        rank(1, process(frames(*MAIN, "sync /home/u/a.py:3", "Popen._wait subprocess.py:2000"), wchan="do_wait")),
        rank(1, process(frames(*MAIN, "download_weights /home/u/a.py:3", "result concurrent/futures/_base.py:451"))),
        rank(1, process(frames(*MAIN, "_compile torch/_dynamo/convert_frame.py:9", "wait threading.py:327"))),
        rank(1, process(USER_LOCK), phase="checkpoint"),
        rank(1, process(USER_LOCK), phase="evaluate"),
        rank(1, process(USER, state="t")),
        rank(1, process(None)),
        in_loader(1, process(None, command="pt_data_worker")),
    ],
    ids=["save", "save in D state", "sleeping store", "evaluate", "evaluate in C++", "evaluate with a pool", "import",
         "import over NFS", "retry sleep", "native pool", "http", "child process", "download", "compile",
         "announced checkpoint", "announced evaluation", "debugger", "no stack", "loader without a stack"],
)  # fmt: skip
def test_never_by_stacks_alone(suspect: RankCapture) -> None:
    """Checkpoints, evaluation, start-up and the program's own calls may stand still for ten minutes."""
    assert not judge(_unmoved(suspect)).corroborated


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
        (process(WORKER_NATIVE, state="D", wchan="nfs_wait_bit_killable"), 120),
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


def test_common_synchronisation_point_names_nobody() -> None:
    """Under NCCL all may stand at `.item()`: one line of the program, no collective, no node."""
    item = frames(*MAIN, "train_step /home/u/train.py:80")
    assert_nobody(judge(repeated(*[rank(n, process(item)) for n in range(4)], times=4)), Conclusion.UNDETERMINED)


def test_peers_at_a_common_line_ask_for_more_time() -> None:
    """Where the others stand at `.item()`, a loader's deadlock is named at once and acted on later."""
    item = [rank(n, process(frames(*MAIN, "train_step /home/u/train.py:80"))) for n in (0, 2, 3)]
    ranks = with_peers(in_loader(1, process(WORKER_LOCK)), item)
    assert named(judge(repeated(*ranks))) == [("n1", (1,))]
    assert not judge(repeated(*ranks)).corroborated
    assert judge(repeated(*ranks, times=5)).corroborated


# Hosts that wait for their GPUs: at several places, with a processor at work.


def _spinning(number: int, t: float, function: str) -> RankCapture:
    stack = frames(*MAIN, f"{function} /home/u/train.py:80")
    return rank(number, process(stack, state="R", cpu_s=t))


def _beside_spinners(suspect: RankCapture, times: int = 5) -> Evidence:
    places = ("train_step", "log_loss", "clip", "train_step", "log_loss")
    captures = [
        capture(1000.0 + 5 * n, *(_spinning(2 + i, 5.0 * n, at) for i, at in enumerate(places)), suspect)
        for n in range(times)
    ]
    return evidence(*captures)


def test_a_loader_that_hangs_while_hosts_spin_for_their_gpus() -> None:
    """The others stand at three places and use their processors: the loader is named, and not acted on by that."""
    verdict = judge(_beside_spinners(in_loader(1, process(WORKER_LOCK))))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated
    assert any("they use a processor" in what for what in verdict.missing)


def test_at_rest_at_several_places_without_a_processor() -> None:
    """The same with hosts that sleep for their GPUs: named, and acted on after the longer time."""
    places = ("train_step", "log_loss", "clip", "train_step", "log_loss")
    others = [rank(2 + i, process(frames(*MAIN, f"{at} /home/u/train.py:80"))) for i, at in enumerate(places)]
    ranks = with_peers(in_loader(1, process(WORKER_LOCK)), others)
    assert named(judge(repeated(*ranks))) == [("n1", (1,))]
    assert not judge(repeated(*ranks)).corroborated
    assert judge(repeated(*ranks, times=6)).corroborated


def test_spinners_alone_name_nobody() -> None:
    """Nothing is seen to hold any of them."""
    assert_nobody(judge(_beside_spinners(_spinning(1, 0.0, "augment"))), Conclusion.UNDETERMINED, Conclusion.NONE)


def test_a_loader_beside_ranks_that_evaluate() -> None:
    """The others evaluate, each at one place for long: no reason to name a loader that waits."""
    others = [rank(n, process(EVALUATE, state="R")) for n in (2, 3, 4, 5)]
    assert_nobody(
        judge(repeated(*others, in_loader(1, process(WORKER_LOCK)), times=5)), Conclusion.UNDETERMINED, Conclusion.NONE
    )


def test_a_fault_report_while_hosts_spin() -> None:
    """An XID on one node explains why all others spin; how sure that is, says that they use a processor."""
    seen = _beside_spinners(_spinning(1, 0.0, "train_step"))
    verdict = judge(replace(seen, node_signals=(signal(SignalKind.NODE_FAULT, "n3", "XID 79"),)))
    assert named(verdict) == [("n3", (3,))]
    assert not verdict.corroborated


def test_an_evaluation_that_uses_some_processor_time_is_not_blamed() -> None:
    """On a crowded node it gets a tenth of a processor at one line: neither still nor surely at work, so nobody."""
    captures = [
        capture(1000.0 + 5 * n, rank(0, process(EVALUATE, cpu_s=10 + 0.5 * n)), *(waiting(r) for r in (1, 2, 3)))
        for n in range(3)
    ]
    found = judge(evidence(*captures))
    assert (found.conclusion, found.suspects) == (Conclusion.UNDETERMINED, ())
    assert "may be at work" in found.reason
