"""`srobust report lemons`: nodes that fail more often than chance explains."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from slurm_robust.cli.report_source import FactOptions, fact_options, load_facts, show_doubts
from slurm_robust.cli.state import clock, print_json
from slurm_robust.cli.table import plain, table
from slurm_robust.cli.teaching import lesson
from slurm_robust.report.lemons import Lemon, find_lemons

MAX_NODES = 200_000
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_EXAMPLES = (
    ("sudo srobust report lemons", "of the last ninety days"),
    ("sudo srobust report lemons --since 30d --json", "for tools"),
)
_EXITS = (
    (0, "shown, whether or not there are any"),
    (1, "the journal or the configuration cannot be read; the message says what to check"),
    (2, "wrong usage"),
)


@click.command("lemons", epilog=lesson(_EXAMPLES, _EXITS))
@partial(fact_options, since="90d")
@click.option("--nodes-from", type=click.File("r"), help="Names of all nodes, one a line; `-` for stdin.")
@click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")
def lemons(*, source: FactOptions, nodes_from: Any, as_json: bool) -> None:
    """Nodes that fail more often than chance explains, and nodes to watch.

    A lemon is proven: a report of healthy nodes names one in less than one case in a thousand. Of the watched nodes,
    one in ten may be healthy. Nothing is done to either, unless the site has the daemon check lemons (`lemons.act`).
    """
    facts = load_facts(source)
    show_doubts(facts)
    if not facts.journal_read:
        # The daemon asks this command: no journal must not look like no lemons.
        sys.exit(1)
    found = find_lemons(facts, _names(nodes_from) if nodes_from is not None else ())
    if as_json:
        print_json(
            {
                "from_s": facts.from_s,
                "to_s": facts.to_s,
                "nodes": found.nodes,
                "failures": found.failures,
                "node_days": found.node_days,
                "level": found.level,
                "lemons": [_object(lemon) for lemon in found.lemons],
                "watched": [_object(lemon) for lemon in found.watched],
                "sentence": found.sentence,
            }
        )
        return
    click.echo(plain(found.sentence))
    for title, rows in (("Lemons", found.lemons), ("Watched", found.watched)):
        if rows:
            table(
                title,
                ("node", "failures", "expected", "by chance", "last", "why"),
                [
                    (r.node, f"{r.failures:.3g}", f"{r.expected:.2g}", f"{r.chance:.1e}", clock(r.last_at_s), r.why)
                    for r in rows
                ],
                drop=("expected", "last"),
            )


def _object(lemon: Lemon) -> dict[str, Any]:
    """Return the lemon as an object for tools; an infinite ratio (other nodes had no failure) is null."""
    row = asdict(lemon)
    return row | {"ratio": row["ratio"] if row["expected"] else None, "kinds": dict(lemon.kinds)}


def _names(lines: Any) -> list[str]:
    """Names of nodes, one a line; what cannot be one is left out."""
    found = (line.strip() for _, line in zip(range(MAX_NODES), lines, strict=False))
    return [name for name in found if _NODE.fullmatch(name)]
