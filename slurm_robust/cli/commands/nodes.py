"""`srobust nodes`: the state of each node, and why."""

from __future__ import annotations

from typing import Any

import click

from slurm_robust.cli.state import clock, config_to_show, load_state, print_json, source_options
from slurm_robust.cli.table import table
from slurm_robust.cli.teaching import SHOWN, lesson
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.node_states import NodeState
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import expand

STATES = tuple(state.value for state in NodeState)


def repair(node: dict[str, Any]) -> str:
    """Return `repair, try 1 of 2 (reboot): rebooting since 14:02:11; XID 79 …`; empty if no repair is under way."""
    now = node.get("repair")
    if not now:
        return ""
    words = f"repair, try {now['try']} of {now['of']} ({Remedy(now['remedy']).words}): {now['doing']}"
    return f"{words} since {clock(now['since_s'])}; {now['evidence']}"


def strikes(node: dict[str, Any]) -> str:
    """Return strikes as `3 (ann 2, ben 1)`; empty for none."""
    users = ", ".join(f"{user} {count}" for user, count in node.get("strikes_by_user", {}).items())
    return f"{node['strikes']}{f' ({users})' if users else ''}" if node["strikes"] else ""


_BY = {"foreign": "somebody else", "slurm": "Slurm"}
"""The words for people for who took a node out; `--json` has the key."""


@click.command(
    "nodes",
    epilog=lesson(
        [
            ("srobust nodes", "every node, its state, and why"),
            ("srobust nodes n[1-3]", "these alone"),
            ("srobust nodes --state drained", "the nodes to repair, with the evidence"),
        ],
        SHOWN,
    ),
)
@click.argument("names", nargs=-1, metavar="[NODES]...")
@click.option("--state", type=click.Choice(STATES), help="Only nodes in this state.")
@click.option("--room", type=click.Choice(STATES), hidden=True, help="The old name of --state.")
@source_options
def command(names: tuple[str, ...], state: str | None, room: str | None, path: str | None, as_json: bool) -> None:
    """Show the state of each node, and why; with NODES (`n[1-3]`), of these alone."""
    nodes = load_state(config_to_show(path))["nodes"]
    try:
        asked = expand(",".join(names))
    except SlurmParseError as error:
        raise click.UsageError(f"{','.join(names)}: {error}") from None
    if unknown := set(asked).difference(n["name"] for n in nodes):
        raise click.ClickException(f"Slurm knows no node {', '.join(sorted(unknown))}: sinfo -N")
    nodes = [n for n in nodes if not asked or n["name"] in asked]
    if wanted := state or room:
        nodes = [n for n in nodes if n["node_state"] == wanted]
    if as_json:
        print_json(nodes)
        return
    rows = [
        (
            *(n[key] for key in ("name", "node_state", "state", "job")),
            _BY.get(n["owner"], n["owner"]),
            *(strikes(n), clock(n["since_s"]), repair(n) or n["reason"] or n["word"]),
        )
        for n in nodes
    ]
    columns = ("node", "state", "in Slurm", "job", "drained by", "strikes", "since", "why")
    table("Nodes", columns, rows, drop=("since", "strikes"))
