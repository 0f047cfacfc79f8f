"""Work without an end on a host, seen by stacks alone: who is named, after how long, and who never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    BACKWARD,
    EVALUATE,
    IMPORT,
    MAIN,
    SAVE,
    USER,
    capture,
    evidence,
    frames,
    process,
    rank,
    waiting,
)
from recorder_dumps import WORLD, dump, entry

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.evidence import CapturedThread, Evidence, RankCapture
from slurm_robust.localize.judge import judge

OPTIMIZER = frames(*MAIN, "Adam.step torch/optim/adam.py:223", "_single_tensor_adam torch/optim/adam.py:421")
DRIVER = frames(*MAIN, "_lazy_init torch/cuda/__init__.py:319")
COMPILE = frames(*MAIN, "_compile torch/_dynamo/convert_frame.py:1052")
NCCL_PENDING = {3: dump(3, [entry(10, 5)], {0: (5, 4)}, {WORLD: [0, 1, 2, 3]})}
Look = Callable[[float], RankCapture]


def busy(stack: tuple[object, ...] = USER, *, number: int = 3, phase: str = "train") -> Look:
    """A rank that uses a whole processor at one place."""
    return lambda t: rank(number, process(stack, state="R", cpu_s=100 + t), phase=phase)  # type: ignore[arg-type]


def keeping_the_gil(t: float) -> RankCapture:
    """Its main thread never gives the interpreter's lock away."""
    main = CapturedThread(frames(*MAIN, "match /home/u/text.py:8"), "MainThread", 100, main=True, owns_gil=True)
    found = process(USER, state="R", cpu_s=100 + t)
    return rank(3, replace(found, threads=(main,)))


def scene(look: Look, over_s: float = 75.0, captures: int = 6, peers: tuple[object, ...] = ALL_REDUCE) -> Evidence:
    """Three of four wait at rest, and the fourth is as given."""
    times = [over_s * n / (captures - 1) for n in range(captures)]
    others = [waiting(n, peers) for n in range(3)]  # type: ignore[arg-type]
    return evidence(*(capture(1000.0 + t, *others, look(t)) for t in times))


@pytest.mark.parametrize("stack", [USER, OPTIMIZER, DRIVER], ids=["loop", "optimizer", "driver"])
@pytest.mark.parametrize("peers", [ALL_REDUCE, BACKWARD], ids=["collective", "backward"])
def test_endless_work_is_named_weakly(stack: tuple[object, ...], peers: tuple[object, ...]) -> None:
    """It is the rank that all wait for, and nothing says that its node is at fault."""
    found = judge(scene(busy(stack), peers=peers))
    assert [(s.node, s.ranks) for s in found.suspects] == [("n3", (3,))]
    assert not found.suspects[0].infrastructure
    assert found.grade is Grade.WEAK
    assert found.corroborated
    assert "has been busy at" in found.reason


@pytest.mark.parametrize(("over_s", "named"), [(12.0, []), (24.0, ["n3"])])
def test_a_main_thread_that_keeps_the_gil(over_s: float, named: list[str]) -> None:
    """A pattern that backtracks for ever: twenty seconds are enough, since usual steps let go of it."""
    found = judge(scene(keeping_the_gil, over_s, 4))
    assert [s.node for s in found.suspects] == named
    assert found.grade is (Grade.WEAK if named else Grade.NONE)


def test_a_side_thread_that_keeps_the_gil_is_sure_although_it_computes() -> None:
    """That the holder uses the processor is no sign of life: the same stack had the lock each time."""

    def look(t: float) -> RankCapture:
        side = CapturedThread(frames("run threading.py:982", "publish /home/u/m.py:5"), "m", 7, owns_gil=True)
        return rank(3, process(USER, cpu_s=100 + t, side=[side]))

    found = judge(scene(look))
    assert [s.node for s in found.suspects] == ["n3"]
    assert found.corroborated
    assert found.grade is Grade.WEAK


def test_a_loop_at_several_lines_of_one_function() -> None:
    """An endless loop in Python stands at another line each time."""
    found = judge(scene(lambda t: busy(frames(*MAIN, f"spin /home/u/a.py:{int(t) % 7}"))(t)))
    assert [s.node for s in found.suspects] == ["n3"]


@pytest.mark.parametrize(
    "look",
    [busy(EVALUATE), busy(SAVE), busy(IMPORT), busy(COMPILE), busy(phase="evaluate"), busy(phase="checkpoint")],
    ids=["evaluation", "save", "import", "compilation", "announced evaluation", "announced checkpoint"],
)
def test_what_is_slow_by_nature_is_never_named(look: Look) -> None:
    """It may compute for ten minutes at one line."""
    found = judge(scene(look, 600.0))
    assert not found.suspects
    assert not found.corroborated


@pytest.mark.parametrize(
    "given",
    [
        scene(busy(), 55.0),
        scene(busy(), 300.0, 2),
        scene(lambda t: busy(frames(*MAIN, f"layer{int(t)} /home/u/m.py:9"))(t)),
        replace(scene(busy()), recorder=NCCL_PENDING),
    ],
    ids=["not for long", "seen twice", "another function each time", "its device holds an operation"],
)
def test_who_may_be_at_work_is_not_named(given: Evidence) -> None:
    """A long batch, or a host that waits for its device with all of a processor."""
    assert not judge(given).suspects


def test_peers_that_are_not_at_rest() -> None:
    """One of the others still computes: nobody is waited for by all."""
    looks = [
        capture(1000.0 + t, waiting(0), waiting(1), busy(number=2)(t), busy(OPTIMIZER)(t)) for t in range(0, 90, 15)
    ]
    assert not judge(evidence(*looks)).suspects


def test_a_step_that_completes_ends_it() -> None:
    """Whatever the stacks show, training moves."""
    given = scene(busy())
    last = given.captures[-1]
    moved = [replace(r, progress=replace(r.progress, step=21)) for r in last.ranks if r.progress is not None]
    found = judge(replace(given, captures=(*given.captures[:-1], replace(last, ranks=tuple(moved)))))
    assert found.conclusion is Conclusion.NONE
