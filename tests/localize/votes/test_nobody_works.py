"""Does anybody work? Scenes of healthy programs that look like a deadlock, and of deadlocks that look alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localize_scenes import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    EVALUATE,
    FEEDER,
    LOADER_WAIT,
    MAIN,
    SAVE,
    USER,
    USER_LOCK,
    capture,
    evidence,
    frames,
    process,
    rank,
)
from recorder_dumps import WORLD, dump, entry

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.evidence import CapturedThread, Evidence, Progress, RankCapture, RankExit
from slurm_robust.localize.judge import judge
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.localize.votes.nobody_works import TRAFFIC_BYTES_PER_S, nobody_works

Look = Callable[[float], RankCapture]
FOUR = {WORLD: [0, 1, 2, 3]}


def waits(number: int, *, stack: tuple[object, ...] = ALL_REDUCE, bytes_a_s: float = 0.0, cpu_a_s: float = 0.0) -> Look:
    """A rank in a collective, which may use a processor or send bytes meanwhile."""

    def look(t: float) -> RankCapture:
        found = process(stack, cpu_s=100 + t * cpu_a_s, side=[FEEDER])  # type: ignore[arg-type]
        return rank(number, replace(found, net_bytes=int(1e6 + t * bytes_a_s)))

    return look


def in_place(number: int, stack: tuple[object, ...], cpu_a_s: float = 0.0, **more: object) -> Look:
    """A rank at one place, which may use a processor there."""
    return lambda t: rank(number, process(stack, cpu_s=100 + t * cpu_a_s, **more))  # type: ignore[arg-type]


def spins(number: int) -> Look:
    """A host that waits for its device with all of a processor."""
    return in_place(number, USER, 1.0, state="R")


def seen(*looks: Look, times: Sequence[float] = (0.0, 5.0, 10.0)) -> Evidence:
    """What these show, at these seconds."""
    return evidence(*(capture(1000.0 + t, *(look(t) for look in looks)) for t in times))


def pending(*ranks: int, backend: str = "nccl") -> dict[int, RankDump]:
    """Dumps in which these have an operation open."""
    return {r: dump(r, [entry(10, 5, backend=backend)], {0: (5, 4)}, FOUR) for r in ranks}


PEERS = (waits(0), waits(1, stack=BACKWARD), waits(2, stack=BARRIER))
DEADLOCK = seen(*PEERS, waits(3))


def metrics(t: float) -> RankCapture:
    """In a collective, with a thread of its own that writes metrics."""
    side = CapturedThread(frames("run threading.py:982", f"publish /home/u/m.py:{int(t)}"), "metrics", 7)
    return rank(3, process(ALL_REDUCE, side=[side]))


def with_helper(look: Look, *, cpu_a_s: float = 0.0, bytes_a_s: float = 0.0, moves: bool = False) -> Look:
    """The same with a child of its own, which works as much meanwhile."""

    def both(t: float) -> RankCapture:
        found = look(t)
        line = int(t) + 1 if moves else 9
        child = process(
            frames("<module> /home/u/gpu_logger.py:3", f"sample /home/u/gpu_logger.py:{line}"),
            pid=101, cpu_s=1 + t * cpu_a_s, io_bytes=int(1e4 + t * bytes_a_s), command="python gpu_logger.py",
        )  # fmt: skip
        return replace(found, processes=(*found.processes, child))

    return both


def short_lived(t: float) -> RankCapture:
    """In a collective, beside a child that is another one each time."""
    child = process(None, pid=200 + int(t), cpu_s=0.2, command="nvidia-smi-like")
    return replace(waits(3)(t), processes=(*waits(3)(t).processes, child))


def with_dumps(given: Evidence, *, before: int = 5, after: int = 5) -> Evidence:
    """The same with two dumps of each rank: which operation was open then, and which is open now."""
    old, new = ({r: dump(r, [entry(10, n)], {0: (n, n - 1)}, FOUR) for r in range(4)} for n in (before, after))
    return replace(given, recorder_before=old, recorder=new)


DEAD = {
    "all in collectives": DEADLOCK,
    "metrics threads move": seen(*PEERS, metrics),
    "they spin in the collective": seen(*(waits(n, cpu_a_s=1.0) for n in range(4))),
    "heartbeats": seen(*PEERS, waits(3, bytes_a_s=TRAFFIC_BYTES_PER_S / 20)),
    "one finished long before the last step": replace(
        seen(*PEERS), rank_nodes={n: f"n{n}" for n in range(4)}, world_size=4, exits=(RankExit(3, "n3", 900.0, 0),)
    ),
    "the recorder stands": with_dumps(DEADLOCK),
    "hosts spin behind open operations": replace(seen(*PEERS, spins(3)), recorder=pending(3)),
    "hosts spin in backward behind open operations": replace(
        seen(*(in_place(n, BACKWARD, 1.0, state="R") for n in range(4))), recorder=pending(0, 1, 2, 3)
    ),
    "all hosts spin behind open operations": replace(seen(*map(spins, range(4))), recorder=pending(0, 1, 2, 3)),
    "a host sleeps behind an open operation": replace(seen(*PEERS, in_place(3, USER)), recorder=pending(3)),
    "loggers use five percent": seen(*(with_helper(waits(n), cpu_a_s=0.05, moves=True) for n in range(4))),
    "loggers write some KB": seen(*(with_helper(waits(n), cpu_a_s=0.1, bytes_a_s=2e4) for n in range(4))),
    "children come and go": seen(*PEERS, short_lived),
    "a host spins behind an open operation, beside a logger": replace(
        seen(*PEERS, with_helper(spins(3), cpu_a_s=0.1)), recorder=pending(3)
    ),
    "no progress is reported": replace(
        DEADLOCK,
        captures=tuple(replace(c, ranks=tuple(replace(r, progress=None) for r in c.ranks)) for c in DEADLOCK.captures),
    ),
}


@pytest.mark.parametrize("scene", DEAD)
def test_nobody_works(scene: str) -> None:
    """All wait for each other or for their device: strong, whoever made it, and nobody is blamed for that."""
    assert nobody_works(DEAD[scene])
    found = judge(DEAD[scene])
    assert found.grade is Grade.STRONG
    assert found.corroborated
    assert not any(s.infrastructure for s in found.suspects)


def nodes_but_one() -> Evidence:
    """One node did not answer the last capture."""
    last = DEADLOCK.captures[-1]
    return replace(DEADLOCK, captures=(*DEADLOCK.captures[:-1], replace(last, missing_nodes=("n9",))))


def step_in_between() -> Evidence:
    """One rank completed a step between the last two captures."""
    *first, last = DEADLOCK.captures
    ranks = (replace(last.ranks[0], progress=Progress(21)), *last.ranks[1:])
    return replace(DEADLOCK, captures=(*first, replace(last, ranks=ranks)))


def of_eight() -> dict[int, RankDump]:
    """Dumps of a group of eight, of which four run in this step."""
    return {r: dump(r, [entry(10, 5, "broadcast")], {0: (5, 4)}, {WORLD: list(range(8))}) for r in range(4)}


ALIVE = {
    "one computes": seen(*PEERS, spins(3)),
    "one computes, beside gloo's operations": replace(seen(*PEERS, spins(3)), recorder=pending(3, backend="gloo")),
    "one computes in backward": seen(*PEERS, in_place(3, BACKWARD, 1.0, state="R")),
    "one computes in backward, beside gloo's operations": replace(
        seen(*PEERS, in_place(3, BACKWARD, 1.0, state="R")), recorder=pending(3, backend="gloo")
    ),
    "they compute in backward, and the recorder moves": with_dumps(
        seen(*(in_place(n, BACKWARD, 1.0, state="R") for n in range(4))), after=6
    ),
    "one stands in the program": seen(*PEERS, in_place(3, USER)),
    "one waits for a lock": seen(*PEERS, in_place(3, USER_LOCK)),
    "one loads data": seen(*PEERS, in_place(3, LOADER_WAIT)),
    "rank 0 evaluates": seen(in_place(0, EVALUATE, 1.0), *(waits(n, stack=BARRIER) for n in (1, 2, 3))),
    "rank 0 evaluates behind an open operation": replace(
        seen(in_place(0, EVALUATE, 1.0), *(waits(n) for n in (1, 2, 3))), recorder=pending(0)
    ),
    "one waits for a lock behind an open operation": replace(seen(*PEERS, in_place(3, USER_LOCK)), recorder=pending(3)),
    "a child computes": seen(*PEERS, with_helper(waits(3), cpu_a_s=0.9)),
    "a child saves": seen(*PEERS, with_helper(waits(3), cpu_a_s=0.05, bytes_a_s=5e6)),
    "one computes, beside a logger": seen(*PEERS, with_helper(spins(3), cpu_a_s=0.05)),
    "one saves": seen(*PEERS, in_place(3, SAVE)),
    "one saves behind an open operation": replace(seen(*PEERS, in_place(3, SAVE)), recorder=pending(3)),
    "gloo sends": seen(*PEERS, waits(3, bytes_a_s=2 * TRAFFIC_BYTES_PER_S)),
    "all send a little each": seen(*(waits(n, bytes_a_s=1.5 * TRAFFIC_BYTES_PER_S) for n in range(4))),
    "one is stopped": seen(*PEERS, in_place(3, ALL_REDUCE, state="T")),
    "one is held by a debugger": seen(*PEERS, in_place(3, ALL_REDUCE, state="t")),
    "one is frozen": seen(*PEERS, in_place(3, ALL_REDUCE, wchan="do_freezer_trap")),
    "one has no stack": seen(*PEERS, lambda _: rank(3, process(None))),
    "one is gone": seen(*PEERS, lambda _: rank(3)),
    "one was not captured": replace(seen(*PEERS), world_size=4),
    "one of another node was not captured": replace(seen(*PEERS), rank_nodes={n: f"n{n}" for n in range(4)}),
    "a node did not answer": nodes_but_one(),
    "one has ended": replace(DEADLOCK, exits=(RankExit(3, "n3", 999.0, 0),)),
    "one has ended at the last step": replace(
        seen(*PEERS), rank_nodes={n: f"n{n}" for n in range(4)}, world_size=4, exits=(RankExit(3, "n3", 997.0, 0),)
    ),
    "one failed long before the last step": replace(
        seen(*PEERS), rank_nodes={n: f"n{n}" for n in range(4)}, world_size=4, exits=(RankExit(3, "n3", 900.0, 1),)
    ),
    "a step was completed": step_in_between(),
    "the recorder moves": with_dumps(DEADLOCK, after=6),
    "members of another job are waited for": replace(DEADLOCK, recorder=of_eight(), recorder_before=of_eight()),
    "the world is larger than the step": replace(DEADLOCK, world_size=8),
    "two captures": seen(*PEERS, waits(3), times=(0.0, 60.0)),
    "three captures in five seconds": seen(*PEERS, waits(3), times=(0.0, 2.5, 5.0)),
    "stacks go from one collective to another": seen(
        *PEERS, lambda t: waits(3, stack=(*frames(*MAIN, f"layer{int(t)} /home/u/m.py:1"), *ALL_REDUCE[-1:]))(t)
    ),
    "it has just begun": evidence(
        capture(990.0, *(waits(n)(0.0) for n in (0, 1, 2)), spins(3)(0.0)), *DEADLOCK.captures[:2]
    ),
}


@pytest.mark.parametrize("scene", ALIVE)
def test_somebody_may_work(scene: str) -> None:
    """Nothing makes such a verdict strong that only rests on all waiting."""
    assert not nobody_works(ALIVE[scene])
    found = judge(ALIVE[scene])
    assert found.conclusion is not Conclusion.UNDETERMINED or found.grade is not Grade.STRONG


def test_the_verdict_says_that_members_are_outside() -> None:
    """A trainer of another job, as in RL: whether that one works cannot be seen from here."""
    found = judge(ALIVE["members of another job are waited for"])
    assert found.grade is not Grade.STRONG
    assert "ranks 4-7 are not ranks of this step" in found.detail
    assert "not ranks of this step" not in judge(DEAD["the recorder stands"]).detail


def test_a_host_that_waits_for_its_device_is_not_named() -> None:
    """By stacks alone it stands in the program while all others wait; its recorder says that it waits, too."""
    beside = seen(*PEERS, in_place(3, USER))
    assert [s.node for s in judge(beside).suspects] == ["n3"]
    assert not judge(replace(beside, recorder=pending(3))).suspects


@given(st.permutations(range(4)), st.sets(st.integers(0, 3), max_size=3))
def test_one_at_work_is_enough(order: list[int], also: set[int]) -> None:
    """Whoever it is, and however many work beside it: one that computes keeps it from being a deadlock."""
    worker, *others = order
    looks = [spins(n) if n == worker or n in also else waits(n) for n in (worker, *others)]
    assert not nobody_works(seen(*looks))


@given(
    st.lists(st.floats(2.0, 60.0), min_size=1, max_size=6),
    st.lists(st.sampled_from([ALL_REDUCE, BACKWARD, BARRIER]), min_size=2, max_size=6),
)
def test_it_takes_three_captures_over_eight_seconds(pauses: list[float], stacks: list[tuple[object, ...]]) -> None:
    """However the captures lie, and whatever collectives the ranks wait in."""
    times = [sum(pauses[:n]) for n in range(len(pauses) + 1)]
    found = nobody_works(seen(*(waits(n, stack=stack) for n, stack in enumerate(stacks)), times=times))
    assert found is (len(times) >= 3 and times[-1] >= 8.0)
