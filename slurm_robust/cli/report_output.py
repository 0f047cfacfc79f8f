"""Prints or writes the answer of `srobust report`: a page, Markdown, JSON, or a summary for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from slurm_robust.cli.page_file import local_offset_s, write_page
from slurm_robust.cli.table import bold, paragraph, plain, sentence, table
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.all_figures import figures_of
from slurm_robust.report.narrow import is_empty, of_job, of_user
from slurm_robust.report.pages.as_json import to_json
from slurm_robust.report.pages.assemble import report_view
from slurm_robust.report.pages.formats import shown
from slurm_robust.report.pages.markdown import markdown
from slurm_robust.report.pages.page import html, period
from slurm_robust.report.pages.view import ReportView

_MOST_DOUBTS = 5


@dataclass(frozen=True)
class ReportChoice:
    """The choices for one report.

    Attributes:
        job: The job by address, raw id or lineage; empty for all.
        user: The user; empty for all.
        out: The file to write; None for stdout.
        job_types: The configuration's `report.job_types`.
    """

    job: str = ""
    user: str = ""
    out: Path | None = None
    as_json: bool = False
    as_markdown: bool = False
    job_types: Mapping[str, str] = field(default_factory=dict)


def write_report(facts: Facts, choice: ReportChoice) -> None:
    """Make the report of these facts, and write it to stdout or the chosen file."""
    view = view_of(facts, choice)
    if choice.as_json:
        text = json.dumps(to_json(view), indent=1, allow_nan=False) + "\n"
    elif choice.as_markdown:
        text = markdown(view)
    elif choice.out is not None:
        text = html(view)
    else:
        _print_summary(view)
        return
    # Names may hold half of a character pair, which no encoding has.
    text = text.encode("utf-8", "replace").decode()
    if choice.out is None:
        click.echo(text, nl=False)
    else:
        write_page(choice.out, text)
        click.echo(f"{choice.out}: {view.title} {period(view)}", err=True)


def view_of(facts: Facts, choice: ReportChoice) -> ReportView:
    """Return the view of the facts, narrowed to the job and user that were asked for."""
    scope = []
    if choice.job:
        facts = of_job(facts, choice.job)
        scope.append(f"job {choice.job}")
    if choice.user:
        facts = of_user(facts, choice.user)
        scope.append(f"user {choice.user}")
    if scope and is_empty(facts) and not facts.journal_read:
        raise click.ClickException(f"nothing is known of {' of '.join(scope)}. {' '.join(map(plain, facts.doubts))}")
    if scope and is_empty(facts):
        raise click.ClickException(
            f"nothing is known of {' of '.join(scope)} in this time; a longer one: --since 30d; "
            "all jobs with incidents: srobust incidents"
        )
    offset_s = local_offset_s(facts.read_at_s)
    return report_view(facts, figures_of(facts), " of ".join(scope), offset_s, choice.job_types)


def _print_summary(view: ReportView) -> None:
    sentence(f"{view.title} {period(view)}")
    click.echo()
    table("Numbers", ("", "", ""), [(shown(n.value, n.unit), n.label, n.note) for n in view.numbers])
    for section in view.sections:
        click.echo(f"\n{bold(plain(section.question))}")
        paragraph("", section.answer, indent=2, label_wide=0)
    if view.doubts:
        click.echo(f"\n{bold('What cannot be said, or not for sure')}")
        for doubt in view.doubts[:_MOST_DOUBTS]:
            paragraph("", doubt, indent=2, label_wide=0)
        if len(view.doubts) > _MOST_DOUBTS:
            click.echo(f"  And {len(view.doubts) - _MOST_DOUBTS} more: --json has all.")
    click.echo("\nWith plots and tables: srobust report --out report.html")
