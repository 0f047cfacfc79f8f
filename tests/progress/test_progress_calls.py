"""What the training loop reports must reach a reader whole, and must never be the reason that training fails."""

from __future__ import annotations

import contextlib
import math
import time
from types import ModuleType

import pytest
from progress_source import own_record


def test_before_the_first_step(progress: ModuleType) -> None:
    """A process that only made its page is in start-up, at step -1, with nothing known."""
    progress.layout()
    record = own_record(progress)
    assert (record.step, record.calls, record.phase, record.loss) == (-1, 0, "startup", None)
    assert record.phase_timeout_s is None


def test_the_first_step_is_kept(progress: ModuleType) -> None:
    """Who looks in at step 9 still learns that 7 was the first, and when."""
    progress.mark("imports_done")
    assert own_record(progress).first_step == -1
    before_s = time.time()
    progress.step(7)
    after_s = time.time()
    progress.step(8)
    progress.step(9)
    record = own_record(progress)
    assert (record.step, record.first_step) == (9, 7)
    assert before_s <= record.first_step_at_s <= after_s


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_passed_on(progress: ModuleType, value: float) -> None:
    """NaN and infinity arrive as they are, are told apart from `not given`, and are counted."""
    progress.step(1, loss=value, grad_norm=value)
    progress.step(2)
    record = own_record(progress)
    assert (str(record.loss), str(record.grad_norm)) == (str(value), str(value))
    assert record.nonfinite_losses == 1


def test_the_last_loss_stays(progress: ModuleType) -> None:
    """A loop that gives its loss now and then leaves the last one to be seen."""
    progress.step(1, loss=2)
    progress.step(2)
    record = own_record(progress)
    assert (record.loss, record.loss_call, record.calls) == (2.0, 1, 2)


TOUCHED: list[str] = []


class Untouchable:
    """Stands for a CUDA tensor: whatever is asked of it would wait for the device, so all of it is noted."""

    def __getattribute__(self, name: str) -> object:
        TOUCHED.append(name)
        return object.__getattribute__(self, name)

    def _note(self, *_: object) -> float:
        TOUCHED.append("operator")
        return 1.0

    __float__ = __int__ = __index__ = __bool__ = __len__ = __sub__ = __rsub__ = __repr__ = _note  # type: ignore[assignment]
    __eq__ = __ne__ = __lt__ = _note  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def test_what_is_no_number_is_not_touched(progress: ModuleType) -> None:
    """A tensor as step, loss or norm is ignored without one call on it; the call still counts as a sign of life."""
    progress.step(3)
    progress.step(Untouchable(), loss=Untouchable(), grad_norm=Untouchable())
    progress.set_phase("evaluate", timeout_s=Untouchable())
    record = own_record(progress)
    assert (record.calls, record.step, record.loss, record.grad_norm) == (2, 3, None, None)
    assert TOUCHED == []


@pytest.mark.parametrize("value", [10**40, -(10**40), "x", None, b"", 1.5, True])
def test_no_argument_is_an_error(progress: ModuleType, value: object) -> None:
    """Whatever is given, nothing is raised, and the page can be read afterwards."""
    progress.step(value, loss=value, grad_norm=value)
    progress.set_phase("train", timeout_s=value)
    progress.layout(tp=value)
    progress.mark(value)
    progress.step(5)
    assert own_record(progress).step == 5


def test_phases_nest_and_come_back(progress: ModuleType) -> None:
    """A block's phase holds inside it, also after an exception and around step(); then the one before holds again."""
    progress.step(1)
    with progress.phase("evaluate", timeout_s=9):
        assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("evaluate", 9.0)
        with contextlib.suppress(ZeroDivisionError), progress.phase("checkpoint"):
            assert own_record(progress).phase == "checkpoint"
            _ = 1 / 0
        progress.step(2)
        assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("evaluate", 9.0)
    assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("train", None)


def test_a_step_ends_a_phase_that_was_only_set(progress: ModuleType) -> None:
    """Who forgets to set the phase back is training again with the next step."""
    progress.set_phase("evaluate", timeout_s=100)
    progress.step(1)
    assert (own_record(progress).phase, own_record(progress).phase_timeout_s) == ("train", None)


def test_an_unknown_phase_is_said_once(progress: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen changes nothing and is one line on stderr."""
    for _ in range(3):
        with progress.phase("eval"):
            assert own_record(progress).phase == "startup"
    assert capsys.readouterr().err.count("'eval' is ignored") == 1


def test_marks_keep_the_first_time(progress: ModuleType) -> None:
    """A mark set twice tells its first time; more than fit are ignored."""
    progress.mark("imports_done")
    first = own_record(progress).marks["imports_done"]
    progress.mark("imports_done")
    for n in range(50):
        progress.mark(f"m{n}")
    marks = own_record(progress).marks
    assert marks["imports_done"] == first
    assert len(marks) == 32


def test_timings_are_kept_with_their_steps(progress: ModuleType) -> None:
    """The last 48, oldest first; the total runs from one told step to the next, and is unknown after a gap."""
    for n in range(60):
        progress.step(n)
        progress.timing(compute_s=n / 10)
    progress.step(99)
    progress.timing(communication_s=0.5)
    record = own_record(progress)
    assert record.timed == 61
    assert [t.step for t in record.timings] == [*range(13, 60), 99]
    assert record.timings[0].compute_s == 1.3
    assert 0 <= record.timings[0].total_s < 10
    last = record.timings[-1]
    assert math.isnan(last.total_s)
    assert math.isnan(last.compute_s)
    assert last.communication_s == 0.5


def test_a_timing_that_is_no_number_is_unknown(progress: ModuleType) -> None:
    """Nothing is raised, nothing of the object runs, and the page stays readable."""
    progress.step(1)
    progress.timing(compute_s="fast", communication_s=object())
    record = own_record(progress)
    assert (record.step, record.timed) == (1, 1)
    assert math.isnan(record.timings[0].compute_s)
