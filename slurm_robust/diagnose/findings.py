"""Applies the rules to lines: what each line shows, and which exceptions only followed from another one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_robust.diagnose.attempts import ENDS, MARKS_OF_ATTEMPTS, AttemptCount
from slurm_robust.diagnose.hints import BranchIndex, PatternBranch, branches, compiled, masked
from slurm_robust.diagnose.lines import STORY, plain, unlabelled
from slurm_robust.diagnose.raised import BEGINS, MARKS, Tracebacks
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
_NOT_MILD = re.compile(r"NCCL WARN|\bXid\b|[Ff]ault nodes are")
_DETAIL = "Last error:"
"""NCCL's sentence before the line that says what failed."""
_LINE_END = r"\n"
_MAX_JOINED = 50_000
_OTHER_FAILURES = "Failures:"
_FIRST_FAILURE = "Root Cause (first observed failure)"
OPENING = (_DETAIL, _OTHER_FAILURES, _FIRST_FAILURE)
"""What lines say that only tell what the next ones are."""
READ_ANYWAY = (*MARKS, *OPENING, *MARKS_OF_ATTEMPTS)
"""Lines with one of these are read even if no rule recognises them."""
_OF_NCCL = re.compile("NCCL", re.IGNORECASE)
_MESSAGE_LINES = 4
_CACHE_LINES = 8192
_SHORT_CHARS = 500


@dataclass(frozen=True)
class LogFinding:
    """A line that a rule has recognised.

    Attributes:
        text: The line, plain.
        number: The place of the line among the given lines.
        rank: The rank that printed it; None if not known.
        in_traceback: The line is the last one of a traceback.
        chained: The line is an exception that was raised while another exception was handled.
        followed: The line is chained, and the other exception tells as much as this one.
        mild: The line calls itself a warning, or says that the program goes on; or only a clean-up failed.
        header: The line only opens a message, and a later line of that message tells more.
        place: The innermost place of its traceback that is the program's own, `train.py:loss`; empty without one.
        code: The line of code that its traceback shows last; empty without one.
        cut: It is the last line of a traceback that the log does not have whole.
        attempt: Of the attempts whose beginnings the lines show, in which one it stands; the first is 0.
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
    code: str = ""
    cut: bool = False
    attempt: int = 0

    @property
    def category(self) -> Category:
        """The category of the line, by its rule."""
        return self.rule.category

    @property
    def blame(self) -> Blame:
        """Whose fault the failure is, by this line alone."""
        return self.rule.blame

    @property
    def may_open(self) -> bool:
        """Whether a later line may tell more of this line's message."""
        return self.header or self.text.endswith(":") or _OF_NCCL.search(self.text) is not None


