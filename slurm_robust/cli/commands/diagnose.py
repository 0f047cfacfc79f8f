"""`srobust diagnose FILE… | JOBID | INCIDENT`: what broke, from any log, of a job or not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from slurm_robust.cli.commands import diagnose_rules
from slurm_robust.cli.commands.diagnose_rules import book_of
from slurm_robust.cli.diagnosis.past import incidents_beside, journal_incidents, newest_of, past_incidents
from slurm_robust.cli.diagnosis.reading import read_subject
from slurm_robust.cli.diagnosis.shown import as_json, as_text
from slurm_robust.cli.diagnosis.subject import NothingLeftError, Subject, subject_of
from slurm_robust.cli.hinting import hint_text, hinting_for
from slurm_robust.cli.teaching import failing, lesson
from slurm_robust.config import site as configuration
from slurm_robust.config.site import Config
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.diagnose.log.compress import compress
from slurm_robust.diagnose.log.render import DEFAULT_BYTES, render
from slurm_robust.diagnose.resembling import Resemblance, resembling
from slurm_robust.diagnose.root import Diagnosis
from slurm_robust.diagnose.signature import signature
from slurm_robust.slurm.factory import connect

_EXITS = [
    (0, "a root was found, or the incident names the culprit of a hang"),
    (1, "nothing in the log says what happened"),
    (2, "wrong usage, or wrong rules"),
    (3, "the job or incident has left nothing that can be read; stderr says where was looked"),
]


class _DiagnoseGroup(click.Group):
    """`srobust diagnose FILE` diagnoses; `srobust diagnose rules` shows rules."""

    default = "log"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; without a subcommand's name the words belong to the default subcommand."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the subcommands, and what may follow at once."""
        return [*super().shell_complete(ctx, incomplete), *_completed(ctx, None, incomplete)]


def _completed(_: click.Context, __: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Jobs and incidents that have a folder here, with files of that beginning; else any file."""
    folders = sorted(Path().glob("slurm-robust-*"))
    known = [folder.name.removeprefix("slurm-robust-") for folder in folders]
    known += [page.parent.name for folder in folders for page in folder.glob("*/incident.json")]
    names = [name for name in known if incomplete and name.startswith(incomplete)]
    if not names:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in (*names, *(p.name for p in sorted(Path().glob(f"{incomplete}*"))))]


@click.group(
    cls=_DiagnoseGroup,
    epilog=lesson(
        [
            ("srobust diagnose slurm-1234.out", "what broke, whose fault it is, and what to do"),
            ("srobust diagnose 1234", "the same of job 1234: its output, wherever Slurm says that it is"),
            ("srobust diagnose 1234-r0-1795228470", "the same of an incident: the last words saved in it"),
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

    What is to be diagnosed may follow at once: `srobust diagnose slurm-1234.out`, `srobust diagnose 1234`.
    """


@command.command(
    epilog=lesson(
        [
            ("srobust diagnose log slurm-1234.out", "what broke, whose fault it is, and what to do"),
            ("srobust diagnose log 1234_5", "task 5 of array 1234, also one that has ended"),
            ("srobust diagnose log 1234-r0-1795228470", "an incident; or its folder, on any machine"),
            ("srobust diagnose log slurm-1234.out --hint-page", "what --hint would send; nothing is sent"),
            ("srobust diagnose log slurm-1234.out --hint", "where no rule knows, ask the site's language model"),
        ],
        _EXITS,
    )
)
@click.argument("words", nargs=-1, required=True, metavar="FILE…|JOBID|INCIDENT", shell_complete=_completed)
@click.option("--json", "as_object", is_flag=True, help="The diagnosis as one JSON object.")
@click.option(
    "--rules",
    "site_rules",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Rules of your own, tried first (default: diagnose.rules).",
)
@click.option("--hint", "wants_hint", is_flag=True, help="Where no rule knows: ask the model of diagnose.llm.")
@click.option("--hint-page", "shows_page", is_flag=True, help="Print what --hint would send; send nothing.")
@click.option("--config", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")
def log(
    *,
    words: tuple[str, ...],
    as_object: bool,
    site_rules: tuple[Path, ...],
    wants_hint: bool,
    shows_page: bool,
    config: str | None,
) -> None:
    """What broke, by the logs FILE… of one job, by a JOBID or by an INCIDENT; the default of `srobust diagnose`.

    \b
    FILE      any log; a file goes first where a job has the same name
    JOBID     123, 123_4 or 123+0, as Slurm prints it: the job's output by Slurm, its
              accounting or the daemon's journal, and the incidents saved beside it
    INCIDENT  its id (srobust incidents) or its folder: the last words of its ranks, then the
              job's output where those say nothing

    Past incidents that were the same failure are shown with what was done and whether it helped: those of the daemon's
    journal, and those beside the log. A gigabyte takes about half a minute; memory stays bounded. Nothing leaves this
    machine without --hint.
    """  # noqa: D301 (click's mark for text that is not wrapped)
    site = _site(config)
    book = book_of(site_rules or tuple(Path(file) for file in site.diagnose.rules))
    matcher = Matcher(book)
    hinting = hinting_for(config, book, matcher) if wants_hint or shows_page else None
    journal = journal_incidents(site)
    with failing("diagnose", NothingLeftError):
        subject = subject_of(words, lambda: connect(site.slurm), journal)
    reading, diagnosis = read_subject(subject, matcher)
    for rule in matcher.slow_rules:
        click.echo(f"srobust diagnose: the rule {rule.id} ({rule.place}) took too long and was left out", err=True)
    resembles = _resembling(diagnosis, subject, journal)
    if hinting is not None:
        hinting.add(reading.lines)
        hinting.remember(resembles, subject.nodes)
    if hinting is not None and shows_page:
        click.echo(hinting.question())
        return
    hint = hinting.hint(diagnosis, [place[:2] for place in reading.places]) if hinting is not None else None
    if as_object:
        click.echo(json.dumps({**as_json(diagnosis, reading, subject, resembles), "hint": hint}, indent=1))
    else:
        shown = as_text(diagnosis, reading, subject, resembles)
        click.echo("\n".join([*shown, *(hint_text(hint) if hint is not None else ())]))
    if diagnosis.root is None and reading.leads is None:
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


command.add_command(diagnose_rules.command)


def _site(config: str | None) -> Config:
    """Return the site's configuration; mistakes in it do not stop a diagnosis unless the file was named."""
    try:
        return configuration.load(config)
    except configuration.ConfigError as error:
        if config is not None:
            raise click.UsageError(str(error)) from None
        click.echo(f"srobust diagnose: the site's configuration is not used: {error}", err=True)
        return Config()


def _resembling(diagnosis: Diagnosis, subject: Subject, journal: Sequence[dict[str, object]]) -> list[Resemblance]:
    root = diagnosis.root
    if root is None:
        return []
    newest = subject.incident or next(iter(subject.incidents), None)
    beside = incidents_beside([*subject.files, *(one.folder.parent for one in subject.incidents)])
    itself = {newest.id} if newest is not None else newest_of(beside, subject.files)
    past = past_incidents(journal, [*subject.incidents, *beside], itself)
    return resembling(signature(root), diagnosis.category.name, root.text, past)
