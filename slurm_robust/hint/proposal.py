"""Keeps rules that a hint proposes in a review folder, one file each, until a person accepts one.

Each file is a file of rules, with facts about the proposal: a person may read, correct and check it like any other file
of rules. A rule is only accepted if it recognises its own examples and no other rule's examples.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
import yaml

from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.hints import hints
from slurm_robust.diagnose.rulebook import Rule, RuleBook, RuleError, read, shipped
from slurm_robust.diagnose.signature import template
from slurm_robust.diagnose.taxonomy import AboutNode
from slurm_robust.hint.errors import HintError
from slurm_robust.hint.masking import clean
from slurm_robust.hint.page import LogPage
from slurm_robust.hint.vote import Hint, HintSample
from slurm_robust.wire import whole_file

MAX_LISTED = 500
MAX_KINDS = 3
"""A rule may match so many different lines of one log (numbers and paths aside), since ranks repeat an error."""
MAX_FILE_BYTES = 64 << 10
_ID = re.compile(r"[a-z0-9_-]{1,80}")
_MAX_SHOWN_CHARS = 300


@dataclass(frozen=True)
class RuleProposal:
    """A proposed rule that waits for a person.

    Attributes:
        cause: The cause, as a sentence of the model.
        confidence: The confidence of the hint that it came from.
        source: The model that proposed it.
    """

    id: str
    category: str
    pattern: str
    examples: tuple[str, ...]
    cause: str
    confidence: float
    source: str


def propose(hint: Hint, agreed: Iterable[HintSample], page: LogPage, book: RuleBook | None = None) -> RuleProposal:
    """Return the first proposed rule that recognises its own lines and no other rule's example.

    The rule must not match many different lines of the hint's page: it would take over all these lines.

    Raises:
        HintError: there is no such rule; the message says why not.
    """
    book = book or shipped()
    objection = "no answer has a pattern, a line of the log that it matches, and another one"
    for sample in agreed:
        if hint.category is None or sample.line is None or not sample.pattern or not sample.another:
            continue
        examples = (sample.line.text.strip(), sample.another)
        digest = hashlib.sha256(f"{sample.category} {sample.pattern}".encode()).hexdigest()
        proposal = RuleProposal(
            f"hint-{sample.category}-{digest[:8]}", sample.category, sample.pattern, examples, sample.cause,
            hint.confidence, f"proposed by the language model {clean(hint.model, 80)}",
        )  # fmt: skip
        objection = _objection_to_pattern(sample.pattern) or _objection(
            _rule(proposal, book), book, (*examples, sample.line.original)
        )
        objection = objection or _too_broad(_rule(proposal, book), book, page)
        if not objection:
            return proposal
    raise HintError(f"no rule is proposed: {objection}")


def save(folder: Path, proposal: RuleProposal) -> Path:
    """Write a proposal into the review folder; writing an equal proposal again changes nothing.

    Raises:
        HintError: the proposal cannot be written.
    """
    entry = {
        "id": proposal.id, "category": proposal.category, "pattern": proposal.pattern, "source": proposal.source,
        "examples": list(proposal.examples),
    }  # fmt: skip
    about = {"cause": proposal.cause, "confidence": round(proposal.confidence, 3)}
    path = folder / f"{proposal.id}.yaml"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, _yaml({"proposal": about, "rules": [entry]}), 0o600)
    except OSError as error:
        raise HintError(f"the proposed rule cannot be written: {path}: {error.strerror}") from None
    return path


def proposals(folder: Path) -> tuple[list[RuleProposal], list[str]]:
    """Return the proposals in the review folder, and a sentence for each file that is not a proposal."""
    found, problems = [], []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".yaml")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{folder}: cannot be read: {error.strerror}"]
    for path in paths[:MAX_LISTED]:
        try:
            found.append(_load(path)[0])
        except HintError as error:  # noqa: PERF203 (each file is wrong by itself)
            problems.append(str(error))
    if len(paths) > MAX_LISTED:
        problems.append(f"{folder}: {len(paths) - MAX_LISTED} more files are not shown")
    return found, problems


def accept(folder: Path, wanted: str, rules_file: Path) -> None:
    """Add a proposal to the site's file of rules, and remove it from the review folder.

    Raises:
        HintError: there is no such proposal, it is wrong, or the file cannot take it; nothing was changed.
    """
    path = folder / f"{wanted}.yaml"
    if not _ID.fullmatch(wanted) or not path.is_file():
        raise HintError(f"no proposal {wanted!r} waits in {folder}; see: srobust diagnose rules --review {folder}")
    _, rule, entry = _load(path)
    rules_file = rules_file.resolve()
    try:
        book = read([rules_file] if rules_file.exists() else [])
    except RuleError as error:
        raise HintError(f"the site's rules have mistakes already: {error}") from None
    taken = next((other for other in book.rules if other.id == rule.id), None)
    if taken is not None:
        raise HintError(f"the id {rule.id} is taken: {taken.place}")
    objection = _objection_to_pattern(rule.pattern) if rule.pattern else ""
    objection = objection or _objection(rule, book, rule.examples)
    if objection:
        raise HintError(f"{rule.id} is not accepted: {objection}; correct it in {path}")
    try:
        _append(rules_file, entry, rule.id)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HintError(f"{error.filename or rules_file}: cannot be changed: {error.strerror}") from None


def _load(path: Path) -> tuple[RuleProposal, Rule, dict[str, Any]]:
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            raise HintError(f"{path}: this is not a proposal")
        book = read([path])
        loaded = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise HintError(f"{path}: cannot be read: {error}") from None
    except RuleError as error:
        raise HintError(str(error)) from None
    rules = [rule for rule in book.rules if rule.place.startswith(f"{path}:")]
    if len(rules) != 1 or rules[0].id != path.stem:
        raise HintError(f"{path}: a proposal has one rule, whose id is the file's name")
    rule, about = rules[0], loaded.get("proposal")
    about = about if isinstance(about, dict) else {}
    confidence = about.get("confidence")
    proposal = RuleProposal(
        rule.id, rule.category.name, rule.pattern or " ".join(rule.exceptions), rule.examples,
        clean(str(about.get("cause", "")), _MAX_SHOWN_CHARS),
        float(confidence) if isinstance(confidence, (int, float)) else 0.0, clean(rule.source, _MAX_SHOWN_CHARS),
    )  # fmt: skip
    return proposal, rule, loaded["rules"][0]


def _rule(proposal: RuleProposal, book: RuleBook) -> Rule:
    category = book.categories[proposal.category]
    return Rule(
        proposal.id, category, proposal.pattern, (), category.blame, AboutNode.OWN, category.weight, category.remedy,
        proposal.source, proposal.examples,
    )  # fmt: skip


def _objection_to_pattern(pattern: str) -> str:
    """Return why this pattern cannot be a rule's; empty if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pattern that means something else in a later version
            re.compile(pattern)
            empty = regex.compile(pattern, regex.IGNORECASE).search("", timeout=1)
    except (re.error, regex.error, RecursionError, OverflowError, ValueError, MemoryError, TimeoutError) as error:
        return f"the pattern is not a regular expression: {clean(str(error), 80)}"
    if empty is not None or not hints(pattern):
        return "the pattern names no word that a line must have"
    return ""


