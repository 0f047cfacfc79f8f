"""Hosts that use a processor while they wait for their GPU: who is held among them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import (
    EVALUATE,
    MAIN,
    USER,
    USER_LOCK,
    WORKER_LOCK,
    assert_nobody,
    capture,
    evidence,
    frames,
    in_loader,
    named,
    process,
    rank,
    repeated,
    signal,
    waiting,
    with_peers,
)

from slurm_robust.core.model import Conclusion, SignalKind
from slurm_robust.localize.evidence import Evidence, RankCapture
from slurm_robust.localize.judge import judge


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


# Spinning is no motion: who is in a lock or in D state is seen among those that busy-wait.


def _polls(number: int, t: float, function: str = "wait_for_peers") -> RankCapture:
    """A busy wait in Python: the same function, another line at each look."""
    stack = frames(*MAIN, f"{function} /home/u/train.py:{80 + (number + int(t)) % 3}")
    return rank(number, process(stack, state="R", cpu_s=t))


def test_a_rank_in_a_lock_among_hosts_that_spin() -> None:
    """Five spin at three places and none waits in a collective; the one that sleeps in a lock is named."""
    verdict = judge(_beside_spinners(rank(1, process(USER_LOCK))))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated
    assert not verdict.suspects[0].infrastructure


@pytest.mark.parametrize(
    "suspect",
    [rank(1, process(USER, state="D", wchan="nfs_wait_bit_killable")), rank(1, process(USER_LOCK))],
    ids=["D state", "lock"],
)
@pytest.mark.parametrize("places", [1, 2])
def test_a_held_rank_among_hosts_that_poll(suspect: RankCapture, places: int) -> None:
    """The others ask again and again: another line of the same function at each look is no progress."""
    looks = [
        capture(1000.0 + t, *(_polls(n, t, f"wait_for_peers{n % places}") for n in range(2, 8)), suspect)
        for t in (0.0, 10.0, 20.0)
    ]
    verdict = judge(evidence(*looks))
    assert named(verdict) == [("n1", (1,))]
    assert not verdict.corroborated


def test_hosts_that_poll_beside_some_that_wait() -> None:
    """Two in a collective, four poll, one in a lock: the polling ones are none of those outside."""
    looks = [
        capture(1000.0 + t, waiting(8), waiting(9), *(_polls(n, t) for n in range(2, 6)), rank(1, process(USER_LOCK)))
        for t in (0.0, 10.0)
    ]
    assert named(judge(evidence(*looks))) == [("n1", (1,))]


def test_hosts_that_go_from_function_to_function() -> None:
    """They work: a rank in a lock beside them is nobody's fault."""
    looks = [
        capture(1000.0 + t, *(_polls(n, t, f"layer{int(t)}") for n in range(2, 8)), rank(1, process(USER_LOCK)))
        for t in (0.0, 10.0)
    ]
    assert_nobody(judge(evidence(*looks)), Conclusion.NONE)


def test_a_processor_that_nobody_sees_used() -> None:
    """NCCL's own threads use a processor beside a main thread in D state, or in a lock: that is no motion of it."""
    for held in (process(USER, state="D", wchan="nfs_wait_bit_killable"), process(USER_LOCK)):
        looks = [
            capture(1000.0 + t, *(waiting(n) for n in (0, 2, 3)), rank(1, replace(held, cpu_s=5.0 + t)))
            for t in (0.0, 10.0)
        ]
        found = judge(evidence(*looks))
        assert named(found) == [("n1", (1,))]
        assert not found.corroborated
