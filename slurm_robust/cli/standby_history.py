"""Computes for `srobust standby size` how many standby nodes each hardware class needs, from the journal's failures."""

from __future__ import annotations

import re
import sqlite3
import time
from typing import Any

import click

from slurm_robust.cli.teaching import slurm_words
from slurm_robust.config.site import Config
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.store.schema import JournalError
from slurm_robust.policy.cluster.node_states import by_class
from slurm_robust.policy.cluster.standby_history import SizeSuggestion, past_by_class
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect

_UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def seconds_of(text: str) -> float:
    """Return the seconds of `12h`, `30d` or `8w`.

    Raises:
        click.UsageError: the text is not one of these.
    """
    found = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if found is None or int(found[1]) == 0:
        raise click.UsageError(f"--since: {text!r} is not a time such as 12h, 30d or 8w")
    return int(found[1]) * _UNITS_S[found[2]]


def suggestions_now(config: Config, since: str, quantile: float) -> list[dict[str, Any]]:
    """Return one object for each hardware class.

    Raises:
        click.ClickException: the journal or Slurm cannot be read; says what to check.
    """
    window_s, now_s = seconds_of(since), time.time()
    try:
        nodes = {node.name: node for node in connect(config.slurm).nodes()}
    except SlurmError as error:
        raise click.ClickException(slurm_words(error)) from None
    journal = None
    try:
        journal = Journal.open(config.daemon.state_dir, read_only=True)
        ledger = NodeLedger(journal)
        first_s = ledger.first_at_s()
        since_s = max(now_s - window_s, first_s if first_s is not None else now_s)
        failures = ledger.failures(since_s)
    except (JournalError, sqlite3.Error) as error:
        raise click.ClickException(f"{error}\nThe journal is on the daemon's machine, and root's: type sudo") from None
    finally:
        if journal is not None:
            journal.close()
    return _rows(config, nodes, past_by_class(_classes(config, nodes), failures, (now_s - since_s) / 86400.0, quantile))


def _classes(config: Config, nodes: dict[str, Node]) -> dict[str, list[str]]:
    return {kind.slug: names for kind, names in by_class(nodes.values(), config.standby.partitions).items()}


def _rows(config: Config, nodes: dict[str, Node], found: dict[str, SizeSuggestion]) -> list[dict[str, Any]]:
    return [
        {
            "partition": kind.partition,
            "gres": kind.gres,
            "features": list(kind.features),
            "machines": past.machines,
            "failures": past.rate.failures,
            "node_days": past.rate.exposure,
            "quantile": past.quantile,
            "daily_failure_rate": past.rate.rate,
            "daily_failure_rate_low": past.rate.low,
            "daily_failure_rate_high": past.rate.high,
            "standby": past.size,
            "standby_low": past.low,
            "standby_high": past.high,
            "sentence": past.sentence,
        }
        for kind in sorted(by_class(nodes.values(), config.standby.partitions), key=lambda k: k.slug)
        for past in [found[kind.slug]]
    ]
