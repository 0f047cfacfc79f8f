"""What the benchmarks share: spreads, targets, the object that is printed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import lib  # type: ignore[import-not-found]


def test_a_spread_says_least_median_and_most() -> None:
    """And with one value, only that."""
    found = lib.spread([3.0, 1.0, 2.0, 10.0])
    assert (found.min, found.median, found.max, found.n) == (1.0, 2.5, 10.0, 4)
    assert str(found) == "2.50 (1.00 – 10.00)"
    assert str(lib.spread([2.0])) == "2.00"
    assert lib.spread([]) is None


def test_a_target_is_met_missed_or_not_measured() -> None:
    """Not measured is not met, and not missed either."""
    assert lib.Target("x", 1.0, "s", 1.0).met is True
    assert lib.Target("x", 1.0, "s", 1.1).met is False
    assert lib.Target("x", 1.0, "s", None).met is None
    assert lib.Target("x", 1.0, "s", 0.9, (0.5, 1.2)).verdict == "cannot tell"
    assert lib.Target("x", 1.0, "s", 0.9, (0.8, 0.95)).verdict == "met"
    assert lib.Target("x", 1.0, "s", 1.9, (1.8, 1.95)).verdict == "NOT met"


def test_a_report_is_one_object_and_a_table() -> None:
    """Both carry the machine, every target and the word about CPUs."""
    targets = [lib.Target("made up", 1, "s", 2.0)]
    report = lib.Report("none", quick=True, figures={"f": lib.spread([1])}, targets=targets, machine=lib.machine())
    shown = json.loads(report.to_json())
    assert shown["figures"] == {"f": {"min": 1, "median": 1, "max": 1, "n": 1}}
    assert shown["targets"][0]["met"] is False
    assert shown["machine"]["cores"] >= 1
    assert {"date", "cpu", "memory_gib", "python", "torch", "slurm", "slurm_robust"} <= set(shown["machine"])
    text = io.StringIO()
    report.show(Console(file=text, width=160))
    assert "NOT met" in text.getvalue()
    assert "nothing of GPUs" in text.getvalue()


def test_waiting_ends_with_what_was_awaited() -> None:
    """A benchmark that waits in vain says for what."""
    assert lib.wait_for(lambda: 7, 1, "seven") == 7
    with pytest.raises(TimeoutError, match="a miracle"):
        lib.wait_for(lambda: None, 0.1, "a miracle")
