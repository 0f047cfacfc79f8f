"""Which words a line must have for a pattern to match it: most lines have none of them, and are not searched."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import regex

from slurm_robust.diagnose.log.interest import longest_at

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
"""Python's own reading of a pattern, which has no public name."""
LEAST_CHARS = 3
"""Shorter words are in nearly every line."""
_WHOLE_ONLY = re.compile(r"\(\?[a-zA-Z]|\(\?\(|\(\?-|\\\d|\\Z")
"""Flags, named groups and references to groups: a part of such a pattern means something else than the whole."""
_PLAIN = re.compile(r"[\w :,'/=<>\"@%&;!-]+")
_KNOWN_SETS, _KNOWN_TOKENS, _TOKEN_CHARS = 1 << 13, 1 << 16, 64
_NO_PARTS: frozenset[str] = frozenset()
_MASK = str.maketrans("123456789", "000000000")
_REPEATS, _DIGIT = re.compile(r"\{\d*,?\d*\}|\\[dx]"), re.compile(r"\d")

Words = frozenset[str]


class PatternBranch(NamedTuple):
    """One alternative of a rule's pattern.

    Attributes:
        order: The rule's place in the book.
        pattern: What is searched, in any case.
        words: Of each of these sets, a line that matches has a word, in lower case and with each digit as 0. The first
            set is the most telling.
        literal: The pattern is a mere text: a line that has its words matches.
        digits: It tells digits apart: of two lines that differ in digits only it may match one.
    """

    order: int
    pattern: str
    words: tuple[Words, ...]
    literal: bool
    digits: bool


class BranchIndex:
    """Finds the alternatives of many patterns that a line may match, by the words in it.

    Patterns have dozens of alternatives. To search the few that a line has the words of takes a tenth of the time that
    searching whole patterns takes. Which words a part of a line between blanks has is remembered: most parts of a log
    come again and again.
    """

    def __init__(self, found: Iterable[PatternBranch]) -> None:
        self._everywhere: list[PatternBranch] = []
        self._place: dict[PatternBranch, int] = {}
        """Where a branch stands: rules in their order, and the alternatives of one as they are written."""
        self._by_part: dict[str, list[PatternBranch]] = {}
        self._parts: set[str] = set()
        """What the words of all branches consist of, between blanks."""
        for branch in found:
            self._place.setdefault(branch, len(self._place))
            if not branch.words:
                self._everywhere.append(branch)
            for word in branch.words[0] if branch.words else ():
                self._by_part.setdefault(max(_parts(word), key=len), []).append(branch)
            self._parts.update(part for words in branch.words for word in words for part in _parts(word))
        pattern = longest_at(part.encode() for part in self._parts)
        self._parts_at = re.compile(pattern.pattern.decode() if pattern is not None else "(?!)")
        self._of_token: dict[str, frozenset[str]] = {}
        self._of_parts: dict[frozenset[str], tuple[PatternBranch, ...]] = {}

    def candidates(self, low: str) -> Sequence[PatternBranch]:
        """The branches that a line may match, in the order of their rules; `low` is the line as `masked` gives it."""
        found: set[str] = set()
        of_token = self._of_token
        for token in low.split():
            parts = of_token.get(token)
            if parts is None:
                parts = self._learn(token)
            if parts:
                found |= parts
        known = self._of_parts.get(key := frozenset(found))
        return self._branches_of(key) if known is None else known

    def _learn(self, token: str) -> frozenset[str]:
        longest = self._parts_at.findall(token)
        parts = _NO_PARTS
        if longest:
            parts = frozenset(t[:end] for t in longest for end in range(1, len(t) + 1) if t[:end] in self._parts)
        if len(token) <= _TOKEN_CHARS:
            if len(self._of_token) >= _KNOWN_TOKENS:
                self._of_token.clear()
            self._of_token[token] = parts
        return parts

    def _branches_of(self, parts: frozenset[str]) -> tuple[PatternBranch, ...]:
        if len(self._of_parts) >= _KNOWN_SETS:
            self._of_parts.clear()
        likely = {branch for part in parts for branch in self._by_part.get(part, ())}
        found = {
            branch for branch in likely if all(any(parts.issuperset(_parts(w)) for w in some) for some in branch.words)
        }
        self._of_parts[parts] = tuple(sorted({*self._everywhere, *found}, key=self._place.__getitem__))
        return self._of_parts[parts]


