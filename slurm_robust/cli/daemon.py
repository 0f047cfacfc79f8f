"""`srobust daemon`: runs the control daemon in the foreground; systemd or a person starts it."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import sys
import time
from pathlib import Path

import click

from slurm_robust import config as configuration
from slurm_robust.model import Mode


def _start_logging(level: str) -> None:
    # One line an event, on stderr, with UTC times: journald and files both take it, and grep finds it.
    logging.Formatter.converter = time.gmtime
    form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form, datefmt="%Y-%m-%dT%H:%M:%S")


@click.group(name="daemon", invoke_without_command=True)
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else $SROBUST_CONFIG or /etc.")
@click.option("--user", "as_user", is_flag=True, help="Bring back your own jobs, without any administrator's rights.")
@click.option("--mode", type=click.Choice(["observe", "act"]), help="Overrides the configuration's `mode`.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="Overrides daemon.state_dir.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
@click.pass_context
def command(
    context: click.Context, path: str | None, as_user: bool, mode: str | None, state_dir: str | None, log_level: str
) -> None:
    """Run the control daemon in the foreground.

    It reads claims and node states from Slurm, and acts on Slurm, within the limits of robust.yaml. SIGTERM ends it;
    whatever was under way is taken up at the next start.

    With --user it brings back your own jobs after their claims: requeue, exclude the suspects, start at once. Run it
    outside of any job, for example on a login node.
    """
    if context.invoked_subcommand is not None:
        return
    from slurm_robust.daemon.journal import JournalError  # noqa: PLC0415 (slow to load)
    from slurm_robust.daemon.start import StartError, run  # noqa: PLC0415

    _start_logging(log_level)
    try:
        config = configuration.load(path)
        account = pwd.getpwuid(os.geteuid()).pw_name
        # Whoever starts a daemon for the own jobs means it: `observe` is a site's first step, not a user's.
        chosen = Mode(mode) if mode else (Mode.ACT if as_user else config.mode)
        folder = Path(state_dir or (_user_state_dir() if as_user else config.daemon.state_dir))
        asyncio.run(run(config, account=account, mode=chosen, state_dir=folder, as_user=as_user))
    except (configuration.ConfigError, JournalError, StartError) as error:
        raise click.ClickException(str(error)) from None


def _user_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "slurm_robust"
