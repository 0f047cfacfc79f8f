"""`srobust localize`: who is at fault, from saved evidence, away from any cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import click

from slurm_robust.cli.page_file import write_page
from slurm_robust.cli.teaching import lesson
from slurm_robust.core.model import EXIT_USAGE
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.evidence_folder import Saved, read_folder
from slurm_robust.localize.layout import LayoutError, fit, parse
from slurm_robust.localize.recorder.dump import RecorderDumpError, read_dumps
from slurm_robust.localize.slow.judge import judge_slowness, weigh, with_timings
from slurm_robust.localize.slow.rounds import judge_repeated
from slurm_robust.localize.slow.timings_file import TimingsError, read_timings
from slurm_robust.localize.stacks.archive import ArchiveError
from slurm_robust.localize.stacks.flame_graph import render_svg
from slurm_robust.localize.stacks.merge import render_tree, tree_json
from slurm_robust.localize.verdict_text import to_json, to_text


@click.command(
    "localize",
    epilog=lesson(
        [
            ("srobust localize --stacks slurm-robust-1234/1234-r0-1795228470", "judge a saved incident again"),
            ("srobust localize --stacks dumps --world-size 64 --json", "py-spy dumps of your own"),
            ("srobust localize --stacks dumps --layout tp=8,pp=4", "with the parallel groups"),
            ("srobust localize --stacks dumps --svg hang.svg", "and a flame graph of all ranks"),
            ("srobust localize --flight-recorder traces --ranks-per-node 8", "PyTorch's flight-recorder dumps"),
            ("srobust localize --timings steps.jsonl --layout tp=8,pp=4", "find the slow machine from step times"),
        ],
        [(0, "judged, whatever the verdict"), (2, "wrong usage"), (64, "no such folder, or nothing in it to judge")],
    ),
)
@click.argument("folders", nargs=-1, metavar="")
@click.option("--stacks", type=click.Path(path_type=Path), help="Folder of an incident, or of py-spy dumps.")
@click.option("--flight-recorder", type=click.Path(path_type=Path), help="Folder of PyTorch's dumps, one a rank.")
@click.option("--timings", type=click.Path(path_type=Path), help="Step times of all ranks: JSON lines or CSV.")
@click.option("--world-size", type=click.IntRange(min=1), help="Number of ranks, in case the folder lacks some.")
@click.option("--ranks-per-node", type=click.IntRange(min=1), help="Number the nodes where nothing names them.")
@click.option("--layout", help="Parallel sizes: tp=2,pp=4,dp=4[,cp=,ep=,etp=][,order=tp-cp-ep-dp-pp].")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write a flame graph of the last capture.")
@click.option("--tree/--no-tree", default=True, help="Show the merged stacks of the last capture.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(
    *,
    folders: tuple[str, ...],
    stacks: Path | None,
    flight_recorder: Path | None,
    timings: Path | None,
    world_size: int | None,
    ranks_per_node: int | None,
    layout: str | None,
    svg: Path | None,
    tree: bool,
    as_json: bool,
) -> None:
    """Name who is at fault, from captured stacks and flight-recorder dumps, or who is slow, from step times.

    \b
    --stacks takes what an incident's folder holds (<node>.json.gz), or py-spy dumps named
    rank-<r>.json (py-spy dump --json) or rank-<r>.txt, in one folder or one for each node.
    --flight-recorder takes what PyTorch wrote at TORCH_FR_DUMP_TEMP_FILE (or
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE): pickles or JSON, the rank at the end of each name.
    Nothing in them is executed.
    --timings takes rank, step and total_s, compute_s, communication_s (seconds), a line each.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    if folders:
        what = "what is in it? Type: srobust localize"
        raise click.UsageError(f"{folders[0]}: {what} --stacks {folders[0]}, or --flight-recorder {folders[0]}")
    if stacks is None and flight_recorder is None and timings is None:
        raise click.UsageError("give --stacks DIR, --flight-recorder DIR, --timings FILE, or several of them")
    try:
        saved = read_folder(stacks, world_size) if stacks is not None else Saved(Evidence(world_size or 0, {}))
        dumps = read_dumps(flight_recorder, world_size or 0) if flight_recorder is not None else None
        steps = read_timings(timings) if timings is not None else None
    except (ArchiveError, RecorderDumpError, TimingsError) as error:
        click.echo(f"srobust localize: {error}", err=True)
        sys.exit(EXIT_USAGE)
    evidence, problems = saved.evidence, saved.problems
    if dumps is not None:
        size = max(evidence.world_size, max(dumps.dumps) + 1)
        nodes = {r: f"node{r // ranks_per_node}" for r in range(size)} if ranks_per_node else {}
        nodes.update(evidence.rank_nodes)
        evidence = replace(evidence, world_size=size, rank_nodes=nodes, recorder=dumps.dumps)
        problems = (*problems, *dumps.problems)
    if steps is not None:
        evidence = with_timings(evidence, steps.timings, ranks_per_node)
        problems = (*problems, *steps.problems)
    if layout is not None:
        evidence = _laid_out(evidence, layout, given=world_size is not None)
    for problem in problems:
        click.echo(f"srobust localize: {problem}", err=True)
    slow = judge_slowness(evidence)
    hung = judge_repeated(evidence) if stacks is not None or flight_recorder is not None else None
    verdict = weigh(hung, slow)
    if svg is not None:
        _draw(evidence, svg, verdict.reason)
    if as_json:
        trees = tree_json(evidence.captures[-1]) if tree and evidence.captures else []
        click.echo(json.dumps({**to_json(verdict), "tree": trees, "problems": list(problems)}))
        return
    click.echo(to_text(verdict))
    if tree and evidence.captures:
        click.echo()
        click.echo(render_tree(evidence.captures[-1]))


def _laid_out(evidence: Evidence, text: str, *, given: bool) -> Evidence:
    """Return the evidence with the layout. A layout that does not fit is kept: the verdict says why it is not used."""
    try:
        sizes, order = parse(text)
        # The layout gives the number of ranks; that some left no files is evidence.
        whole = fit(sizes, order, 0).world_size if not given and "dp" in sizes else 0
    except LayoutError as error:
        raise click.UsageError(str(error)) from None
    return replace(evidence, world_size=max(evidence.world_size, whole), layout=sizes, layout_order=order)


def _draw(evidence: Evidence, path: Path, title: str) -> None:
    if not evidence.captures:
        click.echo(f"srobust localize: {path}: not written: a flame graph needs stacks (--stacks DIR)", err=True)
        return
    try:
        write_page(path, render_svg(evidence.captures[-1], title))
    except click.ClickException as error:
        click.echo(f"srobust localize: {error.message}", err=True)
