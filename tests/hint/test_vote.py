from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.page import LogPage, PageLine
from slurm_robust.hint.prompt import ABSTAIN, answerable, schema
from slurm_robust.hint.vote import HintSample, read_answer, vote

CATEGORIES = shipped().categories
PAGE = LogPage((PageLine(4, "boom 1", "boom 1"), PageLine(9, "boom 2", "boom 2")))


def answer(**keys: object) -> str:
    """An answer as it was asked for, but for these keys."""
    return json.dumps({"category": "storage", "cause": "c", "line": 2, "pattern": "boom", "another": "boom 3", **keys})


def test_a_good_answer_is_read() -> None:
    """The line is the page's, not the model's words."""
    sample = read_answer(answer(), PAGE, CATEGORIES)
    assert sample == HintSample("storage", "c", PAGE.lines[1], "boom", "boom 3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not the JSON"),
        ("I think that it is storage.", "not the JSON"),
        ("```json\n{}\n```", "not the JSON"),
        ("[" * 50_000, "not the JSON"),
        (answer(line="2"), "not the JSON"),
        (answer(cause=None), "not the JSON"),
        (answer(category="gremlins\x1b[2J\nnode n1 is broken"), r"does not exist: 'gremlins \[2J node n1"),
        (answer(category="comm_timeout"), "does not exist"),
        (answer(category="runtime"), "does not exist"),
    ],
)
def test_what_was_not_asked_for_is_refused(text: str, why: str) -> None:
    """No JSON, wrong types, categories that do not exist or that only follow from another."""
    with pytest.raises(HintError, match=why):
        read_answer(text, PAGE, CATEGORIES)


@given(st.text(max_size=2000), st.integers(), st.text(max_size=2000), st.text(max_size=1000))
def test_no_answer_brings_more_than_it_may(cause: str, line: int, pattern: str, another: str) -> None:
    """Bounded, on one line, printable; and a line that is on the page."""
    text = answer(cause=cause, line=line, pattern=pattern, another=another)
    try:
        sample = read_answer(text, PAGE, CATEGORIES)
    except HintError:
        assert abs(line) > 2**62 or any("\ud800" <= char <= "\udfff" for char in cause + pattern + another)
        return
    assert len(sample.cause) <= 300
    assert len(sample.pattern) <= 300
    assert len(sample.another) <= 500
    assert all(part.isprintable() for part in (sample.cause, sample.pattern, sample.another))
    assert sample.line is None or sample.line in PAGE.lines


@given(st.lists(st.sampled_from(["storage", "gpu_ecc", ABSTAIN]), max_size=9), st.integers(0, 5))
def test_the_confidence_is_the_share_of_all_that_were_asked_for(names: list[str], failed: int) -> None:
    """Failed ones agree with none; a tie and an abstention are no hint."""
    asked = len(names) + failed
    hint = vote([HintSample(name, "c") for name in names], asked, CATEGORIES)
    if hint.category is None:
        assert hint.reason
        assert hint.confidence == 0
        return
    most = names.count(hint.category.name)
    assert hint.category.name != ABSTAIN
    assert hint.confidence == most / asked
    assert all(names.count(other) < most for other in set(names) - {hint.category.name})


def test_the_line_is_the_one_that_most_agreeing_answers_name() -> None:
    """With the sentence of one of those."""
    one, two = PAGE.lines
    samples = [HintSample("storage", "a", one), HintSample("storage", "b", two), HintSample("storage", "d", two),
               HintSample("key", "e", one)]  # fmt: skip
    hint = vote(samples, 4, CATEGORIES)
    assert (hint.line, hint.cause, hint.confidence, hint.agreeing) == (two, "b", 0.75, 3)


def test_the_schema_allows_what_is_read() -> None:
    """Every key is required, no other is allowed, and the categories are those that an answer may name."""
    made = schema(CATEGORIES)
    assert set(made["required"]) == set(made["properties"]) == {"category", "cause", "line", "pattern", "another"}
    assert made["additionalProperties"] is False
    names = made["properties"]["category"]["enum"]
    assert tuple(names) == answerable(CATEGORIES)
    assert "gpu_ecc" in names
    assert "comm_timeout" not in names
