"""Tables for people: they fit, lose nothing, and look right in a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.cli import table
from slurm_robust.cli.table import render

LONG = "rank 2 on n3: its data loader hangs at Fault.in_loader (examples/faults.py:96). Requeue without n3"


def test_a_long_reason_wraps_in_its_column() -> None:
    """The reason continues under itself, and all of its words are there."""
    lines = render(("opened", "id", "reason"), [("11-21 06:37:06", "1-r0-1795243020", LONG)], columns_wide=80)
    assert max(map(len, lines)) <= 80
    assert len(lines) == 4
    at = lines[0].index("reason")
    assert all(line[:at].strip() == "" for line in lines[2:])
    assert " ".join(line[at:].strip() for line in lines[1:]) == LONG


def test_the_least_important_columns_go() -> None:
    """Where wrapping is not enough, and in the given order; what was not named stays."""
    row = ("a" * 20, "b" * 20, "c" * 20, LONG)
    lines = render(("one", "two", "three", "reason"), [row], drop=("three", "two"), columns_wide=82)
    assert lines[0].split() == ["one", "two", "reason"]
    assert render(("one", "two", "three", "reason"), [row], drop=("three", "two"), columns_wide=200)[1].count("c") >= 20


def test_empty_columns_are_left_out() -> None:
    """A heading over nothing says nothing."""
    assert render(("node", "job", "why"), [("n1", "", "x"), ("n2", None, "")])[0].split() == ["node", "why"]


def test_nothing_for_the_terminal() -> None:
    """Text of a job cannot move the cursor, and no line ends in blanks."""
    lines = render(("name", "why"), [("evil\x1b[2J\nname", "x"), ("b", "")])
    assert lines == ["name           why", "evil?[2J?name  x", "b"]


@given(st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(80, 140))
def test_always_within_the_width(rows: list[list[str]], wide: int) -> None:
    """Whatever stands in four columns, 80 columns and more hold it."""
    lines = render(("a", "b", "c", "d"), rows, drop=("c", "b"), columns_wide=wide)
    assert max(map(len, lines)) <= max(wide, 3 * 24 + 36 + 6)


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The title and `none`, so that nobody looks for what is missing."""
    table.table("Incidents", ("id",), [])
    assert capsys.readouterr().out == "Incidents\nnone\n"
