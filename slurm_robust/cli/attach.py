"""`srobust attach JOBID`: watch a job that already runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from slurm_robust import config as site
from slurm_robust.cli.teach import lesson, not_running, slurm_words
from slurm_robust.model import JobRef, Mode
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise import folder, job
from slurm_robust.supervise.supervisor import Supervisor


@click.command(
    epilog=lesson(
        [
            ("srobust attach 1234", "watch it and report; nothing in the job is changed"),
            ("srobust attach --act 1234", "also end a hung step, and ask for a requeue"),
        ],
        [
            (0, "the job has ended"),
            (2, "wrong usage"),
            (3, "no such running job, or Slurm cannot be asked"),
            (130, "Ctrl-C: the watch has ended, the job goes on"),
        ],
    )
)
@click.argument("job_id")
@click.option("--act", is_flag=True, help="Also act: end a hung step and ask for a requeue (in the site's mode: act).")
@click.option(
    "--folder", "where", type=click.Path(file_okay=False, path_type=Path), help="Where the incident folder goes."
)
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(job_id: str, act: bool, where: Path | None, config_path: str | None) -> None:
    """Watch a job that already runs, also one submitted as plain `srun python train.py`. Nothing in it is changed.

    Progress is read from slurm_robust.progress where the program calls it, else from the log lines of the job's output
    file. Silence is reported with the stacks of all ranks and a verdict, in the folder `slurm-robust-JOBID` beside the
    job's output. Runs until the job ends; Ctrl-C ends the watch and harms no rank.
    """
    try:
        config = site.load(config_path)
        ref = JobRef.parse(job_id)
        context = job.read(connect(config.slurm), ref)
    except SlurmError as error:
        click.echo(f"srobust attach: {slurm_words(error)}", err=True)
        sys.exit(3)
    except (site.ConfigError, job.NoJobError) as error:
        click.echo(f"srobust attach: {error}", err=True)
        sys.exit(3)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if context.job.state != "RUNNING":
        click.echo(f"srobust attach: {not_running(job_id, context.job.state)}", err=True)
        sys.exit(3)
    if not act:
        config = msgspec.structs.replace(config, mode=Mode.OBSERVE)
        context.can_claim = False
    output = context.output()
    path = folder.beside(output, context.name, Path(context.job.work_dir or "."))
    supervisor = Supervisor(
        context,
        config,
        folder.Folder(where / path.name if where else path),
        output_files=(output,) if output else (),
    )
    try:
        asyncio.run(supervisor.run())
    except KeyboardInterrupt:
        sys.exit(130)
