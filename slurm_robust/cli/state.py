"""Reads the daemon's state for the read-only subcommands, and formats times."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_robust.config import site as configuration
from slurm_robust.config.site import Config
from slurm_robust.core.text import duration as duration  # noqa: PLC0414 (the commands find it beside `clock`)
from slurm_robust.core.text import printable
from slurm_robust.daemon.api.needs import STALE_S, UNWRITABLE

F = TypeVar("F", bound=Callable[..., Any])


def source_options(function: F) -> F:
    """Add `--config` and `--json`, the same for every command that shows state."""
    function = click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")(function)
    return click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon.")(
        function
    )


def load_config(path: str | None) -> Config:
    """Return the site's configuration; raise errors as click shows them."""
    try:
        return configuration.load(path)
    except configuration.ConfigError as error:
        raise click.ClickException(str(error)) from None


def config_to_show(path: str | None) -> Config:
    """Return the site's configuration; its defaults, with a warning, if it has an error and a daemon is at work."""
    try:
        return load_config(path)
    except click.ClickException as error:
        default = Config()
        if not (Path(default.daemon.state_dir) / "state.json").exists():
            raise
        click.echo(
            f"warning: {error.message}; what follows is of the daemon, which has its settings of before", err=True
        )
        return default


def load_state(config: Config) -> dict[str, Any]:
    """Return the daemon's last snapshot: from its file if that can be read and is fresh, else over HTTP."""
    path = Path(config.daemon.state_dir) / "state.json"
    http = config.daemon.http
    state, problem = None, ""
    try:
        state = _parsed(path.read_text(encoding="utf-8"))
        problem = "not a snapshot yet; try again in a second"
    except OSError as error:
        problem = str(error.strerror)
    full = _full(path.parent)
    # On a full disk the file gets old, and only the daemon's HTTP side is told why.
    if state is None or full or _age_s(state) > STALE_S:
        url = f"http://{http.host}:{http.port}/state.json"
        try:
            asked_for = _with_token(url, http.token_file)
            with urllib.request.urlopen(asked_for, timeout=3) as answer:  # noqa: S310 (the site's own address)
                asked = _parsed(answer.read().decode())
            state = max((s for s in (state, asked) if s is not None), key=lambda s: s["at_s"], default=None)
            second = "not a snapshot yet"
        except (OSError, urllib.error.URLError) as error:
            second = str(getattr(error, "reason", error))
        if state is None:
            raise click.ClickException(
                f"the daemon's state cannot be read\n"
                f"  {path}: {problem}\n"
                f"  {url}: {second}\n"
                "On the daemon's machine: systemctl status srobustd\n"
                "Elsewhere: type this there, or set daemon.http.host in robust.yaml to an address of that machine\n"
                'With a devcluster: eval "$(srobust devcluster env)"'
            )
    for node in state["nodes"]:
        node.setdefault("node_state", node["room"])  # an older daemon's
    if full and not any(UNWRITABLE in text for text in state.setdefault("troubles", [])):
        sentence = f"the folder {path.parent} is {full}, and the daemon does nothing that it cannot write down there"
        state["troubles"] = [f"{sentence}: df -h {path.parent}", *state["troubles"]]
    if state.get("hidden"):
        _show_own(state, config)
        why = "but for your own jobs, by daemon.http.hide or by PrivateData; root sees them on the daemon's machine"
        click.echo(f"note: names of {' and '.join(map(str, state['hidden']))} are hidden, {why}", err=True)
    if _age_s(state) > STALE_S:
        click.echo(f"warning: this is {duration(_age_s(state))} old: {_why_old(state, path.parent)}", err=True)
    return state


def _show_own(state: dict[str, Any], config: Config) -> None:
    """Fill in the names of the caller's own jobs: Slurm tells them to their owner."""
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (slow to load, and only needed here)
    from slurm_robust.slurm.factory import connect  # noqa: PLC0415 (the same)

    try:
        me = pwd.getpwuid(os.geteuid()).pw_name
        own = {job.ref.address: printable(job.name) for job in connect(config.slurm).jobs() if job.user == me}
    except (SlurmError, OSError, KeyError):
        return  # no Slurm here, or no name for this user: they stay hidden
    for row in (row for key in ("jobs", "waiting", "incidents") for row in state.get(key, ())):
        if row.get("job") in own:
            row["user"] = me
            if "name" in row:
                row["name"] = own[row["job"]]


def _with_token(url: str, token_file: str) -> urllib.request.Request:
    """Return the request; with the token if the caller may read its file."""
    headers = {}
    if token_file:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            headers["Authorization"] = f"Bearer {Path(token_file).read_text(encoding='utf-8').strip()}"
    return urllib.request.Request(url, headers=headers)  # noqa: S310 (the site's own address)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        state = json.loads(text)
    except ValueError:
        return None
    return state if isinstance(state, dict) and "at_s" in state else None


def _age_s(state: dict[str, Any]) -> float:
    return time.time() - float(state["at_s"])


def _why_old(state: dict[str, Any], folder: Path) -> str:
    """Return why there is no newer state, as far as this machine shows it, and what to type."""
    full = _full(folder)
    if full:
        return f"the daemon cannot write into {folder}, which is {full}. Free space there: df -h {folder}"
    pid = int(state.get("pid", 0))
    with contextlib.suppress(OSError):
        if b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return f"the daemon runs (pid {pid}), but does not update it: journalctl -u srobustd"
    return "the daemon does not run here: systemctl status srobustd"


def _full(folder: Path) -> str:
    """Return why files cannot be written there; empty if they can."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return "mounted read-only"
    if found.f_blocks and not found.f_bavail:
        return "full"
    return "out of inodes" if found.f_files and not found.f_favail else ""


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=1)
    sys.stdout.write("\n")


def clock(at_s: float | None) -> str:
    """Return a local time, `01-31 23:59:59`."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at_s)) if at_s else ""
