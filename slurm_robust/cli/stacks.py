"""`srobust stacks JOBID`: merged stacks of a live job, also one that was never wrapped."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from slurm_robust import config as site
from slurm_robust.cli.teach import lesson, not_running, slurm_words
from slurm_robust.config import SuperviseConfig
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.fold import render_tree
from slurm_robust.localize.report import to_json, to_text
from slurm_robust.localize.slow.rounds import judge_repeated
from slurm_robust.model import JobRef, Verdict
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.investigate import merge
from slurm_robust.supervise.snapshot import SnapshotError, take


@click.command(
    epilog=lesson(
        [
            ("srobust stacks 1234", "the merged stacks of job 1234, now"),
            (
                "srobust stacks 1234 --save stacks",
                "and the archives, for: srobust localize --stacks stacks",
            ),
            ("srobust stacks 1234 --rounds 5 --every 10", "a job that is slow: for whom do the others wait?"),
        ],
        [
            (0, "all nodes answered"),
            (1, "some did not; stderr names them"),
            (2, "wrong usage"),
            (3, "no such running job, or Slurm cannot be asked"),
        ],
    )
)
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="The archives of all nodes as one JSON object.")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), help="Also keep the archives here, one a node."
)
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True, help="Take them so many times.")
@click.option("--every", "every_s", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds apart.")
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds for a round.")
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    *,
    job_id: str,
    as_json: bool,
    save: Path | None,
    rounds: int,
    every_s: float,
    timeout_s: float,
    config_path: str | None,
) -> None:
    """Take the stacks of every process of every rank of a running job, and print them merged.

    The job need not know of srobust: plain `srun python train.py` will do. Nothing in it is changed or stopped. You
    must be its owner (or root). The tree shows each place with the ranks that stand there, `0-2,5`; the odd ones out
    are usually the interesting ones.

    With --rounds a job that moves too slowly is looked at again and again, and who the others wait for in most rounds
    is named; the tree is of the last round.
    """
    try:
        config = site.load(config_path)
        ref = JobRef.parse(job_id)
        job = connect(config.slurm).job(ref)
    except SlurmError as error:
        click.echo(f"srobust stacks: {slurm_words(error)}", err=True)
        sys.exit(3)
    except site.ConfigError as error:
        click.echo(f"srobust stacks: {error}", err=True)
        sys.exit(3)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if job is None or job.state != "RUNNING":
        click.echo(f"srobust stacks: {not_running(job_id, job.state if job else None)}", err=True)
        sys.exit(3)
    try:
        taken = asyncio.run(_all_rounds(job, config.supervise, timeout_s, count=rounds, every_s=every_s, save=save))
    except SnapshotError as error:
        click.echo(f"srobust stacks: {error}", err=True)
        sys.exit(3)
    archives, missing = taken[-1]
    verdict = _judged([merge(*one) for one in taken]) if rounds > 1 else None
    if as_json:
        nodes = {node: msgspec.Raw(body) for node, body in archives.items()}
        told = {"verdict": to_json(verdict)} if verdict is not None else {}
        click.echo(msgspec.json.encode({"job": job_id, "missing": missing, "nodes": nodes, **told}).decode())
    else:
        click.echo(render_tree(merge(archives, missing)))
        if verdict is not None:
            click.echo(to_text(replace(verdict, classes=())))
        if missing:
            click.echo(f"no answer from {','.join(missing)}", err=True)
    sys.exit(1 if missing else 0)


async def _all_rounds(
    job: Job, config: SuperviseConfig, timeout_s: float, *, count: int, every_s: float, save: Path | None
) -> list[tuple[dict[str, bytes], list[str]]]:
    """Every round's archives and missing nodes; kept as they come, so that Ctrl-C loses none."""
    found = []
    async for archives, missing in take(job, config, timeout_s, count=count, every_s=every_s):
        found.append((archives, missing))
        if save is not None:
            Folder(save.parent, quiet=True).write_archives(save.name, len(found), archives)
        if count > 1:
            click.echo(f"round {len(found)} of {count}", err=True)
    return found


def _judged(captures: list[Capture]) -> Verdict:
    nodes = {rank.rank: rank.node for capture in captures for rank in capture.ranks}
    return judge_repeated(Evidence(max(nodes, default=-1) + 1, nodes, tuple(captures)))
