"""Applies the rules to lines: what each of them recognises, and which exceptions only followed from another one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import regex

from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.lines import plain, unlabelled
from slurm_robust.diagnose.log.interest import any_of
from slurm_robust.diagnose.raised import BEGINS, Tracebacks
from slurm_robust.diagnose.rulebook import ANY_EXCEPTION, MATCH_S, Rule, RuleBook, read, shipped
from slurm_robust.diagnose.taxonomy import Blame, Category

_ENDINGS = ("Error", "Exception", "Interrupt", "Failure", "Expired", "Iteration", "timeout")
_NAME = (
    r"(?:[A-Za-z_]\w*\.)*"
    r"([A-Z]\w*(?:Error|Exception|Interrupt|Failure|Expired|Iteration)|Exception|(?<=\.)(?:Error|timeout))"
)
_EXCEPTION = re.compile(rf"^{_NAME}(?::|\(|\s*$)")
_AFTER_TEXT = re.compile(rf"[\s:\]\"'(]{_NAME}(?:: |:?$)")
_MILD = re.compile(
    r"\b(?:warn(?:ing)?|retry(?:ing)?|will retry|ignor(?:ed|ing)|skipp(?:ed|ing)|falling back|deprecated|recovered|"
    r"non-fatal|attempt \d+|thrown while requesting (?:get|head)|trying to resume|going to /tmp instead)\b|\w+warning:"
)
_LEVEL = re.compile(r"\[[IW][ \d]|[IW]\d{4} |.{0,80}?(?<![=\w])(?:INFO|DEBUG)\b")
_NOT_MILD = re.compile(r"NCCL WARN|\bXid\b")
_OURS = re.compile(r"srobust(?: [\w-]+)?(?:\[\d+\])?: ")
"""Our own lines in a job's output quote what others have printed."""
_DETAIL = "Last error:"
"""NCCL's sentence before the line that says what failed."""
_LINE_END = r"\n"
_MAX_JOINED = 50_000
_OTHER_FAILURES = "Failures:"
_FIRST_FAILURE = "Root Cause (first observed failure)"
_OF_NCCL = re.compile("NCCL", re.IGNORECASE)
_MESSAGE_LINES = 4
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
        mild: The line calls itself a warning, or says that it goes on; or what failed is only a clean-up.
        header: The line only opens a message, and a later line of that message says more.
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
    header: bool = False
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
        self._any_word = any_of(word.encode() for word in by_word) if "" not in by_word else None
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
        number, by_name = self._exception(text)
        low = text.lower()
        if self._any_word is not None and self._any_word.search(low.encode(errors="replace")) is None:
            return by_name
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

    def of_exception(self, text: str) -> Rule | None:
        """The rule for a line that ends a traceback, whatever the name of its class."""
        rule: Rule | None = self.match_text(text)
        return rule or self._by_exception.get(ANY_EXCEPTION, (0, None))[1]

    def _exception(self, text: str) -> tuple[int, Rule | None]:
        if not any(ending in text for ending in _ENDINGS):
            return 0, None
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
    tracebacks = Tracebacks()
    found: list[LogFinding] = []
    message = _OpenedMessage()
    for number, line in _plain_lines(lines, first):
        bare = unlabelled(line)
        if _OURS.match(bare):
            continue
        text = tracebacks.read(bare, line)
        if text is None or message.reads(text, number, found):
            continue
        ends = tracebacks.ends
        rule = rules.of_exception(tracebacks.with_place(text)) if ends else rules.match_text(text)
        if rule is None:
            continue
        mild = tracebacks.harmless or (not ends and _is_mild(line, text))
        # What is more telling than the exception that was being handled is no mere consequence of it.
        chained = ends and tracebacks.handled is not None
        followed = chained and (tracebacks.handled or 0) >= rule.weight
        place = tracebacks.place if ends else ""
        finding = LogFinding(
            rule, line.strip(), number, rank, ends, chained, followed, mild, message.other_failures, place
        )
        message.closes(finding, found)
        found.append(finding)
        if ends:
            tracebacks.end(rule.weight)
    return found


def _plain_lines(lines: Sequence[str], first: int) -> Iterator[tuple[int, str]]:
    """Each line with its number; a traceback that a logger has put on one line, as the lines that it was."""
    for number, raw in enumerate(lines, first):
        if BEGINS in raw and _LINE_END in raw:
            for part in raw[:_MAX_JOINED].split(_LINE_END):
                yield number, plain(part)
        else:
            yield number, plain(raw)


class _OpenedMessage:
    """Which lines only open a message: a later line of it says more."""

    def __init__(self) -> None:
        self.other_failures = False
        """The lines are of torchelastic's table, before the failure that it saw first."""
        self._openers: list[int] = []
        self._until = -1

    def reads(self, text: str, number: int, found: Sequence[LogFinding]) -> bool:
        """Whether this line only says what the next ones are."""
        if _DETAIL in text:
            near = range(max(0, len(found) - _MESSAGE_LINES), len(found))
            self._openers = [i for i in near if _OF_NCCL.search(found[i].text)]
            self._until = number + 1
        elif text.strip() == _OTHER_FAILURES:
            self.other_failures = True
        elif _FIRST_FAILURE in text:
            self.other_failures = False
        else:
            return False
        return True

    def closes(self, finding: LogFinding, found: list[LogFinding]) -> None:
        """Mark the findings that only opened the message that this one closes."""
        for i in self._openers:
            if finding.number <= self._until and finding.rule.weight >= found[i].rule.weight:
                found[i] = replace(found[i], header=True)
        self._openers = [len(found)] if finding.text.endswith(":") else []
        self._until = finding.number + 1


def _is_mild(line: str, text: str) -> bool:
    says = _LEVEL.match(text) or _LEVEL.match(line) or _MILD.search(line.lower())
    return says is not None and _NOT_MILD.search(line) is None


def each_rule_once(found: Iterable[LogFinding]) -> list[LogFinding]:
    """The first finding of each rule, in order: other ranks mostly repeat it."""
    kept: dict[str, LogFinding] = {}
    for finding in found:
        kept.setdefault(finding.rule.id, finding)
    return list(kept.values())
