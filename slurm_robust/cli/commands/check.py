"""`srobust check`: is this node fit to train? `nodecheck.command` reads the arguments."""

from __future__ import annotations

import argparse
import sys

import click
from click.shell_completion import CompletionItem

from slurm_robust.nodecheck.engine.registry import GROUPS, NAMES
from slurm_robust.nodecheck.stages.command import main, parser


class _ArgparseCommand(click.Command):
    """A command whose options are argparse's: the prolog reads the options without click."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that begin with the typed word, with their help, for the shell."""
        shown = {o: a.help for a in parser()._actions for o in a.option_strings if a.help != argparse.SUPPRESS}
        return [CompletionItem(option, help=text) for option, text in shown.items() if option.startswith(incomplete)]


def _value(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values of the option before: groups and checks, or its choices; else files."""
    before = [word for word in ctx.params.get("args") or () if word != "="]  # bash makes a word of it
    option = next((a for a in parser()._actions if before and before[-1] in a.option_strings), None)
    if option is None or (option.dest != "only" and not option.choices):
        return [CompletionItem(incomplete, type="file")]
    listed, comma, begun = incomplete.rpartition(",") if option.dest == "only" else ("", "", incomplete)
    names = (*GROUPS, *NAMES) if option.dest == "only" else tuple(option.choices or ())
    return [CompletionItem(f"{listed}{comma}{name}") for name in names if name.startswith(begun)]


@click.command(
    cls=_ArgparseCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=_value)
def command(args: tuple[str, ...]) -> None:
    """Is this node fit to train?"""
    sys.exit(main(args))
