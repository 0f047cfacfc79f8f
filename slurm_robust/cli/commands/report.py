"""`srobust report`: how did the cluster do?"""

from __future__ import annotations

import click

from slurm_robust.cli.commands.report_lemons import lemons
from slurm_robust.cli.commands.report_sql import export, sql
from slurm_robust.cli.teaching import lesson

_SQL = ("srobust report sql", "tables, views and columns that a question may name")
_EXPORT = ("srobust report export facts/", "the same as files, for other tools")


@click.group(epilog=lesson([_SQL, _EXPORT], [(0, "shown"), (1, "it failed; the message says why"), (2, "wrong usage")]))
def command() -> None:
    """How did the cluster do? Its past as tables, by SQL."""


command.add_command(lemons)
command.add_command(sql)
command.add_command(export)