class Matcher:
    """Matches lines against a book of rules.

    Attributes:
        slow_rules: Rules whose pattern took too long on a line; they are not tried any more.
    """

    def __init__(self, book: RuleBook) -> None:
        self._rules = book.rules
        self._branches = BranchIndex(branches_of(book), (*_ENDINGS, *READ_ANYWAY))
        self._by_exception: dict[str, tuple[int, Rule]] = {}
        for number, rule in enumerate(book.rules):
            for name in rule.exceptions:
                self._by_exception.setdefault(name, (number, rule))
        self.slow_rules: list[Rule] = []
        self.match_text = functools.lru_cache(_CACHE_LINES)(self._match_text)

    def match(self, line: str) -> Rule | None:
        """Return the first rule that recognises this plain line; None if no rule does."""
        rule: Rule | None = self.match_text(unlabelled(line))
        return rule

    def _match_text(self, text: str) -> Rule | None:
        """Return the first rule that recognises this unlabelled line; None if no rule does."""
        number, by_name = self._exception(text)
        low = masked(text)
        for branch in self._branches.candidates(self._branches.places(low.encode("utf-8", "replace")), low):
            if by_name is not None and number < branch.order:
                return by_name
            if self._matches(branch, text):
                return self._rules[branch.order]
        return by_name

    def places(self, low: bytes) -> set[int]:
        """Return places for `match_key`; empty if no rule matches, negative ones if exceptions or tracebacks may.

        Args:
            low: The line in UTF-8, in lower case, with each digit as 0.
        """
        return self._branches.places(low)

    def match_key(self, key: str, places: Iterable[int]) -> tuple[Rule | None, bool]:
        """Return the rule for all lines with this key (each digit as 0), and whether one rule holds for all of them.

        The second value is False if rules may tell these lines apart by their digits. `places` are those of the line
        with its labels.
        """
        number, by_name = self._exception(key)
        for branch in self._branches.candidates(places, key.lower()):
            if by_name is not None and number < branch.order:
                return by_name, True
            if branch.digits:
                if branch.of_key and not self._found(branch, branch.of_key, key):
                    continue
                return None, False
            if self._matches(branch, key):
                return self._rules[branch.order], True
        return by_name, True

    def _matches(self, branch: PatternBranch, text: str) -> bool:
        return branch.literal or self._found(branch, branch.pattern, text)

    def _found(self, branch: PatternBranch, pattern: str, text: str) -> bool:
        rule = self._rules[branch.order]
        if rule in self.slow_rules:
            return False
        # A time limit takes longer than most searches. The package's own patterns are known to be harmless.
        timeout_s = None if rule.shipped and len(text) <= _SHORT_CHARS else MATCH_S
        try:
            return compiled(pattern).search(text, timeout=timeout_s) is not None
        except TimeoutError:
            self.slow_rules.append(rule)
            return False

    def of_exception(self, text: str) -> Rule | None:
        """Return the rule for a line that ends a traceback, whatever the name of its class."""
        rule: Rule | None = self.match_text(text)
        return rule or self._by_exception.get(ANY_EXCEPTION, (0, None))[1]

    def _exception(self, text: str) -> tuple[int, Rule | None]:
        name = raised_name(text)
        if name is None:
            return 0, None
        return self._by_exception.get(name) or self._by_exception.get(ANY_EXCEPTION) or (0, None)


def raised_name(text: str) -> str | None:
    """Return the last part of the name of the exception that an unlabelled line reports; None if there is none."""
    for ending in _ENDINGS:
        if ending in text:
            break
    else:
        return None
    raised = _EXCEPTION.match(text) or _AFTER_TEXT.search(text)
    return raised[1] if raised is not None else None


def branches_of(book: RuleBook) -> list[PatternBranch]:
    """Return the alternatives of all patterns of a book."""
    return [branch for order, rule in enumerate(book.rules) if rule.pattern for branch in branches(order, rule.pattern)]


@functools.cache
def matcher() -> Matcher:
    """Return the package's own rules, compiled once."""
    return Matcher(shipped())


def matcher_with(site_files: Iterable[str]) -> Matcher:
    """Return the rules of these files, which are tried first, and the package's own.

    Raises:
        RuleError: a file cannot be read or has a mistake.
    """
    files = [Path(file) for file in site_files]
    return Matcher(read(files)) if files else matcher()


def findings(
    lines: Sequence[str], rank: int | None = None, rules: Matcher | None = None, first: int = 0
) -> list[LogFinding]:
    """Return what the rules recognise in the lines of one stream, in order.

    Args:
        lines: The lines of one rank, or of a file that several ranks share.
        rank: The rank that printed all lines, if there is only one.
        rules: The rules; None for the package's own.
        first: The number of the first line.
    """
    reader = FindingsReader(rules or matcher(), rank)
    for number, line in enumerate(lines, first):
        reader.read(number, line)
    reader.finish()
    return reader.found


