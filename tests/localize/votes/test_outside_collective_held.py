"""Hosts that wait for their GPU use a processor anywhere in the step: who is held is told from them all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from localize_scenes import ALL_REDUCE, USER, WORKER_LOCK, capture, evidence, frames, in_loader, process, rank, signal

from slurm_robust.core.model import Conclusion, SignalKind
from slurm_robust.localize.evidence import CapturedThread, Evidence, RankCapture
from slurm_robust.localize.judge import judge
from slurm_robust.localize.stacks import motion
from slurm_robust.localize.stacks.place import place_of
from slurm_robust.localize.votes.busy_ranks import ENDLESS

HOLDER = frames("run threading.py:982", "publish /home/u/native_metrics.py:58")
DISPATCH = frames(
    "dispatch_preprocess megatron/core/transformer/moe/token_dispatcher.py:503",
    "_maybe_dtoh_and_synchronize megatron/core/transformer/moe/token_dispatcher.py:699",
)
FORWARD = frames("main /home/u/train.py:57", "forward /home/u/model.py:88")


def spinning(number: int, t: float, *, step: int | None = 20, unread: bool = False) -> RankCapture:
    """It uses a processor at one place."""
    return rank(number, process(None if unread else FORWARD, state="R", cpu_s=100 + t), step=step)


def holder(number: int, t: float = 0.0, *, line: int = 58, busy: bool = False, owns: bool = True) -> RankCapture:
    """A rank in a collective, with a side thread that may have the GIL."""
    stack = (*HOLDER[:-1], replace(HOLDER[-1], line=line))
    side = CapturedThread(stack, "metrics", 7, active=True, owns_gil=owns)
    return rank(number, process(ALL_REDUCE, cpu_s=100 + t * busy, side=[side]))


def seen(*looks: Sequence[RankCapture]) -> Evidence:
    """Captures ten seconds apart."""
    return evidence(*(capture(1000.0 + 10 * n, *ranks) for n, ranks in enumerate(looks)))


def peers(but: int = 1, count: int = 6) -> list[RankCapture]:
    """Ranks that wait in the same collective."""
    return [rank(n, process(ALL_REDUCE)) for n in range(count) if n != but]


@pytest.mark.parametrize("busy", [False, True], ids=["asleep", "computing"])
def test_a_thread_that_keeps_the_gil(busy: bool) -> None:
    """All stand in one collective, and one of them cannot leave it: named, and nothing said about its node."""
    found = judge(seen(*([*peers(), holder(1, 10.0 * n, busy=busy)] for n in range(3))))
    (suspect,) = found.suspects
    assert suspect.node == "n1"
    assert not suspect.infrastructure
    assert "holds the GIL at publish (u/native_metrics.py:58)" in suspect.why


@pytest.mark.parametrize(
    "looks",
    [
        [holder(1, line=58), holder(1, line=60)],
        [holder(1), holder(1, owns=False)],
        [holder(1)],
        [holder(1), holder(1, 10.0, busy=True)],
    ],
    ids=["at work", "for a moment", "seen once", "twice, computing"],
)
def test_a_thread_that_has_the_gil_in_passing(looks: list[RankCapture]) -> None:
    """Metrics and logs are written by such threads all the time: that alone names nobody."""
    assert not judge(seen(*([*peers(), look] for look in looks))).suspects


def test_one_of_many_with_such_a_thread() -> None:
    """All have a thread that takes the GIL now and then; one was met with it every time, as one of many will be."""
    looks = [[holder(n, 10.0 * t, busy=True, owns=n in (0, t)) for n in range(12)] for t in range(1, 4)]
    assert not judge(seen(*looks)).suspects


def test_a_loader_that_hangs_while_another_thread_has_the_gil() -> None:
    """What holds it is its loader, whatever a metrics thread does at that moment."""
    side = CapturedThread(HOLDER, "metrics", 7, active=True, owns_gil=True)
    stuck = in_loader(1, process(WORKER_LOCK))
    stuck = replace(
        stuck,
        processes=(replace(stuck.processes[0], threads=(*stuck.processes[0].threads, side)), *stuck.processes[1:]),
    )
    (suspect,) = judge(seen(*([*peers(), stuck] for _ in range(2)))).suspects
    assert "data loader hangs" in suspect.why


@pytest.mark.parametrize(("state", "named"), [("S", ["n9"]), ("R", [])], ids=["main asleep", "main runs"])
def test_a_side_thread_at_work_beside_a_held_main_thread(state: str, named: list[str]) -> None:
    """What uses the processor is the side thread where the main thread sleeps: held all the same, and not yet sure."""
    side = CapturedThread(HOLDER, "metrics", 7, active=True)
    looks = [[*peers(), rank(9, process(USER, state=state, cpu_s=10.0 * t, side=[side]))] for t in range(2)]
    found = judge(seen(*looks))
    assert [s.node for s in found.suspects] == named
    assert not found.corroborated


@pytest.mark.parametrize(("looks", "named"), [(2, []), (3, ["n9"])], ids=["twice", "three times"])
def test_a_thread_that_computes_with_the_gil_beside_a_main_thread_in_the_program(looks: int, named: list[str]) -> None:
    """The main thread may wait for its device there; twice the thread may have been met by chance."""
    side = CapturedThread(HOLDER, "metrics", 7, active=True, owns_gil=True)
    found = judge(seen(*([*peers(), rank(9, process(USER, cpu_s=10.0 * t, side=[side]))] for t in range(looks))))
    assert [s.node for s in found.suspects] == named


def test_a_thread_that_keeps_the_gil_while_some_could_not_be_read() -> None:
    """Two of twelve have no stack: one of them may be the source too, so the one that is seen held is not yet sure."""
    looks = [[*peers(count=10), holder(1), *(spinning(n, 10.0 * t, unread=True) for n in (10, 11))] for t in range(3)]
    found = judge(seen(*looks))
    assert [s.node for s in found.suspects] == ["n1"]
    assert not found.corroborated


@pytest.mark.parametrize(("looks", "named"), [(1, []), (2, ["n9"])], ids=["once", "twice"])
def test_a_rank_that_is_gone_while_most_spin_and_few_wait(looks: int, named: list[str]) -> None:
    """No process, and no exit was seen: nothing else can explain a job in which nobody moves."""
    found = judge(
        seen(
            *([*(spinning(n, 10.0 * t) for n in range(2, 8)), *peers(but=9, count=2), rank(9)] for t in range(looks)),
        )
    )
    assert [s.node for s in found.suspects] == named


def test_the_one_that_sleeps_among_spinners_on_most_nodes() -> None:
    """Those that spin wait for their device: that they are on most nodes does not hide the sleeper."""
    looks = [
        [*peers(but=9, count=4), *(spinning(n, 10.0 * t) for n in range(4, 9)), rank(9, process(USER))]
        for t in range(2)
    ]
    found = judge(seen(*looks))
    assert [s.node for s in found.suspects] == ["n9"]
    assert not found.corroborated


def test_of_many_that_wait_only_those_outside_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand ranks are judged in two seconds: what all of them do is not looked at thread by thread."""
    compared: list[int] = []
    compare = motion.compare

    def counted(before: RankCapture, after: RankCapture, elapsed_s: float) -> motion.RankMotion:
        compared.append(after.rank)
        return compare(before, after, elapsed_s)

    monkeypatch.setattr(motion, "compare", counted)
    found = judge(seen(*([*peers(count=200), in_loader(1, process(WORKER_LOCK))] for _ in range(3))))
    assert [s.node for s in found.suspects] == ["n1"]
    assert set(compared) == {1}


