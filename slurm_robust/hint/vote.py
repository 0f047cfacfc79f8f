"""Checks a model's answers, and makes one hint of several samples: the category that most of them name. Pure.

An answer is untrusted: the log it was made from may have been written to mislead. It can name a category that exists
and a line of the page, and say a sentence. Nothing else of it is used, but for a rule that a person may accept.
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
        line: The line of the page that shows it; None if the answer names none.
        pattern, another: Of a rule that recognises it, unchecked; empty for none.
    """

    category: str
    cause: str
    line: PageLine | None = None
    pattern: str = ""
    another: str = ""


@dataclass(frozen=True)
class Hint:
    """What a model takes for the root. For people: nothing acts on it.

    Attributes:
        category: None if there is no hint; then `reason` says why.
        cause: A sentence.
        line: The line that shows it.
        confidence: The share of all samples asked for that agree.
        agreeing: How many those are.
        samples: How many were asked for.
        reason: Why there is none, or why it rests on fewer samples; empty otherwise.
        asked: Host and port that were asked; empty for none.
        model: Which model.
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
    """One answer, checked against what the question allowed.

    Raises:
        HintError: it is no such answer; says why.
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
    """The hint of these samples; `asked` were asked for, and those that failed agree with none."""
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
