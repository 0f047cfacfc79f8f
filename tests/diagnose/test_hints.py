"""Few patterns are searched in a line, and the rule that recognises it is the one that searching all of them finds."""

from __future__ import annotations

import random

import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.diagnose.findings import branches_of, matcher
from slurm_robust.diagnose.hints import BranchIndex, PatternBranch, branches, masked
from slurm_robust.diagnose.rulebook import Rule, shipped

BOOK = shipped()
PATTERNS = [regex.compile(rule.pattern, regex.IGNORECASE) if rule.pattern else None for rule in BOOK.rules]
EXAMPLES = sorted({line for rule in BOOK.rules for line in rule.examples})
NOISE = [
    "0x7f1c40",
    "\u00e9t\u00e9",
    "9999",
    "ee19999b",
    "\u212a",
    "x" * 60,
    "error",
    "CUDA",
    "/a/b.cc:12]",
    "NCCL WARN",
    ": ",
]


def slowly(text: str, by_name: Rule | None) -> Rule | None:
    """The first rule that recognises a text, by searching the patterns of all of them."""
    for rule, pattern in zip(BOOK.rules, PATTERNS, strict=True):
        if rule is by_name or (pattern is not None and pattern.search(text)):
            return rule
    return None


def of_exception(text: str) -> Rule | None:
    """The rule of the exception that a text reports, whatever else is in it."""
    return matcher()._exception(text)[1]


@st.composite
def lines(draw: st.DrawFn) -> str:
    """Parts of lines that rules know, with others between them."""
    words = [
        word for line in draw(st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=2)) for word in line.split(" ")
    ]
    for _ in range(draw(st.integers(0, 3))):
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(NOISE)))
    start = draw(st.integers(0, len(words)))
    return " ".join(words[start : start + draw(st.integers(1, 30))])


@settings(max_examples=300)
@given(lines())
def test_few_searches_find_what_all_find(text: str) -> None:
    """Whatever stands around the words that a pattern asks for."""
    assert matcher()._match_text(text) is slowly(text, of_exception(text))


@settings(max_examples=300)
@given(lines())
def test_what_is_sure_of_a_key_holds_for_each_line_with_it(text: str) -> None:
    """Lines that differ in digits only are looked at once."""
    key = masked(text) if text.islower() else "".join("0" if char in "123456789" else char for char in text)
    places = matcher().places(key.lower().encode())
    rule, sure = matcher().match_key(key, places)
    dice = random.Random(text)
    for _ in range(5):
        line = "".join(dice.choice("0123456789") if char == "0" else char for char in key)
        if not places:
            assert matcher()._match_text(line) is None
        elif sure:
            assert matcher()._match_text(line) is rule


def test_no_rule_asks_for_mere_digits() -> None:
    """Each line has some: all lines would be searched."""
    mere = [b.pattern for b in branches_of(BOOK) if any(not any(map(str.isalpha, word)) for word in b.words[0])]
    assert mere == []


def test_a_pattern_that_tells_digits_apart_is_tried_without_them_first() -> None:
    """A line that it matches with no digits at all is not read closely."""
    (branch,) = branches(0, r"\bstatus=120[125]{1,2}\b")
    assert branch.digits
    assert branch.of_key == r"\bstatus=000[000]{1,2}\b"
    for pattern in (r"status=(?!0\b)\d+ 5", r"code [^1]2", r"(a)code 7\1"):
        assert branches(0, pattern)[0].of_key == ""


def test_a_long_run_of_letters_is_not_remembered() -> None:
    """Memory is bounded, and what it has is found all the same."""
    index = BranchIndex([PatternBranch(0, "panic", (frozenset({"panic"}),), True, False)])
    long = b"x" * 100 + b"panic" + b"y" * 100
    assert index.places(long) == {0}
    assert long not in index._seen
    assert index.places(b"all is well") == set()