@functools.cache
def _parts(word: str) -> tuple[str, ...]:
    """A word's parts between blanks that are long enough to tell anything; else the longest one."""
    parts = word.split() or [word]
    return tuple(part for part in parts if len(part) > LEAST_CHARS) or (max(parts, key=len),)


def masked(text: str) -> str:
    """A text in lower case, with each digit as 0."""
    return text.lower().translate(_MASK)


def has_words(branch: PatternBranch, low: str) -> bool:
    """Whether a line has the words that the branch asks for; `low` is the line as `masked` gives it."""
    for words in branch.words:  # loops, not `all` and `any`: this is the innermost one
        for word in words:
            if word in low:
                break
        else:
            return False
    return True


@functools.lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """The pattern, compiled when a line first has its words: most never are."""
    return regex.compile(pattern, regex.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def branches(order: int, pattern: str) -> tuple[PatternBranch, ...]:
    """The alternatives of a pattern; the pattern itself where it cannot be parted."""
    parts = [] if _WHOLE_ONLY.search(pattern) else _alternatives(pattern)
    found = [_branch(order, part) for part in parts]
    return tuple(found if len(found) > 1 and all(branch.words for branch in found) else [_branch(order, pattern)])


def _branch(order: int, pattern: str) -> PatternBranch:
    words = _required(pattern) or ()
    digits = _DIGIT.search(_REPEATS.sub("", pattern)) is not None
    literal = bool(words) and not digits and pattern.isascii() and _PLAIN.fullmatch(pattern) is not None
    return PatternBranch(order, pattern, tuple(frozenset(map(masked, some)) for some in words), literal, digits)


def hints(pattern: str) -> Words:
    """Words in lower case, one of which is in every line that the pattern matches; empty where none are known."""
    return next(iter(_required(pattern) or ()), frozenset())


def _alternatives(pattern: str) -> list[str]:
    """The parts of a pattern between the `|` that stand in no group and no set."""
    parts, start, depth, in_set, at = [], 0, 0, False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_set:
            in_set = char != "]"
        elif char == "[":
            in_set = True
            at += 2 if pattern[at + 1 : at + 3] == "^]" else 1 if pattern[at + 1 : at + 2] == "]" else 0
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            parts.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*parts, pattern[start:]]


def _required(pattern: str) -> tuple[Words, ...] | None:
    """Of each of these sets a line that matches has a word, the most telling set first; None for no known pattern."""
    try:
        found = _of_sequence(list(parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError):
        return None
    return tuple(sorted(dict.fromkeys(found), key=_telling, reverse=True))


def _of_sequence(items: list[Any]) -> list[Words]:
    found: list[Words] = []
    run = ""
    for operation, argument in [*items, (None, None)]:
        if operation is parser.LITERAL and argument < 128:
            run += chr(argument).lower()
            continue
        if len(run) >= LEAST_CHARS:
            found.append(frozenset({run}))
        run = ""
        if operation is not None:
            found += _of_item(operation, argument)
    return found


def _of_item(operation: Any, argument: Any) -> list[Words]:
    if operation is parser.SUBPATTERN:
        return _of_sequence(list(argument[-1]))
    if operation is parser.BRANCH:
        each = [max(_of_sequence(list(branch)), key=_telling, default=None) for branch in argument[1]]
        return [] if None in each else [frozenset().union(*each)]  # type: ignore[arg-type]
    if operation in (parser.MAX_REPEAT, parser.MIN_REPEAT) and argument[0] >= 1:
        return _of_sequence(list(argument[2]))
    return []


def _telling(words: Words) -> tuple[int, int]:
    """The set whose shortest word is longest tells most."""
    return min(map(len, words)), -len(words)
