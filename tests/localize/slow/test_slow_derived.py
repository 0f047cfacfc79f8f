"""Own work that nobody measured: what is left of a step without communication names a rank, and blames no node."""

from __future__ import annotations

from pathlib import Path

from slow_tables import collect

from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.slow.timings_file import packed, read_timings
from slurm_robust.localize.timings import StepTimings, Timing, without

DP8 = {"dp": 8}


def straggler(slow: int = 0, *, measured: bool = False) -> StepTimings:
    """Eight ranks, of which one has 40 % more left of each step than the others."""
    made = []
    for step in range(40):
        for rank in range(8):
            own = 1.4 if rank == slow else 1.0
            made.append(Timing(rank, step, 1.5, own if measured else None, 1.5 - own, f"n{rank}"))
    return collect(made, DP8)


def test_what_is_total_less_communication_blames_no_node() -> None:
    """Rank 0 logs, and waits where nobody measures it: named at a half at most, whichever rank it is."""
    for slow in (0, 5):
        (suspect,) = judge_timings(straggler(slow)).suspects
        assert suspect.ranks == (slow,)
        assert suspect.confidence == 0.5
        assert not suspect.infrastructure
        assert "total less communication" in suspect.detail


def test_what_was_measured_does() -> None:
    """The same times, told by the program itself."""
    (suspect,) = judge_timings(straggler(measured=True)).suspects
    assert suspect.confidence == 0.9
    assert suspect.infrastructure


def test_it_is_still_known_in_a_file_and_in_a_part(tmp_path: Path) -> None:
    """Saved and read again, and without some ranks, it is what it was."""
    path = tmp_path / "timings.jsonl.gz"
    path.write_bytes(packed(straggler()))
    assert read_timings(path).timings.derived == frozenset(range(8))
    assert without(straggler(), [3, 4]).derived == frozenset({0, 1, 2, 5, 6, 7})
    assert not straggler(measured=True).derived
