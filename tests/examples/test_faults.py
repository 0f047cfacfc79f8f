"""A fault strikes where and when it is told to, and nowhere else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from faults import KINDS, Fault, compute


def told(rank: int = 0, **given: object) -> Fault:
    """A fault as the environment tells it."""
    return Fault(rank, json.dumps(given))


def test_nothing_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no TRAIN_FAULT every place is passed."""
    monkeypatch.delenv("TRAIN_FAULT", raising=False)
    fault = Fault(0)
    fault.at_import()
    fault.in_loader(1)
    fault.before_step(1)
    fault.in_step(1)
    fault.in_checkpoint(1)
    assert not fault.in_evaluation(1)
    assert fault.loss(1, 2.0) == 2.0


def test_an_unknown_kind_is_refused() -> None:
    """A drill that would do nothing says so."""
    with pytest.raises(SystemExit, match="none of"):
        told(kind="hnag")


def test_only_its_rank_from_its_step_on() -> None:
    """Another rank, an earlier step: nothing."""
    assert not told(rank=1, kind="nan", step=3).strikes("nan", 5)
    fault = told(kind="nan", step=3)
    assert [fault.strikes("nan", step) for step in (1, 2, 3, 4)] == [False, False, True, False]


def test_lasting_kinds_last() -> None:
    """A loss that is NaN stays NaN."""
    fault = told(kind="nan", step=2)
    assert [str(fault.loss(step, 1.0)) for step in (1, 2, 3)] == ["1.0", "nan", "nan"]


def test_once_file(tmp_path: Path) -> None:
    """The next attempt is spared; without the file the fault recurs."""
    once = str(tmp_path / "once")
    assert told(kind="stop", once_file=once).strikes("stop", 1)
    assert not told(kind="stop", once_file=once).strikes("stop", 1)
    assert told(kind="stop").strikes("stop", 1)
    assert told(kind="stop").strikes("stop", 1)


def test_exception_and_import_error() -> None:
    """The two that raise do."""
    with pytest.raises(TypeError):
        told(kind="exception").before_step(1)
    with pytest.raises(ImportError):
        told(kind="import_error").at_import()


@pytest.mark.parametrize("kind", ["sleep_outside", "long_step", "long_eval", "long_checkpoint", "slow_rank"])
def test_passing_kinds_pass(kind: str) -> None:
    """They take their time at their place, and training goes on."""
    fault = told(kind=kind, seconds=0.05)
    started_s = time.monotonic()
    fault.before_step(1)
    fault.in_step(1)
    fault.in_checkpoint(1)
    fault.in_evaluation(1)
    assert time.monotonic() - started_s >= 0.05


def test_compute_computes() -> None:
    """It burns CPU and does not sleep, however little of a core a busy machine gives it."""
    before_s = time.process_time()
    for _ in range(50):
        compute(0.1)
        if time.process_time() - before_s > 0.02:
            break
    assert time.process_time() - before_s > 0.02


def test_every_kind_is_documented() -> None:
    """The table at the top of the file has a line for each."""
    import faults  # noqa: PLC0415 (its docstring is the subject)

    assert all(f"\n{kind} " in (faults.__doc__ or "") for kind in KINDS)
