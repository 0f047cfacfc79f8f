"""`srobust localize`: who is at fault, from saved evidence, away from any cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from slurm_robust.cli.teach import lesson
from slurm_robust.localize.archive import ArchiveError
from slurm_robust.localize.fold import render_tree
from slurm_robust.localize.folder import read_folder
from slurm_robust.localize.judge import judge
from slurm_robust.localize.report import to_json, to_text
from slurm_robust.model import EXIT_USAGE


@click.command(
    "localize",
    epilog=lesson(
        [
            ("srobust localize --stacks slurm-robust-1234/1234-r0-1795228470", "judge a saved incident once more"),
            ("srobust localize --stacks dumps --world-size 64 --json", "py-spy dumps of your own"),
        ],
        [(0, "judged, whatever the verdict"), (2, "wrong usage"), (64, "no such folder, or nothing in it to judge")],
    ),
)
@click.option("--stacks", type=click.Path(path_type=Path), required=True, help="Folder of an incident, or of dumps.")
@click.option("--world-size", type=click.IntRange(min=1), help="Number of ranks, where the folder may lack some.")
@click.option("--tree/--no-tree", default=True, help="Show the merged stacks of the last capture.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(stacks: Path, world_size: int | None, tree: bool, as_json: bool) -> None:
    """Who is at fault, from captured stacks.

    \b
    --stacks takes what an incident's folder holds (<node>.json.gz), or py-spy dumps named
    rank-<r>.json (py-spy dump --json) or rank-<r>.txt, in one folder or one for each node.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    try:
        saved = read_folder(stacks, world_size)
    except ArchiveError as error:
        click.echo(f"srobust localize: {error}", err=True)
        sys.exit(EXIT_USAGE)
    for problem in saved.problems:
        click.echo(f"srobust localize: {problem}", err=True)
    verdict = judge(saved.evidence)
    if as_json:
        click.echo(json.dumps({**to_json(verdict), "problems": list(saved.problems)}))
        return
    click.echo(to_text(verdict))
    if tree and saved.evidence.captures:
        click.echo()
        click.echo(render_tree(saved.evidence.captures[-1]))
