"""Recorder and stacks: two witnesses that agree, and two that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from localize_scenes import (
    ALL_REDUCE,
    EVALUATE,
    MAIN,
    SAVE,
    USER,
    USER_LOCK,
    WORKER_LOCK,
    capture,
    evidence,
    frames,
    in_loader,
    process,
    rank,
    repeated,
    waiting,
)
from recorder_dumps import TENSOR, WORLD, dump, entry

from slurm_robust.core.model import Grade
from slurm_robust.localize.evidence import Evidence, RankCapture, RankExit, StackFrame
from slurm_robust.localize.judge import judge
from slurm_robust.localize.recorder.dump import RankDump

COMPILE = frames("main /home/u/train.py:57", "_compile torch/_dynamo/convert_frame.py:1052")
FOUR = {WORLD: [0, 1, 2, 3]}


def recorded(absent: int, backend: str = "nccl") -> dict[int, RankDump]:
    """All of four wait in a collective that one never joined."""
    found = {r: dump(r, [entry(10, 5, backend=backend)], {0: (5, 4)}, FOUR) for r in range(4) if r != absent}
    return {**found, absent: dump(absent, [entry(9, 4, state="completed")], {0: (4, 4)}, FOUR)}


def both(absent: int, suspect: RankCapture, *, times: int = 2) -> Evidence:
    """Dumps in which `absent` never joined, and stacks of all, one of them as given."""
    others: Sequence[RankCapture] = [waiting(n) for n in range(4) if n != suspect.rank]
    return replace(repeated(*others, suspect, times=times), recorder=recorded(absent))


def test_they_agree() -> None:
    """Never joined, and its data loader hangs: surer than either, the reason in words, and acted on."""
    found = judge(both(1, in_loader(1, process(WORKER_LOCK))))
    assert found.corroborated
    (suspect,) = found.suspects
    assert suspect.node == "n1"
    assert suspect.confidence > 0.9
    assert "never joined all_reduce 5" in suspect.why
    assert "its data loader hangs at" in suspect.detail
    assert not suspect.infrastructure


def test_the_stack_says_that_it_is_the_program() -> None:
    """Never joined since it waits for a lock of its own: the rank, and nothing about its node."""
    (suspect,) = judge(both(1, rank(1, process(USER_LOCK)), times=5)).suspects
    assert not suspect.infrastructure
    assert "a lock or queue" in suspect.detail


def test_the_stack_alone_names_nobody() -> None:
    """Under NCCL the one that never joined may stand where all others do: the recorder's word, not corroborated."""
    found = judge(both(1, waiting(1)))
    assert [s.node for s in found.suspects] == ["n1"]
    assert not found.corroborated
    assert found.suspects[0].confidence == 0.9
    assert "its stack waits at all_reduce" in found.suspects[0].detail


def test_they_disagree() -> None:
    """The recorder knows better than Python's stacks who holds the others: not acted on before the limit."""
    found = judge(both(2, in_loader(1, process(WORKER_LOCK))))
    assert [s.node for s in found.suspects] == ["n2"]
    assert not found.corroborated
    assert found.suspects[0].confidence == 0.9


def test_one_capture_only() -> None:
    """What the stack shows is told even where nothing is known of motion."""
    found = judge(both(1, rank(1, process(USER)), times=1))
    assert "augment" in found.suspects[0].detail
    assert not found.corroborated


def test_no_stacks() -> None:
    """The recorder alone."""
    alone = replace(both(1, waiting(1)), captures=())
    assert judge(alone).suspects[0].detail == "ranks 0,2-3 wait for it there"


def moving_suspect(stacks: Sequence[Sequence[StackFrame]], busy_s: float) -> Evidence:
    """Rank 1 never joined; its stack is another in each capture, or it uses a processor."""
    captures = [
        capture(1000.0 + 5 * n, rank(1, process(tuple(stack), cpu_s=n * busy_s)), *(waiting(r) for r in (0, 2, 3)))
        for n, stack in enumerate(stacks)
    ]
    return replace(evidence(*captures), recorder=recorded(1))