def test_all_have_such_a_thread() -> None:
    """The same program on all ranks: no rank is told from the others by it."""
    assert not judge(seen(*([holder(n) for n in range(6)] for _ in range(3)))).suspects


def test_the_one_that_sleeps_among_those_that_spin() -> None:
    """Some wait in a collective, one spins in the forward pass, one sleeps in the user's code: the sleeper is held."""
    looks = [[*peers(but=5, count=8), spinning(5, 10.0 * n), rank(9, process(USER))] for n in range(2)]
    found = judge(seen(*looks))
    assert [s.node for s in found.suspects] == ["n9"]
    assert not found.corroborated
    assert any("use a processor" in what for what in found.missing)


def test_one_that_spins_alone() -> None:
    """An endless loop is no wait: a host that spins where no other is held names nobody, and says what it does."""
    looks = [[*peers(but=5, count=8), spinning(5, 10.0 * n)] for n in range(2)]
    found = judge(seen(*looks))
    assert not found.suspects
    assert "slow, or an endless loop" in found.reason


@pytest.mark.parametrize(
    ("where", "endless"), [("forward /home/u/model.py:88", True), ("evaluate /home/u/t.py:9", False)]
)
def test_a_busy_rank_may_be_endless_where_nothing_takes_long_by_nature(where: str, endless: bool) -> None:
    """People are told of a rank that may be in an endless loop, and not of a long evaluation."""
    stack = frames("main /home/u/train.py:57", where)
    looks = [[*peers(but=5, count=8), rank(5, process(stack, state="R", cpu_s=100 + 10.0 * n))] for n in range(2)]
    assert (ENDLESS in judge(seen(*looks)).missing) is endless


