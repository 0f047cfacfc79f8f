"""`srobust diagnose rules`: the rules that recognise failures, shown, checked and reviewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.rule_review import review_folder, review_rules
from slurm_robust.cli.teaching import lesson
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.rulebook import Rule, RuleBook, RuleError, read


class WrongRulesError(click.ClickException):
    """A file of rules has mistakes."""

    exit_code = 2


@click.command(
    "rules",
    epilog=lesson(
        [
            ("srobust diagnose rules", "every kind of failure that is known, and its remedy"),
            ("srobust diagnose rules --json", "all rules"),
            ("srobust diagnose rules --check site.yaml", "each mistake with its file and line"),
            ("srobust diagnose rules --review", "rules that hints have proposed, with their examples"),
        ],
        [(0, "the rules are right"), (2, "wrong usage, or a rule is wrong; stderr tells which and why")],
    ),
)
@click.option(
    "--check", "checked", type=click.Path(path_type=Path), help="Check this file of rules, examples included."
)
@click.option("--json", "as_json", is_flag=True, help="All rules, or with --review all proposals, for tools.")
@click.option(
    "--review",
    is_flag=False,
    flag_value="",
    metavar="[FOLDER]",
    help="Proposals that wait in this folder (default: diagnose.llm.review_dir).",
)
@click.option("--accept", metavar="ID", help="Add this proposal to the file of --rules; with --review.")
@click.option("--rules", "into", type=click.Path(dir_okay=False, path_type=Path), help="The file for --accept.")
@click.option("--config", type=click.Path(dir_okay=False), help="robust.yaml with diagnose.llm; else as the daemon.")
def command(
    *,
    checked: Path | None,
    as_json: bool,
    review: str | None,
    accept: str | None,
    into: Path | None,
    config: str | None,
) -> None:
    """The rules that recognise failures; or check a file of your own.

    \b
    A file of rules is YAML. No Python is needed to add one:
      rules:
      - id: our-storage-gateway             # unique
        category: storage                   # one of those that this command lists
        pattern: 'gateway [0-9]+ is down'   # searched in each line; or exception: [ShardError]
        source: https://wiki.example.org/storage
        examples:                           # two lines or more that it must match
        - "error: gateway 7 is down, giving up"
        - "gateway 12 is down"

    \b
    A hint may propose a rule; nothing uses it before a person accepts it:
      srobust diagnose rules --review
      srobust diagnose rules --review --accept ID --rules site.yaml
    """  # noqa: D301 (click's mark for text that is not wrapped)
    if review is None and (accept is not None or into is not None):
        raise click.UsageError("--accept and --rules go with --review")
    if review is not None:
        review_rules(review_folder(review, config), accept, into, as_json=as_json)
        return
    book = book_of(() if checked is None else (checked,))
    if checked is not None:
        mistakes = wrong_examples(book, [rule for rule in book.rules if rule.place.startswith(f"{checked}:")])
        if mistakes:
            raise WrongRulesError("\n".join(mistakes))
        count = sum(rule.place.startswith(f"{checked}:") for rule in book.rules)
        click.echo(f"{checked}: {count} rules, all right")
        return
    if as_json:
        click.echo(json.dumps([_rule_json(rule) for rule in book.rules], indent=1))
        return
    for category in book.categories.values():
        click.echo(f"{category.name} ({category.blame.value}): {category.meaning}\n    {category.remedy}")


def wrong_examples(book: RuleBook, rules_of: list[Rule]) -> list[str]:
    """Return a sentence for each example that its own rule does not recognise."""
    matcher = Matcher(book)
    found = []
    for rule in rules_of:
        for line in rule.examples:
            other = matcher.match(line)
            if other is not rule:
                who = f"it is recognised as {other.id} ({other.place})" if other is not None else "nothing matches it"
                found.append(f"{rule.place}: the example {line[:80]!r} is not recognised by {rule.id}: {who}")
    return found


def book_of(site_rules: tuple[Path, ...]) -> RuleBook:
    """Return a site's rules, followed by the package's."""
    try:
        return read(site_rules)
    except RuleError as error:
        raise WrongRulesError(str(error)) from None


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id, "category": rule.category.name, "blame": rule.blame.value, "weight": rule.weight,
        "pattern": rule.pattern, "exceptions": list(rule.exceptions), "scope": rule.scope.value, "remedy": rule.remedy,
        "source": rule.source, "examples": list(rule.examples), "place": rule.place,
    }  # fmt: skip