def test_the_recorder_alone_would_blame_who_is_only_late() -> None:
    """It never joined because it compiles, loads or computes, and its stack moves: nobody is at fault."""
    found = judge(moving_suspect([frames(*MAIN, f"trace /home/u/train.py:{n}") for n in (7, 8, 9)], 0.0))
    assert not found.suspects


def test_an_evaluation_that_computes_at_one_line_is_not_blamed() -> None:
    """Busy where it may rightly be; in the step itself it may be a host that waits for its device: that stays named."""
    assert not judge(moving_suspect([EVALUATE] * 3, 4.0)).suspects
    assert not judge(moving_suspect([EVALUATE] * 3, 0.5)).suspects, "a tenth of a processor"
    assert [s.node for s in judge(moving_suspect([USER] * 3, 4.0)).suspects] == ["n1"]


def test_a_batch_that_takes_long_on_hosts_is_not_blamed() -> None:
    """Under gloo no host waits for a device: one that uses a processor at one line computes."""
    for busy_s in (4.0, 0.5):
        busy = moving_suspect([USER] * 3, busy_s)
        assert not judge(replace(busy, recorder=recorded(1, "gloo"))).suspects, busy_s
    still = moving_suspect([USER] * 3, 0.0)
    assert [s.node for s in judge(replace(still, recorder=recorded(1, "gloo"))).suspects] == ["n1"]


def test_stopped_and_another_that_never_joined() -> None:
    """Of two that are held one is stopped, and the other has no stack: both are named, and both nodes stay."""
    nodes = {n: f"n{n}" for n in range(5)}
    sizes = {WORLD: [0, 1], TENSOR: [2, 3]}
    pairs = {
        0: dump(0, [entry(10, 5)], {0: (5, 4)}, sizes),
        1: dump(1, [entry(9, 4, state="completed")], {0: (4, 4)}, sizes),
        2: dump(2, [entry(10, 5, group=TENSOR, number=1)], {1: (5, 4)}, sizes),
        3: dump(3, [entry(9, 4, group=TENSOR, number=1, state="completed")], {1: (4, 4)}, sizes),
    }
    looks = [capture(t, waiting(0), rank(1, process(USER, state="T")), waiting(2)) for t in (0.0, 5.0)]
    found = judge(replace(evidence(*looks, nodes=nodes), recorder=pairs))
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n1", False), ("n3", False)]
    assert found.corroborated


def test_who_has_finished_leaves_no_dump() -> None:
    """A rank that ended with exit code 0 is not suspected for that: the program let it leave."""
    ended = RankExit(1, "n1", 1001.0, exit_code=0)
    scene = both(1, waiting(1))
    left = {r: d for r, d in scene.recorder.items() if r != 1}
    gone = [replace(c, ranks=tuple(r for r in c.ranks if r.rank != 1)) for c in scene.captures]
    found = judge(replace(scene, recorder=left, captures=tuple(gone), exits=(ended,)))
    assert found.suspects == ()


@pytest.mark.parametrize(
    "elsewhere",
    [rank(1, process(EVALUATE)), rank(1, process(USER), phase="checkpoint"), rank(1, process(SAVE))],
    ids=["evaluates", "announced", "saves"],
)
def test_waited_for_and_at_work(elsewhere: RankCapture) -> None:
    """All wait at a barrier for the rank that evaluates or saves: the recorder's word is not taken for a hang."""
    assert judge(replace(both(1, elsewhere), captures=())).suspects[0].confidence > 0.8
    assert all(s.confidence <= 0.3 and not s.infrastructure for s in judge(both(1, elsewhere)).suspects)