class FindingsReader:
    """Reads the lines of one stream in their order.

    Attributes:
        found: What the rules have recognised so far, in order.
    """

    def __init__(self, rules: Matcher, rank: int | None = None) -> None:
        self.found: list[LogFinding] = []
        self._rules = rules
        self._rank = rank
        self._tracebacks = Tracebacks()
        self._message = _OpenedMessage()
        self._attempts = AttemptCount()

    @property
    def attempt(self) -> int:
        """The attempt that the next line belongs to; the first is 0."""
        return self._attempts.number

    def read(self, number: int, raw: str) -> None:
        """Read a line; a traceback that a logger has put on one line is split into its own lines first."""
        if BEGINS in raw and _LINE_END in raw:
            for part in raw[:_MAX_JOINED].split(_LINE_END):
                self._read_line(number, plain(part))
        else:
            self._read_line(number, plain(raw))

    def _read_line(self, number: int, line: str) -> None:
        bare = unlabelled(line)
        if (story := STORY.search(bare)) is not None and story.start():  # behind a progress bar, which ends no line
            self._read_line(number, line[: len(line) - len(bare) + story.start()])
            line = bare = bare[story.start() :]
        if self._attempts.takes(bare, number):
            if (since := self._attempts.since) is not None:
                self.found = [self._renumbered(one) if one.number > since else one for one in self.found]
            return
        tracebacks, message = self._tracebacks, self._message
        text = tracebacks.read(bare, line, number)
        if text is None or message.reads(text, number, self.found):
            return
        ends = tracebacks.ends
        rule = self._rules.of_exception(tracebacks.with_place(text)) if ends else self._rules.match_text(text)
        if rule is None:
            return
        mild = tracebacks.harmless or (not ends and _is_mild(line, text))
        # An exception that tells more than the exception that was being handled is not just its consequence.
        chained = ends and tracebacks.handled is not None
        followed = chained and (tracebacks.handled or 0) >= rule.weight
        place, code = (tracebacks.place, tracebacks.code) if ends else ("", "")
        finding = LogFinding(
            rule, line.strip(), number, self._rank, ends, chained, followed, mild, message.other_failures, place, code,
            attempt=self.attempt,
        )  # fmt: skip
        message.closes(finding, self.found)
        self.found.append(finding)
        if ends:
            tracebacks.end(rule.weight)

    def _renumbered(self, one: LogFinding) -> LogFinding:
        """The finding as one of the attempt that is read, unless Slurm says it of the end of the one before."""
        return one if one.text.startswith(ENDS) else replace(one, attempt=self.attempt)

    def finish(self) -> None:
        """Finish after the last line: a cut traceback counts as a finding if nothing else tells why it failed."""
        cut = self._tracebacks.cut
        if cut is None or any(one.rule.weight and not one.mild for one in self.found):
            return
        rule = self._rules.of_exception(f"{cut.raises}: ")
        if rule is not None:
            text = cut.line.strip()
            self.found.append(
                LogFinding(rule, text, cut.number, self._rank, place=cut.place, cut=True, attempt=self.attempt)
            )

    def forget_repeated(self, most: int) -> None:
        """Keep only the first `most` findings of each kind; the root is among them."""
        if self._message.waits:
            return
        times: dict[tuple[object, ...], int] = {}
        kept = []
        for one in self.found:
            kind = (one.attempt, one.rule.id, one.in_traceback, one.chained, one.followed, one.mild, one.header)
            times[kind] = times.get(kind, 0) + 1
            if times[kind] <= most:
                kept.append(one)
        self.found = kept


class _OpenedMessage:
    """Knows which lines only open a message, of which a later line tells more."""

    def __init__(self) -> None:
        self.other_failures = False
        """Whether the lines are of torchelastic's table, before the failure that it saw first."""
        self._openers: list[int] = []
        self._until = -1

    @property
    def waits(self) -> bool:
        """Whether the next line may close a message."""
        return bool(self._openers)

    def reads(self, text: str, number: int, found: Sequence[LogFinding]) -> bool:
        """Return whether this line only says what the next lines are."""
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
        """Mark the findings that only opened the message that this finding ends."""
        for i in self._openers:
            if finding.number <= self._until and finding.rule.weight >= found[i].rule.weight:
                found[i] = replace(found[i], header=True)
        self._openers = [len(found)] if finding.text.endswith(":") else []
        self._until = finding.number + 1


def _is_mild(line: str, text: str) -> bool:
    says = _LEVEL.match(text) or _LEVEL.match(line) or _MILD.search(line.lower())
    return says is not None and _NOT_MILD.search(line) is None


def each_rule_once(found: Iterable[LogFinding]) -> list[LogFinding]:
    """Return the first finding of each rule, in order: other ranks mostly repeat it."""
    kept: dict[str, LogFinding] = {}
    for finding in found:
        kept.setdefault(finding.rule.id, finding)
    return list(kept.values())
