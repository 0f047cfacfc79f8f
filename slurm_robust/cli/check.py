"""`srobust check`: is this node fit to train? `nodecheck.command` reads the arguments."""

from __future__ import annotations

import argparse
import sys

import click
from click.shell_completion import CompletionItem

from slurm_robust.nodecheck.command import main, parser


class _ArgparseCommand(click.Command):
    """Its options are argparse's: the prolog reads them without click."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Those options; else files."""
        if not incomplete.startswith("-"):
            return [CompletionItem(incomplete, type="file")]
        shown = {o: a.help for a in parser()._actions for o in a.option_strings if a.help != argparse.SUPPRESS}
        return [CompletionItem(option, help=text) for option, text in shown.items() if option.startswith(incomplete)]


@click.command(
    cls=_ArgparseCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(args: tuple[str, ...]) -> None:
    """Is this node fit to train?"""
    sys.exit(main(args))
