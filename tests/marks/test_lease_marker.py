"""The lease: which daemon acts, as a marker in a node's comment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.drain_permit import parse as permit_of
from slurm_robust.marks.drain_permit import render_permit
from slurm_robust.marks.lease_marker import LeaseMarker, marked, parse, render, word

MINE = LeaseMarker("ctl1.example", "9f3c")


def test_it_stands_beside_a_persons_words_and_a_drain_permit() -> None:
    """Neither of the daemon's two markers touches the other one, nor a person's text."""
    text = render(MINE._replace(asked="77.1"), render_permit(2000.0, "rack 7", 9))
    assert parse(text) == MINE._replace(asked="77.1")
    assert permit_of(text, 1000.0) == (2000.0, 9)
    again = render_permit(2500.0, render(MINE, text), 9)
    assert parse(again) == MINE
    assert again.startswith("rack 7 ")
    assert again.count("[[") == 2


@given(st.text(max_size=80), st.text(max_size=30))
def test_no_text_breaks_it(text: str, host: str) -> None:
    """What is written is read again, whatever stands beside it and whatever the host is called."""
    mine = LeaseMarker(word(host), "id1")
    assert parse(render(mine, text)) == mine
    assert marked(render(mine, text))
    parse(text)


def test_one_that_cannot_be_read_is_replaced() -> None:
    """One of another version is none, and does not stay beside ours."""
    assert parse("[[srobust-lease v=2 whatever]]") is None
    assert render(MINE, "[[srobust-lease v=2 whatever]]").count("srobust-lease") == 1
