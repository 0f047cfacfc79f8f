"""Reads the options that all `srobust report` commands share, which time and which sources, and loads the facts."""

from __future__ import annotations

import datetime as dt
import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_robust.cli.state import load_config
from slurm_robust.core.text import printable
from slurm_robust.report.facts import Facts
from slurm_robust.report.read import FactSources, read_facts
from slurm_robust.slurm.factory import connect

F = TypeVar("F", bound=Callable[..., Any])
UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LONGEST_S = 10 * 366 * 86400


@dataclass(frozen=True)
class FactOptions:
    """The options `--since` to `--config`, as typed.

    Attributes:
        journal: Folder of the journal; None for the configuration's `daemon.state_dir`.
        config: robust.yaml; None as the daemon.
    """

    since: str
    until: str
    journal: Path | None
    accounting: bool
    cluster: str
    config: str | None


def fact_options(function: F, since: str = "7d") -> F:
    """Adds these options to a command, which gets them as its argument `source`; `since` is what `--since` has else."""

    @wraps(function)
    def command(**given: Any) -> Any:
        names = tuple(FactOptions.__dataclass_fields__)
        return function(source=FactOptions(**{name: given.pop(name) for name in names}), **given)

    folder = click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--config", type=click.Path(dir_okay=False), help="robust.yaml; else as the daemon."),
        click.option("--cluster", default="", metavar="NAME", help="Facts of this cluster alone, by Slurm's name."),
        click.option("--no-accounting", "accounting", flag_value=False, default=True, help="Do not ask sacct."),
        click.option("--journal", type=folder, help="Folder with the daemon's journal; else daemon.state_dir."),
        click.option("--until", default="now", show_default=True, metavar="TIME", help="As --since."),
        click.option(
            "--since", default=since, show_default=True, metavar="TIME", help="7d, 24h, 30m ago, or 2026-01-31[T12:00]."
        ),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def load_facts(source: FactOptions) -> Facts:
    """Read them; a source that is away is among the facts' doubts.

    Raises:
        click.ClickException: the configuration cannot be read.
        click.UsageError: a time cannot be read, or the times are in the wrong order.
    """
    now_s = time.time()
    from_s = moment(source.since, now_s, "--since")
    # Ignore the time after now: shares and rates count only hours that have passed.
    to_s = min(moment(source.until, now_s, "--until"), now_s)
    if from_s >= to_s:
        raise click.UsageError(f"--since {source.since} is not before --until {source.until}, or lies in the future")
    if to_s - from_s > LONGEST_S:
        raise click.UsageError(f"--since {source.since}: ten years at most, for example --since 365d")
    config = load_config(source.config)
    client = connect(config.slurm) if source.accounting else None
    journal = source.journal or Path(config.daemon.state_dir)
    # Stop the garbage collector: scanning half a million live rows takes a quarter of the run time.
    gc.disable()
    try:
        return read_facts(FactSources(journal, client, source.cluster), from_s, to_s, now_s)
    finally:
        # Freeze what was read: the facts live to the end of the command, so later collections need not scan them.
        gc.freeze()
        gc.enable()


def moment(text: str, now_s: float, option: str) -> float:
    """Return the seconds since the epoch of `now`, `7d` (ago), or a date with or without a time.

    A date without a zone is local.

    Raises:
        click.UsageError: the text has another form.
    """
    if text == "now":
        return now_s
    if ago := re.fullmatch(r"([0-9]{1,6})([mhdw])", text):
        return now_s - int(ago[1]) * UNITS_S[ago[2]]
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        example = f"{option} 7d, {option} 24h, {option} 2026-01-31, or {option} 2026-01-31T12:00"
        raise click.UsageError(f"{option} {text!r} is not a time; type for example {example}") from None


def show_doubts(facts: Facts) -> None:
    """Write the doubts to stderr, so that an output for tools stays one document."""
    for doubt in facts.doubts:
        click.echo(f"Note: {printable(doubt)}", err=True)
