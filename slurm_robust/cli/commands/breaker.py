"""`srobust breaker`: shows the breaker, or resets it."""

from __future__ import annotations

import getpass
import time
from pathlib import Path

import click

from slurm_robust.cli.state import config_to_show, load_state, print_json, source_options
from slurm_robust.cli.teaching import SHOWN, lesson

_EXAMPLES = (
    ("srobust breaker", "whether it is open, and why"),
    ("sudo srobust breaker reset", "the cause is known: close it"),
    ("sudo srobust breaker reset --user ann", "ann's jobs may make claims again, after one took another one's seat"),
)
_RESET = ((0, "closed"), (1, "the journal cannot be written, or no daemon ever ran here"), (2, "wrong usage"))


@click.group("breaker", invoke_without_command=True, epilog=lesson(_EXAMPLES, SHOWN))
@source_options
@click.pass_context
def command(context: click.Context, path: str | None, as_json: bool) -> None:
    """Show the breaker, or reset it once the cause is known."""
    if context.invoked_subcommand is None:
        _show(path, as_json)


@command.command(epilog=lesson([("srobust breaker show", _EXAMPLES[0][1])], SHOWN))
@source_options
def show(path: str | None, as_json: bool) -> None:
    """Show whether it is open, and why."""
    _show(path, as_json)


def _show(path: str | None, as_json: bool) -> None:
    config = config_to_show(path)
    breaker = load_state(config)["breaker"]
    limits = config.breaker
    if as_json:
        print_json({**breaker, "max_drains": limits.max_drains, "window_s": limits.window_s})
    elif breaker["open"]:
        click.echo(f"open: {breaker['why']}\nOnce the cause is known: srobust breaker reset")
    else:
        click.echo(
            f"closed; {breaker.get('out', 0)} nodes are out of service, {breaker.get('quarantined', 0)} of them in "
            f"quarantine; it opens past {limits.max_drains} nodes in {limits.window_s:.0f} s"
        )


@command.command(epilog=lesson(_EXAMPLES[1:], _RESET))
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")
@click.option("--user", default="", help="Only accept the claims of this user's jobs again, whose seats were misused.")
def reset(path: str | None, user: str) -> None:
    """Close the breaker: present drains do not count any more. Type it as the daemon's user (root), on its machine."""
    from slurm_robust.daemon.controllers.breaker import (  # noqa: PLC0415 (loaded for this command only)
        request_admit,
        request_reset,
    )
    from slurm_robust.daemon.store.journal import FILE_NAME, Journal  # noqa: PLC0415 (the same)
    from slurm_robust.daemon.store.schema import JournalError  # noqa: PLC0415 (the same)

    state_dir = Path(config_to_show(path).daemon.state_dir)
    # A journal that does not exist is not created: no daemon would read the reset.
    try:
        (state_dir / FILE_NAME).stat()
    except FileNotFoundError:
        raise click.ClickException(
            f"no daemon ever ran here: {state_dir} has no journal; type it on the daemon's machine, "
            "or name its robust.yaml: --config FILE"
        ) from None
    except OSError:
        pass  # the next lines give a better error
    try:
        journal = Journal.open(state_dir)
    except JournalError as error:
        raise click.ClickException(f"{error} (type it as the daemon's user, on its machine)") from None
    try:
        if user:
            barred = request_admit(journal, user, time.time(), getpass.getuser())
        else:
            request_reset(journal, time.time(), getpass.getuser())
    finally:
        journal.close()
    if user:
        click.echo(f"claims of {user}'s jobs are accepted{' again' if barred else ', and were before'}")
    else:
        click.echo("closed; drains from now on count")
