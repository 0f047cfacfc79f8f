"""`srobust report`: how did the cluster do?"""

from __future__ import annotations

from pathlib import Path

import click

from slurm_robust.cli.commands.report_lemons import lemons
from slurm_robust.cli.commands.report_sql import export, sql
from slurm_robust.cli.report_output import ReportChoice, write_report
from slurm_robust.cli.report_source import FactOptions, fact_options, load_facts
from slurm_robust.cli.state import load_config
from slurm_robust.cli.teaching import lesson


@click.group(
    invoke_without_command=True,
    epilog=lesson(
        [
            ("srobust report", "the last seven days in numbers and sentences"),
            ("srobust report --since 30d --out month.html", "one page with plots and tables; it needs no network"),
            ("srobust report --job 1234 --out job.html", "one training, across its requeues"),
            ("srobust report --user ada --markdown", "for a ticket or a chat"),
            ("srobust report --json | jq .numbers", "for tools: docs/json.md"),
            ("srobust report sql", "tables, views and columns, for questions of your own"),
        ],
        [
            (0, "made"),
            (1, "nothing is known of this job or user, or the file cannot be written; the message says why"),
            (2, "wrong usage"),
        ],
    ),
)
@fact_options
@click.option("--job", default="", metavar="ID", help="The training of this job: its id, or its lineage.")
@click.option("--user", default="", metavar="NAME", help="Trainings and jobs of this user.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it into this file; .md or .json at its end says what, anything else gets the page.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown; the tables, no plots.")
@click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")
def command(*, source: FactOptions, job: str, user: str, out: Path | None, as_markdown: bool, as_json: bool) -> None:
    """Tell how the cluster did: ETTR, where time was lost, what broke, and how fast training was back.

    Prints numbers and sentences; with --out FILE.html a page with plots.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if as_markdown and as_json:
        raise click.UsageError("--markdown and --json exclude each other")
    if out is not None and not as_markdown and not as_json:
        as_markdown, as_json = out.suffix.lower() in (".md", ".markdown"), out.suffix.lower() == ".json"
    types = load_config(source.config).report.job_types
    choice = ReportChoice(job, user, out, as_json=as_json, as_markdown=as_markdown, job_types=types)
    write_report(load_facts(source), choice)


command.add_command(lemons)
command.add_command(sql)
command.add_command(export)
