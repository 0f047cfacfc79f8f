"""`srobust diagnose FILE…`: what broke, from any log, with or without a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.hinting import hint_text, hinting_for
from slurm_robust.cli.rule_review import review_folder, review_rules
from slurm_robust.cli.teaching import lesson
from slurm_robust.diagnose.findings import LogFinding, Matcher, findings
from slurm_robust.diagnose.large_files import read_large
from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.render import DEFAULT_BYTES, render
from slurm_robust.diagnose.root import Diagnosis, diagnose
from slurm_robust.diagnose.rulebook import Rule, RuleBook, RuleError, read
from slurm_robust.diagnose.signature import signature

_MAX_SHOWN = 6
_WHOLE_BYTES = 8 << 20
"""Larger logs are compressed to a page first."""


_EXITS = [(0, "a root was found"), (1, "nothing in the log says what happened"), (2, "wrong usage, or wrong rules")]


class _WrongRules(click.ClickException):
    """A file of rules has mistakes."""

    exit_code = 2


class _DiagnoseGroup(click.Group):
    """`srobust diagnose FILE` diagnoses; `srobust diagnose rules` shows rules."""

    default = "log"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without a subcommand's name the words belong to the default one."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_DiagnoseGroup,
    epilog=lesson(
        [
            ("srobust diagnose slurm-1234.out", "what broke, whose fault it is, and what to do"),
            ("srobust diagnose rank-*.log --json", "the same of several files, for tools"),
            ("srobust diagnose rules", "every kind of failure that is known, and its remedy"),
            ("srobust diagnose rules --check site.yaml", "are these rules of ours right?"),
            ("srobust diagnose slurm-1234.out --hint", "where no rule knows, ask the site's language model"),
            ("srobust diagnose rules --review", "rules that hints have proposed"),
        ],
        _EXITS,
    ),
)
def command() -> None:
    """What broke, in its own words: the root among the errors of any log, whose fault it is, and what to do.

    The words FILE… may follow at once: `srobust diagnose slurm-1234.out`.
    """


@command.command(
    epilog=lesson(
        [
            ("srobust diagnose log slurm-1234.out", "what broke, whose fault it is, and what to do"),
            ("srobust diagnose log slurm-1234.out --hint-page", "what --hint would send; nothing is sent"),
            ("srobust diagnose log slurm-1234.out --hint", "where no rule knows, ask the site's language model"),
        ],
        _EXITS,
    )
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The diagnosis as one JSON object.")
@click.option(
    "--rules", "site_rules", multiple=True, type=click.Path(path_type=Path), help="Rules of your own, tried first."
)
@click.option("--hint", "wants_hint", is_flag=True, help="Where no rule knows: ask the model of diagnose.llm.")
@click.option("--hint-page", "shows_page", is_flag=True, help="Print what --hint would send; send nothing.")
@click.option("--config", type=click.Path(dir_okay=False), help="robust.yaml with diagnose.llm; else as the daemon.")
def log(
    *,
    files: tuple[Path, ...],
    as_json: bool,
    site_rules: tuple[Path, ...],
    wants_hint: bool,
    shows_page: bool,
    config: str | None,
) -> None:
    """What broke, by the logs FILES… of one job; the default of `srobust diagnose`.

    A gigabyte takes about half a minute; memory stays bounded. Nothing leaves this machine without --hint.
    """
    book = _book(site_rules)
    matcher = Matcher(book)
    hinting = hinting_for(config, book) if wants_hint or shows_page else None
    lines = _read(files, book, matcher)
    found = findings([text for _, _, text in lines], rules=matcher)
    places = [(path, number) for path, number, _ in lines]
    if hinting is not None:
        hinting.add(lines, found)
    diagnosis = diagnose(found)
    for rule in matcher.slow_rules:
        click.echo(f"srobust diagnose: the rule {rule.id} ({rule.place}) took too long and was left out", err=True)
    if hinting is not None and shows_page:
        click.echo(hinting.question(found))
        return
    hint = hinting.hint(diagnosis, found, places) if hinting is not None else None
    if as_json:
        click.echo(json.dumps({**_json(diagnosis, places), "hint": hint}, indent=1))
    else:
        click.echo("\n".join([_text(diagnosis, places), *(hint_text(hint) if hint is not None else ())]))
    if diagnosis.root is None:
        sys.exit(1)


@command.command(
    epilog=lesson(
        [("srobust diagnose page slurm-1234.out", "gigabytes on a page: what was news, how often, by which rank")],
        [(0, "the page is printed"), (2, "wrong usage")],
    )
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--bytes", "max_bytes", default=DEFAULT_BYTES, show_default=True, help="The page is never longer.")
def page(*, files: tuple[Path, ...], max_bytes: int) -> None:
    """The logs FILES… of one job on a page, in order of time.

    What each healthy step prints is left out; so is what there is no room for, and the last line counts it. Nothing is
    masked: the page is for who may read the logs.
    """
    click.echo(render(compress(files), max_bytes))


@command.command(
    epilog=lesson(
        [
            ("srobust diagnose rules", "every kind of failure that is known, and its remedy"),
            ("srobust diagnose rules --json", "all rules"),
            ("srobust diagnose rules --check site.yaml", "each mistake with its file and line"),
            ("srobust diagnose rules --review", "rules that hints have proposed, with their examples"),
        ],
        [(0, "the rules are right"), (2, "wrong usage, or a rule is wrong; stderr tells which and why")],
    )
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
def rules(
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
    book = _book(() if checked is None else (checked,))
    if checked is not None:
        mistakes = wrong_examples(book, [rule for rule in book.rules if rule.place.startswith(f"{checked}:")])
        if mistakes:
            raise _WrongRules("\n".join(mistakes))
        count = sum(rule.place.startswith(f"{checked}:") for rule in book.rules)
        click.echo(f"{checked}: {count} rules, all right")
        return
    if as_json:
        click.echo(json.dumps([_rule_json(rule) for rule in book.rules], indent=1))
        return
    for category in book.categories.values():
        click.echo(f"{category.name} ({category.blame.value}): {category.meaning}\n    {category.remedy}")


def wrong_examples(book: RuleBook, rules_of: list[Rule]) -> list[str]:
    """A sentence for each example that its own rule does not recognise."""
    matcher = Matcher(book)
    found = []
    for rule in rules_of:
        for line in rule.examples:
            other = matcher.match(line)
            if other is not rule:
                who = f"it is recognised as {other.id} ({other.place})" if other is not None else "nothing matches it"
                found.append(f"{rule.place}: the example {line[:80]!r} is not recognised by {rule.id}: {who}")
    return found


def _book(site_rules: tuple[Path, ...]) -> RuleBook:
    try:
        return read(site_rules)
    except RuleError as error:
        raise _WrongRules(str(error)) from None


def _read(files: tuple[Path, ...], book: RuleBook, matcher: Matcher) -> list[tuple[str, int, str]]:
    """File, line number and text of all lines; of large logs, of those that a rule may match."""
    if sum(path.stat().st_size for path in files) > _WHOLE_BYTES:
        compressed, lines = read_large(files, book, matcher)
        for source in compressed.sources:
            if source.problem:
                click.echo(f"srobust diagnose: {source.path}: {source.problem}", err=True)
        return [(compressed.sources[place.source].path, place.line, text) for place, text in lines]
    found = []
    for path in files:
        text = path.read_bytes().replace(b"\r", b"\n").decode("utf-8", "replace")
        found += [(str(path), number, line) for number, line in enumerate(text.split("\n"), 1)]
    return found


def _text(diagnosis: Diagnosis, places: list[tuple[str, int]]) -> str:
    root, category = diagnosis.root, diagnosis.category
    if root is None:
        return f"{category.meaning}\nwhat to do: {category.remedy}"
    lines = [
        f"{category.name}: {category.meaning}",
        f"root:       {root.text[:300]}",
        f"            {_where(root, places)}",
        f"blame:      {_BLAME[diagnosis.blame.value]}",
        f"what to do: {root.rule.remedy}",
    ]
    for title, some in (("followed:  ", diagnosis.followed), ("also there:", diagnosis.also)):
        for number, finding in enumerate(some[:_MAX_SHOWN]):
            lead = title if not number else " " * len(title)
            lines.append(f"{lead} {finding.category.name}: {finding.text[:160]} ({_where(finding, places)})")
        if len(some) > _MAX_SHOWN:
            lines.append(f"{' ' * len(title)} and {len(some) - _MAX_SHOWN} more")
    return "\n".join(lines)


_BLAME = {
    "node": "the node that printed it",
    "shared": "something that several nodes share; no single node",
    "program": "the program, its data or its settings; no node",
    "either": "a node or the program: this log alone does not tell",
    "nobody": "nobody: somebody wanted the end",
}


def _where(finding: LogFinding, places: list[tuple[str, int]]) -> str:
    path, number = places[finding.number]
    own = f", in {finding.place}" if finding.place else ""
    return f"{path}:{number}{own}"


def _json(diagnosis: Diagnosis, places: list[tuple[str, int]]) -> dict[str, Any]:
    root = diagnosis.root
    return {
        "category": diagnosis.category.name,
        "blame": diagnosis.blame.value,
        "meaning": diagnosis.category.meaning,
        "urgency": diagnosis.category.urgency.value,
        "remedy": root.rule.remedy if root is not None else diagnosis.category.remedy,
        "signature": signature(root) if root is not None else "",
        "root": _finding_json(root, places) if root is not None else None,
        "followed": [_finding_json(finding, places) for finding in diagnosis.followed],
        "also": [_finding_json(finding, places) for finding in diagnosis.also],
    }


def _finding_json(finding: LogFinding, places: list[tuple[str, int]]) -> dict[str, Any]:
    path, number = places[finding.number]
    return {
        "category": finding.category.name, "blame": finding.blame.value, "rule": finding.rule.id, "text": finding.text,
        "file": path, "line": number, "place": finding.place,
    }  # fmt: skip


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id, "category": rule.category.name, "blame": rule.blame.value, "weight": rule.weight,
        "pattern": rule.pattern, "exceptions": list(rule.exceptions), "scope": rule.scope.value, "remedy": rule.remedy,
        "source": rule.source, "examples": list(rule.examples), "place": rule.place,
    }  # fmt: skip
