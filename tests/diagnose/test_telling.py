"""Which lines of a log tell most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.diagnose.findings import matcher
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.diagnose.telling import telling_lines


def told(lines: list[str], most: int = 24) -> list[str]:
    """The most telling of these lines, the best first."""
    return [lines[place] for place in telling_lines(lines, shipped(), matcher(), most)]


def steps(first: int, count: int) -> list[str]:
    """What a healthy job prints."""
    return [f"[rank{n % 4}]: step {n // 4} loss 0.{n:05d} lr 1e-4" for n in range(first, first + count)]


@pytest.mark.parametrize("error", ["FATAL flux capacitor lost alignment", "FluxError: no alignment on lane 3"])
def test_an_error_that_no_rule_knows_is_found_in_the_middle(error: str) -> None:
    """Healthy steps stand around it, on both sides."""
    assert told([*steps(0, 2000), error, *steps(2000, 2000)])[0] == error


def test_of_a_traceback_its_exception_counts_and_repetitions_once() -> None:
    """With labels of ranks, as it stands in the file; what other ranks repeat is no news."""
    trace = ["Traceback (most recent call last):", '  File "/w/a.py", line 1, in f', "    g()", "FluxError: lost"]
    lines = [*steps(0, 400), *(f"[rank{rank}]: {line}" for rank in range(3) for line in trace)]
    assert told(lines)[0] == "[rank0]: FluxError: lost"
    assert sum(line.endswith("FluxError: lost") for line in told(lines)) == 1


def test_no_more_than_asked_for_and_nothing_of_nothing() -> None:
    """Of many, the first ones."""
    errors = [f"{chr(97 + n) * 8} failed" for n in range(26)]
    assert told(errors, most=3) == errors[:3]
    assert told([]) == []


@given(st.lists(st.text(max_size=200), max_size=40))
def test_places_are_those_of_the_lines_that_were_given(lines: list[str]) -> None:
    """Whatever they hold: line ends of any kind, NUL, half surrogates."""
    places = telling_lines(lines, shipped(), matcher())
    assert all(0 <= place < len(lines) and lines[place].strip("\r\n\0 ") for place in places)
