"""Ends `srobust test` if its tests could not tell: such an end never says that a node fails."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback

import click

from slurm_robust.core.model import EXIT_USAGE
from slurm_robust.stoptime.conclusion import TestReport

EXITS = {"passed": 0, "failed": 1, "undecided": 2}
INTERRUPTED = 130


class WrongUsageError(click.UsageError):
    """Wrong usage: 2, which click takes for it, means that the tests could not tell."""

    exit_code = EXIT_USAGE


class UndecidedError(Exception):
    """The tests could not be done; the message says why, and what to type."""


class TestCommand(click.Command):
    """Gives each end its exit code, and with `--json` its object."""

    __test__ = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; wrong usage has an exit code of its own."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise WrongUsageError(error.message, error.ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        """Invoke so that an unforeseen end does not say that a node fails, as exit code 1 of Python and click would."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("srobust test: ended by a signal", err=True)
            sys.exit(INTERRUPTED)
        except UndecidedError as error:
            _tell(ctx, str(error))
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 (after any error, the tests could not tell)
            with contextlib.suppress(OSError):
                if isinstance(error, BrokenPipeError):
                    click.echo("srobust test: nobody reads the output any more", err=True)
                else:
                    traceback.print_exc()
                    _tell(ctx, f"a fault of ours, please report it: {type(error).__name__}: {error}")
        _leave_closed_outputs()
        sys.exit(EXITS["undecided"])


def _tell(ctx: click.Context, why: str) -> None:
    """Say why nothing was tested; `--json` gets the object that it always gets."""
    with contextlib.suppress(OSError):
        click.echo(f"srobust test: {why}", err=True)
        if ctx.params.get("as_json"):
            report = TestReport((), ctx.params.get("tests", ()), ended_early=why)
            click.echo(json.dumps({"job": ctx.params.get("job_id") or "", **report.to_json()}))


def _leave_closed_outputs() -> None:
    """Flush both outputs, and give up one that cannot be written.

    Otherwise Python would flush at its end, and exit with a code of its own on failure.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 (there are two)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
