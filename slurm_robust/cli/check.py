"""`srobust check`: is this node fit to train? `nodecheck.command` reads the arguments."""

from __future__ import annotations

import sys

import click

from slurm_robust.nodecheck.command import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Is this node fit to train?"""
    sys.exit(main(args))
