"""What steps took beyond their usual pace, and for checkpoints that the program announced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.watch.step_pace import StepPace


def trained(pace: StepPace, steps: int, each_s: float, *, from_step: int = 0, at_s: float = 1000.0) -> float:
    """So many steps of this length; the time of the last one."""
    for step in range(from_step, from_step + steps):
        at_s += each_s
        pace.saw(step, at_s, "train")
    return at_s


def test_even_steps_lose_nothing() -> None:
    """Short and long steps have their pace, and nothing is slow."""
    for each_s in (0.1, 1.0, 30.0):
        pace = StepPace()
        trained(pace, 1000, each_s)
        assert pace.usual_s == pytest.approx(each_s)
        assert (pace.slow_s, pace.checkpoint_s) == (0, pytest.approx(0))


def test_a_pause_is_slow_and_an_announced_one_is_the_checkpoint() -> None:
    """Twenty seconds more, each."""
    pace = StepPace()
    at_s = trained(pace, 100, 1.0)
    pace.saw(100, at_s + 21.0, "train")
    assert pace.slow_s == pytest.approx(20, abs=1)
    pace.saw(100, at_s + 22.0, "checkpoint")
    pace.saw(101, at_s + 42.0, "train")
    assert pace.checkpoint_s == pytest.approx(20, abs=1)
    pace.saw(101, at_s + 43.0, "evaluate")
    pace.saw(102, at_s + 143.0, "train")
    trained(pace, 50, 1.0, from_step=103, at_s=at_s + 143.0)
    assert (pace.slow_s, pace.checkpoint_s) == (pytest.approx(20, abs=1), pytest.approx(20, abs=1))


def test_another_attempt_begins_anew_but_keeps_the_pace() -> None:
    """The time between two attempts is no step."""
    pace = StepPace()
    at_s = trained(pace, 100, 1.0)
    pace.restart()
    trained(pace, 100, 1.0, from_step=80, at_s=at_s + 500)
    assert pace.slow_s == 0
    pace.saw(3, at_s + 9000, "train")
    assert pace.slow_s == 0, "a step that falls begins anew"


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1e6), st.sampled_from(["train", "checkpoint", "idle", ""]))))
def test_any_reports_give_seconds_that_can_be_true(reports: list[tuple[int, float, str]]) -> None:
    """No negative seconds, and never more than have passed."""
    pace = StepPace()
    for step, at_s, phase in reports:
        pace.saw(step, at_s, phase)
    assert pace.slow_s >= 0
    assert pace.checkpoint_s >= 0
    assert pace.usual_s >= 0
