"""Finds words that a line must have for a pattern to match, so that lines without these words are not searched."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import regex

from slurm_robust.diagnose.log.interest import longest_at

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
"""Python's own reading of a pattern, which has no public name."""
LEAST_CHARS = 3
"""Shorter words are in nearly every line."""
_WHOLE_ONLY = re.compile(r"\(\?[a-zA-Z]|\(\?\(|\(\?-|\\\d|\\Z")
"""Flags, named groups and references to groups: a part of such a pattern has another meaning than the whole."""
_PLAIN = re.compile(r"[\w :,'/=<>\"@%&;!-]+")
_KNOWN_RUNS, _RUN_CHARS, _LEAST_RUN = 1 << 18, 40, 2
_AS_RUNS = bytes(ord(chr(n).lower()) if chr(n).isalpha() and n < 128 else 32 for n in range(256))
"""Translates letters to lower case, and all other characters to blanks: digits, signs, and all outside ASCII."""
_MASK = str.maketrans("123456789", "000000000")
_REPEATS, _DIGIT = re.compile(r"\{\d*,?\d*\}|\\[dx]"), re.compile(r"\d")
_EACH_DIGIT = re.compile(r"(?P<repeat>\{\d*,?\d*\})|[1-9]")
_NEGATED = re.compile(r"\(\?<?!|\[\^|\\[1-9xuUoN]")
"""Matches parts of patterns that may match any other digit, and characters given by number."""

Words = frozenset[str]


_AskedWord = tuple[bytes, int]


class PatternBranch(NamedTuple):
    """One alternative of a rule's pattern.

    Attributes:
        order: The rule's place in the book.
        pattern: The pattern to search, in upper or lower case.
        words: Sets of words, in lower case and with each digit as 0: a line that matches has a word of each set. The
            first set tells most.
        literal: The pattern is a plain text: a line that has its words matches.
        digits: The pattern tells digits apart: of two lines that only differ in digits, it may match one.
        of_key: If the pattern tells digits apart: a wider pattern for lines with each digit as 0; empty if not known.
    """

    order: int
    pattern: str
    words: tuple[Words, ...]
    literal: bool
    digits: bool
    of_key: str = ""


class BranchIndex:
    """Finds the alternatives of many patterns that may match a line, by the runs of letters in the line.

    Patterns have dozens of alternatives. Searching only the few alternatives whose words a line has takes a tenth of
    the time of searching whole patterns. Each word of an alternative is looked up by its rarest run of letters. Results
    for runs are remembered: without numbers, ids and paths, logs have few different runs, even if all lines differ.
    """

    def __init__(self, found: Iterable[PatternBranch], also: Iterable[str] = ()) -> None:
        """Index these alternatives. The texts `also` are looked for, too: the place of the first text is -1."""
        self._branches = tuple(dict.fromkeys(found))
        """The alternatives, by the order of their rules, and within a rule in the order of its pattern."""
        self._everywhere = tuple(place for place, branch in enumerate(self._branches) if not branch.words)
        self._by_sign: dict[bytes, list[_AskedWord]] = {}
        """Rarest run of a word (its sign) → the word, and the place of a branch that asks for it."""
        sign_of = _sign_chooser(self._branches)
        for place, branch in enumerate(self._branches):
            if branch.words:
                rarest = min(branch.words, key=lambda words: max(sign_of(word) for word in words))
                for word in rarest:
                    self._by_sign.setdefault(sign_of(word)[-1], []).append((word.encode(), place))
        for place, text in enumerate(map(masked, also), 1):
            self._by_sign.setdefault(sign_of(text)[-1], []).append((text.encode(), -place))
        self._no_runs = [sign for sign in self._by_sign if not sign.isalpha()]
        pattern = longest_at(sign for sign in self._by_sign if sign.isalpha())
        self._runs_at = re.compile(pattern.pattern if pattern is not None else b"(?!)")
        self._seen: set[bytes] = set()
        self._of_run: dict[bytes, tuple[_AskedWord, ...]] = {}
        """Run that occurred in lines and contains a sign → the words that are asked for there."""

    def places(self, low: bytes) -> set[int]:
        """Return the places of branches of which a line has a word, for `candidates`, and of the other texts in it.

        Args:
            low: The line in UTF-8, as `masked` gives it.
        """
        runs = low.translate(_AS_RUNS).split()
        asked = [] if self._seen.issuperset(runs) else self._learn(runs)
        for run in self._of_run.keys() & runs:
            asked += self._of_run[run]
        for sign in self._no_runs:
            if sign in low:
                asked += self._by_sign[sign]
        places = {place for word, place in asked if word in low}
        places.update(self._everywhere)
        return places

    def candidates(self, places: Iterable[int], low: str) -> Iterator[PatternBranch]:
        """Yield the branches of which a line has all words, in the order of their rules.

        Args:
            places: The result of `places` for the line, or for a longer line that contains it.
            low: The line as `masked` gives it.
        """
        for place in sorted(places):
            if place >= 0 and has_words(self._branches[place], low):
                yield self._branches[place]

    def _learn(self, runs: Iterable[bytes]) -> list[_AskedWord]:
        """Look up new runs; return the words that are asked for in runs that are too long to be remembered."""
        if len(self._seen) >= _KNOWN_RUNS:
            self._seen.clear()
            self._of_run.clear()
        of_long_ones: list[_AskedWord] = []
        for run in runs:
            if run in self._seen:
                continue
            asked = [word for sign in self._signs_in(run) for word in self._by_sign[sign]]
            if len(run) > _RUN_CHARS:
                of_long_ones += asked
                continue
            self._seen.add(run)
            if asked:
                self._of_run[run] = tuple(asked)
        return of_long_ones

    def _signs_in(self, run: bytes) -> Iterable[bytes]:
        longest = self._runs_at.findall(run)
        if not longest:
            return ()
        return self._by_sign.keys() & {one[:end] for one in longest for end in range(_LEAST_RUN, len(one) + 1)}


