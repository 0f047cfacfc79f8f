"""Applies the rules to lines: what each of them recognises, and which exceptions only followed from another one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import regex

from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.lines import is_code, place_of, plain, unlabelled
from slurm_robust.diagnose.rulebook import ANY_EXCEPTION, MATCH_S, Rule, RuleBook, read, shipped
from slurm_robust.diagnose.taxonomy import Blame, Category

_NAME = r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Failure|Expired|Iteration)|Exception|(?<=\.)Error)"
_EXCEPTION = re.compile(rf"^{_NAME}(?::|\(|\s*$)")
_AFTER_TEXT = re.compile(rf"[\s:\]]{_NAME}(?:: |:?$)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_CHAIN_WITHIN = 3
"""Lines from an exception to the sentence that says that the next one followed from it."""
_TRACEBACK = "Traceback (most recent call last)"
_MILD = re.compile(
    r"\b(?:warn(?:ing)?|retry(?:ing)?|will retry|ignor(?:ed|ing)|skipp(?:ed|ing)|falling back|deprecated|recovered|"
    r"non-fatal|attempt \d+)\b|^\[W[ \d]|^W\d{4}",
    re.IGNORECASE,
)
_NOT_MILD = re.compile(r"NCCL WARN|\bXid\b")
_CACHE_LINES = 8192


@dataclass(frozen=True)
class LogFinding:
    """A line that a rule has recognised.

    Attributes:
        text: The line, plain.
        number: Its place among the lines that were given.
        rank: Who printed it; None where that is not known.
        in_traceback: It is the last line of a traceback.
        chained: It is an exception that was raised while another one was handled.
        followed: The same, and that other one says as much.
        mild: The line calls itself a warning, or says that it goes on.
        place: The innermost place of its traceback that is the program's own, `train.py:loss`; empty without one.
    """

    rule: Rule
    text: str
    number: int
    rank: int | None = None
    in_traceback: bool = False
    chained: bool = False
    followed: bool = False
    mild: bool = False
    place: str = ""

    @property
    def category(self) -> Category:
        """What it is."""
        return self.rule.category

    @property
    def blame(self) -> Blame:
        """Whose fault it is, by this line alone."""
        return self.rule.blame


class Matcher:
    """Matches lines against a book of rules.

    Attributes:
        slow_rules: Rules whose pattern took too long on a line; they are not tried any more.
    """

    def __init__(self, book: RuleBook) -> None:
        self._patterns = {
            order: (rule, regex.compile(rule.pattern, regex.IGNORECASE))
            for order, rule in enumerate(book.rules)
            if rule.pattern
        }
        by_word: dict[str, list[int]] = {}
        for order, (rule, _) in self._patterns.items():
            for word in hints(rule.pattern) or ("",):
                by_word.setdefault(word, []).append(order)
        self._by_word = list(by_word.items())
        """Words, and the rules that a line with such a word may match: most lines have few, and few rules are tried."""
        self._by_exception: dict[str, tuple[int, Rule]] = {}
        for number, rule in enumerate(book.rules):
            for name in rule.exceptions:
                self._by_exception.setdefault(name, (number, rule))
        self.slow_rules: list[Rule] = []
        self.match_text = functools.lru_cache(_CACHE_LINES)(self._match_text)

    def match(self, line: str) -> Rule | None:
        """The first rule that recognises this plain line; None for none."""
        rule: Rule | None = self.match_text(unlabelled(line))
        return rule

    def _match_text(self, text: str) -> Rule | None:
        """The same of an unlabelled line."""
        low = text.lower()
        number, by_name = self._exception(text)
        orders = {order for word, of_word in self._by_word if word in low for order in of_word}
        for order in sorted(orders & self._patterns.keys()):
            if by_name is not None and number < order:
                return by_name
            rule, pattern = self._patterns[order]
            try:
                if pattern.search(text, timeout=MATCH_S) is not None:
                    return rule
            except TimeoutError:
                self.slow_rules.append(rule)
                self._patterns.pop(order, None)
        return by_name

    def _exception(self, text: str) -> tuple[int, Rule | None]:
        raised = _EXCEPTION.match(text) or _AFTER_TEXT.search(text)
        if raised is None:
            return 0, None
        return self._by_exception.get(raised[1]) or self._by_exception.get(ANY_EXCEPTION) or (0, None)


@functools.cache
def matcher() -> Matcher:
    """The package's own rules, compiled once."""
    return Matcher(shipped())


def matcher_with(site_files: Iterable[str]) -> Matcher:
    """The rules of these files, which are tried first, and the package's own.

    Raises:
        RuleError: a file cannot be read or has a mistake.
    """
    files = [Path(file) for file in site_files]
    return Matcher(read(files)) if files else matcher()


def findings(
    lines: Sequence[str], rank: int | None = None, rules: Matcher | None = None, first: int = 0
) -> list[LogFinding]:
    """What the rules recognise in the lines of one stream, in their order.

    Args:
        lines: Of one rank, or of a file that several ranks share.
        rank: Whose lines they are, if they are one rank's.
        rules: The package's own, unless given.
        first: The first line's number.
    """
    rules = rules or matcher()
    found: list[LogFinding] = []
    chained = in_traceback = after_place = False
    place = ""
    for number, raw in enumerate(lines, first):
        line = plain(raw)
        text = unlabelled(line)
        frame = place_of(text)
        if frame is not None or (after_place and is_code(text)):
            after_place, place = True, frame or place
            continue
        after_place = False
        if _TRACEBACK in line:
            in_traceback, place = True, ""
            continue
        if any(words in line for words in _CHAINED):
            chained = bool(found) and number - found[-1].number <= _CHAIN_WITHIN
            continue
        if not line.strip():
            continue
        rule = rules.match_text(text)
        if rule is None:
            continue
        ends = in_traceback and _EXCEPTION.match(text) is not None
        mild = bool(_MILD.search(line)) and not _NOT_MILD.search(line) and not ends
        # What is more telling than the exception that was being handled is no mere consequence of it.
        raised = chained and ends
        followed = raised and found[-1].rule.weight >= rule.weight
        own = place if ends else ""
        found.append(LogFinding(rule, line.strip(), number, rank, ends, raised, followed, mild, own))
        if ends:
            chained = in_traceback = False
            place = ""
    return found


def each_rule_once(found: Iterable[LogFinding]) -> list[LogFinding]:
    """The first finding of each rule, in order: other ranks mostly repeat it."""
    kept: dict[str, LogFinding] = {}
    for finding in found:
        kept.setdefault(finding.rule.id, finding)
    return list(kept.values())
