"""What the read-only subcommands share: finding the daemon's state, and showing times."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_robust import config as configuration
from slurm_robust.config import Config

STALE_S = 30.0
F = TypeVar("F", bound=Callable[..., Any])


def source_options(function: F) -> F:
    """`--config` and `--json`, the same for every command that shows something."""
    function = click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")(function)
    return click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")(
        function
    )


def load_config(path: str | None) -> Config:
    """The site's configuration, errors as click shows them."""
    try:
        return configuration.load(path)
    except configuration.ConfigError as error:
        raise click.ClickException(str(error)) from None


def load_state(config: Config) -> dict[str, Any]:
    """The daemon's last snapshot: from its file where that can be read, else over HTTP."""
    path = Path(config.daemon.state_dir) / "state.json"
    http = config.daemon.http
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        url = f"http://{http.host}:{http.port}/state.json"
        try:
            # The address is the site's own configuration.
            with urllib.request.urlopen(url, timeout=3) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError) as second:
            raise click.ClickException(
                f"no state of the daemon: {path}: {error.strerror}; {url}: {second}. Does it run? "
                "systemctl status srobustd (or: srobust devcluster up --daemon)"
            ) from None
    try:
        state = json.loads(text)
    except ValueError:
        state = None
    if not isinstance(state, dict) or "at_s" not in state:
        raise click.ClickException(f"{path}: not a snapshot yet; try again in a second")
    age_s = time.time() - float(state["at_s"])
    if age_s > STALE_S:
        click.echo(
            f"warning: this is {duration(age_s)} old: the daemon does not run (systemctl status srobustd)", err=True
        )
    return state


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def duration(seconds: float | None) -> str:
    """`0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, big, small, part in ((86400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def clock(at_s: float | None) -> str:
    """A local time, `01-31 23:59:59`."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at_s)) if at_s else ""
