"""`srobust nodes`: the state of each node, and why."""

from __future__ import annotations

import click

from slurm_robust.cli.state import clock, load_config, load_state, print_json, source_options
from slurm_robust.cli.table import table
from slurm_robust.cli.teaching import SHOWN, lesson
from slurm_robust.policy.cluster.node_states import NodeState

STATES = tuple(state.value for state in NodeState)


@click.command(
    "nodes",
    epilog=lesson(
        [
            ("srobust nodes", "every node, its state, and why"),
            ("srobust nodes --state drained", "the nodes to repair, with the evidence"),
        ],
        SHOWN,
    ),
)
@click.option("--state", type=click.Choice(STATES), help="Only nodes in this state.")
@click.option("--room", type=click.Choice(STATES), hidden=True, help="The old name of --state.")
@source_options
def command(state: str | None, room: str | None, path: str | None, as_json: bool) -> None:
    """Show the state of each node, and why."""
    nodes = load_state(load_config(path))["nodes"]
    if wanted := state or room:
        nodes = [n for n in nodes if n["node_state"] == wanted]
    if as_json:
        print_json(nodes)
        return
    rows = [
        (
            *(n[key] for key in ("name", "node_state", "state", "job", "owner")),
            *(n["strikes"] or "", clock(n["since_s"]), n["reason"] or n["word"]),
        )
        for n in nodes
    ]
    columns = ("node", "state", "in Slurm", "job", "drained by", "strikes", "since", "why")
    table("Nodes", columns, rows, drop=("since", "strikes"))
