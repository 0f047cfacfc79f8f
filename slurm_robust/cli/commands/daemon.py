"""`srobust daemon`: runs the control daemon in the foreground, for systemd or a person."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import sys
import time
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.teaching import lesson
from slurm_robust.config import site as configuration
from slurm_robust.core.model import Mode


def _start_logging(level: str) -> None:
    # One line for each event, on stderr, with UTC times: fit for journald, files and grep.
    logging.Formatter.converter = time.gmtime
    form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=form, datefmt="%Y-%m-%dT%H:%M:%S")


_EXAMPLES = (
    ("srobust daemon --mode observe", "write down what it would do, do nothing"),
    ("srobust daemon --config /etc/slurm_robust/robust.yaml", "as the systemd unit starts it"),
    ("srobust daemon --user", "for your own jobs, on a login node"),
)
_EXITS = (
    (0, "ended by SIGTERM or Ctrl-C"),
    (1, "cannot start: wrong configuration, an unusable journal, or another daemon runs; the message says which"),
    (2, "wrong usage"),
)


@click.group(name="daemon", invoke_without_command=True, epilog=lesson(_EXAMPLES, _EXITS))
@click.option(
    "--config", type=click.Path(dir_okay=False), help="robust.yaml to use (default: $SROBUST_CONFIG, then /etc)."
)
@click.option("--user", is_flag=True, help="Bring back your own jobs, without administrator rights.")
@click.option("--mode", type=click.Choice(["observe", "act"]), help="Overrides the configuration's `mode`.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="Overrides daemon.state_dir.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
@click.pass_context
def command(context: click.Context, /, **options: str | bool | None) -> None:
    """Run the control daemon in the foreground.

    It reads claims and node states from Slurm, and acts on Slurm within the limits of robust.yaml. SIGTERM ends it; the
    next start continues unfinished recoveries. At SIGHUP (systemctl reload srobustd) it reads robust.yaml anew, all but
    daemon.state_dir. A file that cannot be used is said, and the settings of before hold.

    With --user it brings back your own jobs when their claims ask for it: it requeues them, excludes the suspects, and
    has them start at once. Run it outside of any job, for example on a login node.
    """
    if context.invoked_subcommand is not None:
        return
    from slurm_robust.daemon.start import StartError, run  # noqa: PLC0415 (the same)
    from slurm_robust.daemon.store.schema import JournalError  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.slurm.errors import SlurmMissingError  # noqa: PLC0415 (the same)

    _start_logging(str(options["log_level"]))
    as_user = bool(options["user"])
    try:
        path = str(options["config"]) if options["config"] else None
        config = configuration.load(path)
        for warning in configuration.old_keys(path):
            logging.getLogger("srobustd").warning("config.old_key: %s", warning)

        def settings() -> tuple[configuration.Config, Mode]:
            now = configuration.load(path)
            # A user who starts a daemon wants it to act: `observe` is a site's first step, not a user's.
            return now, Mode(options["mode"]) if options["mode"] else (Mode.ACT if as_user else now.mode)

        folder = options["state_dir"] or (_user_state_dir() if as_user else config.daemon.state_dir)
        account = pwd.getpwuid(os.geteuid()).pw_name
        place = Path(str(folder))
        asyncio.run(run(settings, account=account, state_dir=place, as_user=as_user, config_path=path or ""))
    except (configuration.ConfigError, JournalError, StartError, SlurmMissingError) as error:
        raise click.ClickException(str(error)) from None


def _user_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "slurm_robust"


@command.command(
    "http",
    epilog=lesson(
        [("srobust daemon http --state-file /var/lib/slurm_robust/state.json", "as a separate service")],
        [(0, "ended"), (1, "cannot listen on that address, or aiohttp is missing"), (2, "wrong usage")],
    ),
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True)
@click.option("--state-file", type=click.Path(dir_okay=False, path_type=Path), help="Read this file instead of stdin.")
@click.option("--pages", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report's pages.")
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), help="Answer who has its token.")
@click.option("--user-header", default="", help="Answer whom a trusted proxy names in this header.")
@click.option("--allowed-user", multiple=True, help="Whom the proxy may name (default: everyone).")
@click.option("--trusted-proxy", multiple=True, metavar="NETWORK", help="Whose --user-header is believed.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A name of this machine in a browser's address.")
@click.option("--hide", multiple=True, type=click.Choice(["jobs", "users"]), help="Show none of their names.")
def http(**options: Any) -> None:
    """Serve the dashboard, /state.json, /metrics and /healthz, read-only.

    The daemon starts this process itself, as nobody, and writes to it through a pipe. As a separate service it reads
    the daemon's state.json.
    """
    try:
        from slurm_robust.daemon.api.dashboard.access import (  # noqa: PLC0415 (loaded for this command only)
            Access,
            AccessError,
            networks,
            read_token,
        )
        from slurm_robust.daemon.api.http import Served, serve  # noqa: PLC0415 (aiohttp is an extra)
    except ImportError as error:
        raise click.ClickException(
            f"{error}; type: {sys.executable} -m pip install aiohttp prometheus-client"
        ) from None
    host, port = options["host"], options["port"]
    if options["user_header"] and not options["trusted_proxy"]:
        raise click.UsageError("--user-header needs --trusted-proxy: anybody could send that header")
    try:
        proxies = networks(options["trusted_proxy"])
    except ValueError as error:
        raise click.UsageError(f"--trusted-proxy: {error}") from None
    try:
        access = Access(
            token=read_token(options["token_file"]) if options["token_file"] else "",
            user_header=options["user_header"],
            allowed_users=frozenset(options["allowed_user"]),
            proxies=proxies,
            hosts=frozenset(name.lower() for name in options["allowed_host"]),
        )
        asyncio.run(serve(Served(host, port, options["state_file"], options["pages"], options["hide"], access)))
    except AccessError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}; see daemon.http in robust.yaml") from None
    except KeyboardInterrupt:
        return


@command.command(
    "notify",
    epilog=lesson(
        [("srobust daemon notify < messages", "as the daemon starts it; by hand: srobust notify test")],
        [(0, "its input has ended"), (1, "aiohttp is missing, or its first line is not settings"), (2, "wrong usage")],
    ),
)
def notify() -> None:
    """Hand over messages that come on standard input.

    The daemon starts this process itself, and writes to it through a pipe: first the settings, then one message a line,
    as JSON. It reads the files with secrets, becomes notify.user (nobody), and says on standard output what came of
    each message. Whom it tells of what: `notify` in robust.yaml.
    """
    try:
        from slurm_robust.daemon.api.http import drop_rights  # noqa: PLC0415 (aiohttp is an extra)
        from slurm_robust.notify.outlet import serve as hand_over  # noqa: PLC0415 (the same)
    except ImportError as error:
        raise click.ClickException(
            f"{error}; type: {sys.executable} -m pip install aiohttp prometheus-client"
        ) from None
    try:
        asyncio.run(hand_over(drop_rights, sys.stdout.buffer))
    except (ValueError, KeyError) as error:
        raise click.ClickException(f"cannot begin: {error}; see notify in robust.yaml") from None
    except KeyboardInterrupt:
        return