@pytest.mark.parametrize("unread", [False, True], ids=["no progress told", "no stack read"])
def test_a_silent_node_beside_hosts_that_spin(unread: bool) -> None:
    """Nobody tells of steps, or some stacks cannot be read: processor time alone is no motion."""
    looks = [
        capture(1000.0 + t, *(spinning(n, t, step=None, unread=unread and n == 0) for n in range(5)), missing=["n5"])
        for t in (0.0, 10.0)
    ]
    nodes = {n: f"n{n}" for n in range(6)}
    found = judge(evidence(*looks, nodes=nodes))
    assert [s.node for s in found.suspects] == ["n5"]
    assert not found.corroborated


def test_a_few_unread_hide_nobody() -> None:
    """One rank of twelve has no stack; the loader that hangs is seen, and named."""
    looks = [
        [*(spinning(n, 10.0 * t, unread=n == 3) for n in range(11)), in_loader(11, process(WORKER_LOCK))]
        for t in range(2)
    ]
    assert [s.node for s in judge(seen(*looks)).suspects] == ["n11"]


def test_megatrons_dispatcher_waits_for_the_device() -> None:
    """`dispatch_preprocess` is no preprocessing of data."""
    found = place_of(DISPATCH)
    assert found.waits_for_peers
    assert not found.slow_by_nature


def test_a_visible_culprit_beats_a_stray_signal() -> None:
    """A link elsewhere went down in the same minutes: the rank that is seen to be held is named."""
    looks = [[*(spinning(n, 10.0 * t) for n in range(6)), in_loader(9, process(WORKER_LOCK))] for t in range(2)]
    told = replace(seen(*looks), node_signals=(signal(SignalKind.NODE_FAULT, "n2", "mlx5_0: link down"),))
    assert [s.node for s in judge(told).suspects] == ["n9"]


def test_where_nobody_is_seen_to_be_held_the_signal_counts() -> None:
    """The same signal while all spin and none is held: that node, not acted on early."""
    looks = [[spinning(n, 10.0 * t) for n in range(6)] for t in range(2)]
    told = replace(seen(*looks), node_signals=(signal(SignalKind.NODE_FAULT, "n2", "mlx5_0: link down"),))
    found = judge(told)
    assert found.conclusion is Conclusion.CULPRIT
    assert [s.node for s in found.suspects] == ["n2"]
    assert not found.corroborated
