"""Reads rules: the package's own, and those that a site adds. A wrong rule is reported with its file and line."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
import yaml

from slurm_robust.core.text import joined
from slurm_robust.diagnose.log.lines import read_regular
from slurm_robust.diagnose.taxonomy import AboutNode, Blame, Category, Urgency

FOLDER = Path(__file__).with_name("rules")
CATEGORIES = "categories.yaml"
ANY_EXCEPTION = "any"
MATCH_S = 0.05
"""The time limit of one rule on one line: a site's pattern may backtrack for ever."""
SPECIFIC_WEIGHT = 15
MOST_WEIGHT = 100
_LINE_KEY = "\0line"
_RULE_KEYS = {"id", "category", "pattern", "exception", "blame", "scope", "weight", "remedy", "source", "examples"}
_CATEGORY_KEYS = {"name", "blame", "weight", "urgency", "meaning", "remedy"}
_MAX_BYTES = 4 << 20


class RuleError(ValueError):
    """A file of rules is wrong; the message says where and why, a line for each mistake."""


@dataclass(frozen=True)
class Rule:
    """A rule that recognises a category in a line.

    Attributes:
        pattern: The pattern to search in the line; empty for a rule of exceptions.
        exceptions: Python exceptions, by the last part of their names; `any` for all.
        blame, weight, remedy: Those of the category, unless the rule has its own.
        place: The file and line of the rule.
    """

    id: str
    category: Category
    pattern: str
    exceptions: tuple[str, ...]
    blame: Blame
    scope: AboutNode
    weight: int
    remedy: str
    source: str
    examples: tuple[str, ...]
    place: str = ""

    @property
    def vague(self) -> bool:
        """Whether its lines tell too little to know the cause."""
        return self.weight < SPECIFIC_WEIGHT

    @functools.cached_property
    def shipped(self) -> bool:
        """Whether the rule is one of the package's own."""
        return self.place.startswith(f"{FOLDER}/")


@dataclass(frozen=True)
class RuleBook:
    """All rules, in the order in which they are tried, and all categories by name."""

    rules: tuple[Rule, ...]
    categories: Mapping[str, Category]


@functools.cache
def shipped() -> RuleBook:
    """Return the package's own rules."""
    return read([])


def read(site_files: Iterable[Path]) -> RuleBook:
    """Return the site's rules, which are tried first, and the package's own.

    Raises:
        RuleError: a file cannot be read or has a mistake.
    """
    categories = _categories(FOLDER / CATEGORIES)
    files = [*site_files, *(path for path in sorted(FOLDER.glob("*.yaml")) if path.name != CATEGORIES)]
    rules: list[Rule] = []
    problems: list[str] = []
    for path in files:
        rules += _rules(path, categories, problems)
    known: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in known:
            problems.append(f"{rule.place}: the id {rule.id} is taken: {known[rule.id].place}")
        known[rule.id] = rule
    if problems:
        raise RuleError("\n".join(problems))
    return RuleBook(tuple(rules), categories)


def _load(path: Path) -> Any:
    try:
        text = read_regular(path, _MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise RuleError(f"{path}: more than {_MAX_BYTES >> 20} MiB: this is not a file of rules")
        return yaml.load(text.decode("utf-8"), _Loader)  # noqa: S506 (a safe loader that keeps line numbers)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise RuleError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise RuleError(f"{where}: {getattr(error, 'problem', None) or error}") from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Keeps the line of each mapping."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    made[_LINE_KEY] = node.start_mark.line + 1
    return made


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _categories(path: Path) -> dict[str, Category]:
    found = {}
    for order, entry in enumerate(_load(path)["categories"]):
        fields = {key: entry[key] for key in _CATEGORY_KEYS}
        fields |= {"blame": Blame(entry["blame"]), "urgency": Urgency(entry["urgency"])}
        found[entry["name"]] = Category(**fields, order=order)
    return found


def _rules(path: Path, categories: Mapping[str, Category], problems: list[str]) -> list[Rule]:
    loaded = _load(path)
    entries = loaded.get("rules") if isinstance(loaded, dict) else None
    if not isinstance(entries, list):
        problems.append(f"{path}: the file must have one key, `rules`, with a list")
        return []
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            problems.append(f"{path}: a rule must have keys, not {str(entry)[:60]!r}")
            continue
        place = f"{path}:{entry.pop(_LINE_KEY, 0)}"
        mistakes = _mistakes(entry, categories)
        problems += [f"{place}: {mistake}" for mistake in mistakes]
        if not mistakes:
            found.append(_rule(entry, categories, place))
    return found


def _rule(entry: Mapping[str, Any], categories: Mapping[str, Category], place: str) -> Rule:
    category = categories[entry["category"]]
    names = entry.get("exception", ())
    return Rule(
        id=entry["id"],
        category=category,
        pattern=entry.get("pattern", ""),
        exceptions=(names,) if isinstance(names, str) else tuple(names),
        blame=Blame(entry.get("blame", category.blame)),
        scope=AboutNode(entry.get("scope", AboutNode.OWN)),
        weight=entry.get("weight", category.weight),
        remedy=entry.get("remedy", category.remedy),
        source=entry["source"],
        examples=tuple(entry["examples"]),
        place=place,
    )


def _mistakes(entry: Mapping[str, Any], categories: Mapping[str, Category]) -> list[str]:
    found = [f"unknown key {key!r}; known are {joined(sorted(_RULE_KEYS))}" for key in entry if key not in _RULE_KEYS]
    texts = [key for key in ("id", "category", "source") if not isinstance(entry.get(key), str) or not entry[key]]
    found += [f"{key} must be a text" for key in texts]
    if isinstance(entry.get("category"), str) and entry["category"] not in categories:
        found.append(f"category {entry['category']!r} is not known; see `srobust diagnose rules`")
    if ("pattern" in entry) == ("exception" in entry):
        found.append("a rule has either a pattern or an exception")
    if "pattern" in entry:
        found += _mistakes_of_pattern(entry["pattern"])
    names = entry.get("exception", [])
    if not isinstance(names, str) and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        found.append("exception must be a name, a list of names, or `any`")
    for key, kind in (("blame", Blame), ("scope", AboutNode)):
        if key in entry and entry[key] not in [one.value for one in kind]:
            found.append(f"{key} {entry[key]!r} is not one of {joined(one.value for one in kind)}")
    weight = entry.get("weight", 0)
    if type(weight) is not int or not 0 <= weight <= MOST_WEIGHT:
        found.append(f"weight must be a number from 0 to {MOST_WEIGHT}")
    examples = entry.get("examples")
    if not isinstance(examples, list) or len(examples) < 2 or not all(isinstance(line, str) for line in examples):
        found.append("examples must be two lines or more that the rule matches")
    return found


def _mistakes_of_pattern(pattern: Any) -> list[str]:
    if not isinstance(pattern, str) or not pattern:
        return ["pattern must be a text"]
    try:
        made = regex.compile(pattern, regex.IGNORECASE)
    except regex.error as error:
        return [f"pattern is not a regular expression: {error}"]
    return ["pattern matches the empty line"] if made.search("") else []