def _objection(rule: Rule, book: RuleBook, lines: Sequence[str]) -> str:
    """Return why this rule is wrong: it misses a line of its own, or matches another rule's; empty if it is right."""
    matcher = Matcher(RuleBook((rule,), book.categories))
    for line in lines:
        missed = matcher.match(line) is None
        if matcher.slow_rules:
            return "its pattern takes too long"
        if missed:
            return f"it does not match {clean(line, 80)!r}"
    for other in book.rules:
        for line in other.examples:
            if matcher.match(line) is not None:
                return f"it also matches an example of {other.id}: {line[:80]!r}"
    return "its pattern takes too long" if matcher.slow_rules else ""


def _too_broad(rule: Rule, book: RuleBook, page: LogPage) -> str:
    """Return why this rule would recognise ordinary lines of the log; empty if it would not."""
    matcher = Matcher(RuleBook((rule,), book.categories))
    kinds = {template(line.original) for line in page.lines if matcher.match(line.original) is not None}
    return f"it matches {len(kinds)} different lines of this log" if len(kinds) > MAX_KINDS else ""


def _append(path: Path, entry: dict[str, Any], wanted: str) -> None:
    """Add a rule after the others, whose text and comments are not changed.

    Raises:
        HintError: the file is not written in a way that a rule can be added to.
    """
    old = path.read_text("utf-8") if path.exists() else "rules:\n"
    listed = _yaml([entry])
    indented = "".join(f"{' ' * _indent(old)}{line}\n" for line in listed.splitlines())
    old = re.sub(r"^rules:[ ]*\[[ ]*\]\s*\Z", "rules:\n", old, flags=re.MULTILINE)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    path.parent.mkdir(parents=True, exist_ok=True)
    new = f"{old}{'' if old.endswith(chr(10)) else chr(10)}{indented}"

    def check(written: Path) -> None:
        try:
            known = {rule.id for rule in read([written]).rules}
            kept = {rule.id for rule in read([path]).rules} if path.exists() else set()
        except RuleError:
            known, kept = set(), {wanted}
        if wanted not in known or not kept <= known:
            raise HintError(f"{path} does not end with its list of rules; add this there by hand:\n{listed}")

    _replace(path, new, mode, check)


def _indent(text: str) -> int:
    """Return the column of the rules' dashes in a file of rules."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    for name, value in pairs:
        if name.value == "rules" and isinstance(value, yaml.SequenceNode) and not value.flow_style:
            return int(value.start_mark.column)
    return 0


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))


def _replace(path: Path, text: str, mode: int, check: Callable[[Path], None] | None = None) -> None:
    """Write a file as a whole or not at all; `check` may still refuse the new file."""
    whole_file.write(path, text.encode(), mode=mode, check=(lambda new: check(Path(new))) if check else None)
