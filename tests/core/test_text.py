"""Reasons: cut at a word, and never longer than what they are written into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.text import ELLIPSIS, first_sentence, joined, shortened


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("short", 10, "short"),
        ("exactly ten", 11, "exactly ten"),
        ("rank 2 on n3: its loader hangs. Requeue", 36, "rank 2 on n3: its loader hangs…"),
        ("rank 2 on n3, and more", 14, "rank 2 on n3…"),
        ("unbreakable", 5, "unbr…"),
        ("ab", 1, "…"),
        ("ab", 0, ""),
    ],
)
def test_cut_at_a_word(text: str, limit: int, cut: str) -> None:
    """What fits is left alone; else whole words and an ellipsis, without the comma or bracket before it."""
    assert shortened(text, limit) == cut


@given(st.text(), st.integers(0, 60))
def test_never_longer_and_a_beginning(text: str, limit: int) -> None:
    """Never longer than the limit; and what stands before the ellipsis is how the text begins."""
    cut = shortened(text, limit)
    assert len(cut) <= limit
    if cut != text and limit:
        assert cut.endswith(ELLIPSIS)
        assert text.startswith(cut[:-1])


def test_the_first_sentence_of_a_plan() -> None:
    """Fault and evidence, without the road; points within names end nothing."""
    fault = "rank 2 on n3.site: its data loader hangs at Fault.in_loader (faults.py:96)"
    assert first_sentence(f"{fault}. Requeue without n3.site") == fault
    assert first_sentence(fault) == fault
    assert first_sentence("") == ""


def test_many_sentences() -> None:
    """Of many suspects the first two are told, and how many there are more."""
    assert joined(["a"]) == "a"
    assert joined(["a", "b"]) == "a; b"
    assert joined(["a", "b", "c", "d"]) == "a; b; and 2 more"
