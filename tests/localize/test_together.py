"""Recorder and stacks: two witnesses that agree, and two that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localize_scenes import (
    EVALUATE,
    MAIN,
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
from recorder_dumps import WORLD, dump, entry

from slurm_robust.localize.evidence import Evidence, Frame, RankCapture, RankExit
from slurm_robust.localize.judge import judge
from slurm_robust.localize.recorder.dump import RankDump
from slurm_robust.model import Conclusion

FOUR = {WORLD: [0, 1, 2, 3]}


def recorded(absent: int) -> dict[int, RankDump]:
    """All of four wait in a collective that one never joined."""
    found = {r: dump(r, [entry(10, 5)], {0: (5, 4)}, FOUR) for r in range(4) if r != absent}
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
    assert suspect.infrastructure


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
    assert found.suspects[0].confidence == 0.85
    assert "its stack waits at all_reduce" in found.suspects[0].detail


def test_they_disagree() -> None:
    """The recorder knows better than Python's stacks who holds the others: not acted on before the limit."""
    found = judge(both(2, in_loader(1, process(WORKER_LOCK))))
    assert [s.node for s in found.suspects] == ["n2"]
    assert not found.corroborated
    assert found.suspects[0].confidence == 0.85


def test_one_capture_only() -> None:
    """What the stack shows is told even where nothing is known of motion."""
    found = judge(both(1, rank(1, process(USER)), times=1))
    assert "augment" in found.suspects[0].detail
    assert not found.corroborated


def test_no_stacks() -> None:
    """The recorder alone."""
    alone = replace(both(1, waiting(1)), captures=())
    assert judge(alone).suspects[0].detail == "ranks 0,2-3 wait for it there"


def moving_suspect(stacks: Sequence[Sequence[Frame]], busy_s: float) -> Evidence:
    """Rank 1 never joined; its stack is another in each capture, or it uses a processor."""
    captures = [
        capture(1000.0 + 5 * n, rank(1, process(tuple(stack), cpu_s=n * busy_s)), *(waiting(r) for r in (0, 2, 3)))
        for n, stack in enumerate(stacks)
    ]
    return replace(evidence(*captures), recorder=recorded(1))


def test_the_recorder_alone_would_blame_who_is_only_late() -> None:
    """It never joined because it compiles, loads or computes, and its stack moves: nobody is at fault."""
    found = judge(moving_suspect([frames(*MAIN, f"trace /home/u/train.py:{n}") for n in (7, 8, 9)], 0.0))
    assert (found.conclusion, found.suspects) == (Conclusion.NONE, ())
    assert "rank 1 moves" in found.reason


def test_an_evaluation_that_computes_at_one_line_is_not_blamed() -> None:
    """Busy where it may rightly be; in the step itself it may be a host that waits for its device: that stays named."""
    assert judge(moving_suspect([EVALUATE] * 3, 4.0)).conclusion is Conclusion.NONE
    assert judge(moving_suspect([EVALUATE] * 3, 0.5)).conclusion is Conclusion.NONE, "a tenth of a processor"
    assert [s.node for s in judge(moving_suspect([USER] * 3, 4.0)).suspects] == ["n1"]


def test_who_has_finished_leaves_no_dump() -> None:
    """A rank that ended with exit code 0 is not suspected for that: the program let it leave."""
    ended = RankExit(1, "n1", 1001.0, exit_code=0)
    scene = both(1, waiting(1))
    left = {r: d for r, d in scene.recorder.items() if r != 1}
    gone = [replace(c, ranks=tuple(r for r in c.ranks if r.rank != 1)) for c in scene.captures]
    found = judge(replace(scene, recorder=left, captures=tuple(gone), exits=(ended,)))
    assert found.suspects == ()
