"""`srobust breaker`: shows it, and lets a person reset it."""

from __future__ import annotations

import getpass
import time

import click

from slurm_robust.cli.state import load_config, load_state, print_json, source_options


@click.group("breaker", invoke_without_command=True)
@source_options
@click.pass_context
def command(context: click.Context, path: str | None, as_json: bool) -> None:
    """Show the breaker, or reset it once the cause is known."""
    if context.invoked_subcommand is None:
        _show(path, as_json)


@command.command()
@source_options
def show(path: str | None, as_json: bool) -> None:
    """Is it open, and why."""
    _show(path, as_json)


def _show(path: str | None, as_json: bool) -> None:
    config = load_config(path)
    breaker = load_state(config)["breaker"]
    limits = config.breaker
    if as_json:
        print_json({**breaker, "max_drains": limits.max_drains, "window_s": limits.window_s})
    elif breaker["open"]:
        click.echo(f"open: {breaker['why']}\nOnce the cause is known: srobust breaker reset")
    else:
        click.echo(f"closed; it opens past {limits.max_drains} drains in {limits.window_s:.0f} s")


@command.command()
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")
def reset(path: str | None) -> None:
    """Close the breaker: what is drained now counts no more. Needs the daemon's user (root) on the daemon's machine."""
    from slurm_robust.daemon.breaker import request_reset  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.daemon.journal import Journal  # noqa: PLC0415 (the same)
    from slurm_robust.daemon.schema import JournalError  # noqa: PLC0415 (the same)

    try:
        journal = Journal.open(load_config(path).daemon.state_dir)
    except JournalError as error:
        raise click.ClickException(f"{error} (type it as the daemon's user, on its machine)") from None
    try:
        request_reset(journal, time.time(), getpass.getuser())
    finally:
        journal.close()
    click.echo("closed; drains from now on count")
