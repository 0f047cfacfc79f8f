"""`srobust stacks JOBID`: merged stacks of a live job, also one that was never wrapped."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from slurm_robust import config as site
from slurm_robust.cli.teach import lesson, not_running, slurm_words
from slurm_robust.localize.fold import render_tree
from slurm_robust.model import JobRef
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
                "and the archives of all nodes, for: srobust localize --stacks stacks",
            ),
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
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds for everything.")
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(job_id: str, as_json: bool, save: Path | None, timeout_s: float, config_path: str | None) -> None:
    """Take the stacks of every process of every rank of a running job, and print them merged.

    The job need not know of srobust: plain `srun python train.py` will do. Nothing in it is changed or stopped. You
    must be its owner (or root). The tree shows each place with the ranks that stand there, `0-2,5`; the odd ones out
    are usually the interesting ones.
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
        archives, missing = asyncio.run(take(job, config.supervise, timeout_s))
    except SnapshotError as error:
        click.echo(f"srobust stacks: {error}", err=True)
        sys.exit(3)
    if save is not None:
        Folder(save.parent, quiet=True).write_archives(save.name, 1, archives)
    if as_json:
        nodes = {node: msgspec.Raw(body) for node, body in archives.items()}
        click.echo(msgspec.json.encode({"job": job_id, "missing": missing, "nodes": nodes}).decode())
    else:
        click.echo(render_tree(merge(archives, missing).capture))
        if missing:
            click.echo(f"no answer from {','.join(missing)}", err=True)
    sys.exit(1 if missing else 0)
