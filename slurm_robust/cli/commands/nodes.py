"""`srobust nodes`: in which room is each node, and why."""

from __future__ import annotations

import click

from slurm_robust.cli.state import clock, load_config, load_state, print_json, source_options
from slurm_robust.cli.table import table
from slurm_robust.cli.teaching import SHOWN, lesson

ROOMS = ("active", "standby", "seat", "quarantine", "drained", "idle")


@click.command(
    "nodes",
    epilog=lesson(
        [
            ("srobust nodes", "every node, and why it is where it is"),
            ("srobust nodes --room drained", "what waits for repair, with the evidence"),
        ],
        SHOWN,
    ),
)
@click.option("--room", type=click.Choice(ROOMS), help="Only this room.")
@source_options
def command(room: str | None, path: str | None, as_json: bool) -> None:
    """In which room is each node, and why."""
    nodes = load_state(load_config(path))["nodes"]
    if room is not None:
        nodes = [n for n in nodes if n["room"] == room]
    if as_json:
        print_json(nodes)
        return
    rows = [
        (
            n["name"],
            n["room"],
            n["state"],
            n["job"],
            n["owner"],
            str(n["strikes"] or ""),
            clock(n["since_s"]),
            n["reason"] or n["word"],
        )
        for n in nodes
    ]
    table(
        "Nodes",
        ("node", "room", "Slurm says", "job", "drained by", "strikes", "since", "why"),
        rows,
        drop=("since", "strikes"),
    )
