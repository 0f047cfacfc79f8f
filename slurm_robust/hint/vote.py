"""Checks a model's answers, and makes one hint of several samples: the category that most of them name. Pure.

An answer is untrusted: the log behind it may have been written to mislead. It can name an existing category and a line
of the page, and give a sentence. Nothing else of it is used, except a rule that a person may accept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from slurm_robust.diagnose.taxonomy import Category
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.masking import clean
from slurm_robust.hint.page import LogPage, PageLine
from slurm_robust.hint.prompt import ABSTAIN, answerable

MAX_CAUSE_CHARS = 300
MAX_PATTERN_CHARS = 300
MAX_EXAMPLE_CHARS = 500


class _HintAnswer(msgspec.Struct):
    category: str
    cause: str
    line: int = 0
    pattern: str = ""
    another: str = ""


@dataclass(frozen=True)
class HintSample:
    """One answer, checked.

    Attributes:
        line: The line of the page that shows the failure; None if the answer names none.
        pattern, another: A pattern and a second example for a rule, unchecked; empty for none.
    """

    category: str
    cause: str
    line: PageLine | None = None
    pattern: str = ""
    another: str = ""


@dataclass(frozen=True)
class Hint:
    """The failure that a model takes for the root. It is for people: the software does not act on it.

    Attributes:
        category: The category; None if there is no hint: then `reason` says why.
        cause: The cause, as a sentence.
        line: The line that shows the failure.
        confidence: The share of all requested samples that agree.
        agreeing: How many samples agree.
        samples: How many samples were requested.
        reason: Why there is no hint, or why it rests on fewer samples; else empty.
        asked: Host and port that were asked; empty for none.
        model: The model that was asked.
    """

    category: Category | None = None
    cause: str = ""
    line: PageLine | None = None
    confidence: float = 0.0
    agreeing: int = 0
    samples: int = 0
    reason: str = ""
    asked: str = ""
    model: str = ""


def read_answer(text: str, page: LogPage, categories: Mapping[str, Category]) -> HintSample:
    """Return one answer, checked against what the question allowed.

    Raises:
        HintError: the answer is not allowed; the message says why.
    """
    try:
        answer = msgspec.json.decode(text.encode("utf-8", "replace"), type=_HintAnswer)
    except (msgspec.MsgspecError, RecursionError):
        raise HintError("an answer is not the JSON that was asked for") from None
    if answer.category not in answerable(categories):
        raise HintError(f"an answer names a category that does not exist: {clean(answer.category, 40)!r}")
    line = page.lines[answer.line - 1] if 1 <= answer.line <= len(page.lines) else None
    usable = len(answer.pattern) <= MAX_PATTERN_CHARS and answer.pattern.isprintable()
    return HintSample(
        answer.category,
        clean(answer.cause, MAX_CAUSE_CHARS),
        line,
        answer.pattern if usable else "",
        clean(answer.another, MAX_EXAMPLE_CHARS),
    )


def vote(samples: Sequence[HintSample], asked: int, categories: Mapping[str, Category]) -> Hint:
    """Return the hint of these samples; `asked` samples were requested, and failed ones do not agree."""
    counts = Counter(sample.category for sample in samples).most_common(2)
    if not counts:
        return Hint(samples=asked, reason="no answer could be used")
    (name, agreeing), *others = counts
    if others and others[0][1] == agreeing:
        return Hint(samples=asked, reason=f"the answers do not agree: {name}, {others[0][0]}")
    share = agreeing / asked
    if name == ABSTAIN:
        return Hint(samples=asked, agreeing=agreeing, reason="the model does not know either")
    agreed = [sample for sample in samples if sample.category == name]
    lines = Counter(sample.line for sample in agreed if sample.line is not None).most_common(1)
    line = lines[0][0] if lines else None
    cause = next((sample.cause for sample in agreed if sample.line == line), agreed[0].cause)
    return Hint(categories[name], cause, line, share, agreeing, asked)