@pytest.mark.parametrize("seen", [True, False], ids=["unread", "uncaptured"])
def test_waited_for_at_the_end_of_a_save(seen: bool) -> None:
    """The peers wait in a barrier or in `save_checkpoint` for a rank without a stack: for all we know, it saves."""
    save = frames("save_checkpoint /home/u/train.py:88", "all_reduce torch/distributed/distributed_c10d.py:2810")
    barrier = frames("main /home/u/train.py:88", "barrier torch/distributed/distributed_c10d.py:5356")
    unread = [rank(1, process(None))] if seen else []
    nodes = {n: f"n{n}" for n in range(4)}
    for stack, named in ((save, []), (barrier, []), (ALL_REDUCE, ["n1"])):
        looks = [capture(t, *(waiting(n, stack) for n in (0, 2, 3)), *unread) for t in (0.0, 5.0)]
        found = judge(replace(evidence(*looks, nodes=nodes), recorder=recorded(1)))
        assert [s.node for s in found.suspects] == named


def unread(cpu_a_s: float, child_cpu_a_s: float = 0.0) -> Evidence:
    """Rank 1, without a stack and with a child, never joined by two dumps; it uses a processor as much."""
    looks = [
        capture(
            1000.0 + t,
            *(waiting(n) for n in (0, 2, 3)),
            rank(1, process(None, cpu_s=5 + t * cpu_a_s), process(None, pid=101, cpu_s=5 + t * child_cpu_a_s)),
        )
        for t in (0.0, 5.0, 10.0, 70.0)
    ]
    return replace(evidence(*looks), recorder=recorded(1), recorder_before=recorded(1))


@pytest.mark.parametrize(
    ("scene", "grade"),
    [
        (unread(0.0), Grade.STRONG),
        (unread(0.0, 0.1), Grade.STRONG),
        (unread(1.0), Grade.WEAK),
        (unread(0.1), Grade.WEAK),
        (unread(0.0, 0.9), Grade.WEAK),
        (unread(-1.0), Grade.WEAK),
    ],
    ids=["rests", "rests beside a logger", "computes", "computes a little", "its child computes", "not known"],
)
def test_an_unread_rank_that_uses_a_processor_may_be_at_work(scene: Evidence, grade: Grade) -> None:
    """It may compute an evaluation: weak, and no evidence against its node. One that rests is held."""
    found = judge(scene)
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n1", grade is Grade.STRONG)]
    assert found.grade is grade


def test_waited_for_beside_ranks_at_work() -> None:
    """Two never joined: one is seen to compile, the other has no stack: nobody is named."""
    dumps = {r: d for r, d in recorded(1).items() if r != 2}
    dumps[2] = dump(2, [entry(9, 4, state="completed")], {0: (4, 4)}, FOUR)
    ranks = [
        waiting(0),
        waiting(3),
        *(waiting(n) for n in (4, 5, 6)),
        rank(1, process(COMPILE)),
        rank(2, process(None)),
    ]
    assert not [s for s in judge(replace(repeated(*ranks), recorder=dumps)).suspects if s.confidence > 0.3]


def test_waited_for_and_moving() -> None:
    """The rank that never joined is seen at two places: slow perhaps, and not held."""
    captures = [
        capture(t, *(waiting(n) for n in (0, 2, 3)), rank(1, process(stack)))
        for t, stack in ((0, USER), (5, ALL_REDUCE))
    ]
    assert not judge(replace(evidence(*captures), recorder=recorded(1))).suspects


def test_two_are_held_and_one_waits_for_the_other() -> None:
    """The recorder knows the one that never joined; the stacks show both uninterruptible, and both are named."""
    stuck = [rank(n, process(USER, state="D", wchan="nfs_wait_bit_killable")) for n in (1, 2)]
    found = judge(replace(repeated(*(waiting(n) for n in (0, 3, 4, 5)), *stuck), recorder=recorded(1)))
    assert [s.node for s in found.suspects] == ["n1", "n2"]
    # Stacks that do not know the recorder's suspect at all add nobody.
    other = judge(replace(repeated(*(waiting(n) for n in (0, 1, 3, 4, 5)), stuck[1]), recorder=recorded(1)))
    assert [s.node for s in other.suspects] == ["n1"]