def _sign_chooser(branches: Iterable[PatternBranch]) -> Callable[[str], tuple[int, int, bytes]]:
    """Return a function that gives a word's sort key: how common its sign is, and last the sign itself.

    The sign is the run of letters of the word that is in fewest words of all rules, since words that many rules ask for
    are common in logs, too. If a word has no run, the sign is the word itself, which must be looked for in each line.
    """
    words = b" ".join({word.encode() for branch in branches for some in branch.words for word in some})
    commonness = functools.cache(words.count)

    def sign_of(word: str) -> tuple[int, int, bytes]:
        low = word.encode()
        runs = low.translate(_AS_RUNS).split()
        longest = [run for run in runs if len(run) >= LEAST_CHARS] or [max(runs, key=len, default=b"")]
        if len(longest[0]) < _LEAST_RUN:
            return len(words), 0, low
        return min((commonness(run), -len(run), run) for run in longest)

    return sign_of


def masked(text: str) -> str:
    """Return a text in lower case, with each digit as 0."""
    return text.lower().translate(_MASK)


def has_words(branch: PatternBranch, low: str) -> bool:
    """Return whether a line has the words of the branch; `low` is the line as `masked` gives it."""
    for words in branch.words:  # loops, not `all` and `any`: this is the innermost one
        for word in words:
            if word in low:
                break
        else:
            return False
    return True


@functools.lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """Return the pattern, compiled when a line first has its words: most patterns never are."""
    return regex.compile(pattern, regex.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def branches(order: int, pattern: str) -> tuple[PatternBranch, ...]:
    """Return the alternatives of a pattern; the pattern itself if it cannot be split."""
    parts = [] if _WHOLE_ONLY.search(pattern) else _alternatives(pattern)
    found = [_branch(order, part) for part in parts]
    return tuple(found if len(found) > 1 and all(branch.words for branch in found) else [_branch(order, pattern)])


def _branch(order: int, pattern: str) -> PatternBranch:
    words = _required(pattern) or ()
    digits = _DIGIT.search(_REPEATS.sub("", pattern)) is not None
    literal = bool(words) and not digits and pattern.isascii() and _PLAIN.fullmatch(pattern) is not None
    of_key = _EACH_DIGIT.sub(_as_zero, pattern) if digits and _NEGATED.search(pattern) is None else ""
    return PatternBranch(order, pattern, tuple(frozenset(map(masked, some)) for some in words), literal, digits, of_key)


def _as_zero(match: re.Match[str]) -> str:
    return match["repeat"] or "0"


def hints(pattern: str) -> Words:
    """Return words in lower case, one of which is in every line that the pattern matches; empty if not known."""
    return next(iter(_required(pattern) or ()), frozenset())


def _alternatives(pattern: str) -> list[str]:
    """Return the parts of a pattern between the `|` outside groups and sets."""
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
    """Return sets of words: a line that matches has a word of each; best set first. None for a wrong pattern."""
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
    """Return a key of a set of words: the set whose shortest word is longest tells most."""
    return min(map(len, words)), -len(words)
