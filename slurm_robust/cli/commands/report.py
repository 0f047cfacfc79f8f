"""`srobust report`: how did the cluster do?"""

from __future__ import annotations

import click

from slurm_robust.cli.commands.report_sql import export, sql


@click.group()
def command() -> None:
    """How did the cluster do? Its past as tables, by SQL."""


command.add_command(sql)
command.add_command(export)
