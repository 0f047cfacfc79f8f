"""Which words a line must have for a pattern to match it: most lines have none of them, and are not searched."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
"""Python's own reading of a pattern, which has no public name."""
LEAST_CHARS = 3
"""Shorter words are in nearly every line."""


def hints(pattern: str) -> frozenset[str]:
    """Words in lower case, one of which is in every line that the pattern matches; empty where none are known."""
    try:
        found = _of_sequence(list(parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError):
        return frozenset()
    return found or frozenset()


def _of_sequence(items: list[Any]) -> frozenset[str] | None:
    """The best set of words of which one must be there: the one whose shortest word is longest."""
    best: frozenset[str] | None = None
    run = ""
    for operation, argument in [*items, (None, None)]:
        if operation is parser.LITERAL and argument < 128:
            run += chr(argument).lower()
            continue
        best = _better(best, frozenset({run}) if len(run) >= LEAST_CHARS else None)
        run = ""
        if operation is not None:
            best = _better(best, _of_item(operation, argument))
    return best


def _of_item(operation: Any, argument: Any) -> frozenset[str] | None:
    if operation is parser.SUBPATTERN:
        return _of_sequence(list(argument[-1]))
    if operation is parser.BRANCH:
        branches = [_of_sequence(list(branch)) for branch in argument[1]]
        return None if any(branch is None for branch in branches) else frozenset().union(*branches)  # type: ignore[arg-type]
    if operation in (parser.MAX_REPEAT, parser.MIN_REPEAT) and argument[0] >= 1:
        return _of_sequence(list(argument[2]))
    return None


def _better(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other, key=lambda words: (min(map(len, words)), -len(words)))
