"""`srobust attach JOBID`: watch a job that already runs."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
import msgspec

from slurm_robust.cli.teaching import fail, failing, lesson, not_running
from slurm_robust.config import site
from slurm_robust.config.file import find
from slurm_robust.core.model import JobRef, Mode
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise import incident_folder, job
from slurm_robust.supervise.job_ref import NoJobError
from slurm_robust.supervise.launch import options, srun_command
from slurm_robust.supervise.launch.attached_step import AttachedStep, connection
from slurm_robust.supervise.launch.own_output import own_output_files
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.supervisor import Supervisor


def _own(*, act: bool, **given: str | None) -> options.RunOptions:
    """Return the options that `srobust run` has, too, under its rules."""
    given["mode"] = "on" if act else None
    try:
        return options.read({name.replace("_", "-"): text for name, text in given.items() if text}, {})
    except srun_command.UsageError as error:
        raise click.UsageError(str(error).replace("--robust-", "--", 1)) from None


def _speaker(
    supervised: job.SupervisedJob, attached: AttachedStep | None, *, act: bool
) -> tuple[SupervisorLock | None, bool]:
    """Return the lock that keeps others from speaking for the job, and whether this watch speaks for it.

    A step's own watch, which the plugin starts with its srun, also reports to the daemon what it would do, unless an
    acting supervisor writes the claim. A person who only observes writes nothing into the job.
    """
    acting = SupervisorLock(supervised.cluster, supervised.name)
    if attached is None or not (act or attached.launcher):
        return None, act
    if act:
        return acting, acting.claim()
    observing = SupervisorLock(supervised.cluster, f"{supervised.name}-observed")
    return observing, observing.claim() and not acting.taken


@click.command(
    epilog=lesson(
        [
            ("srobust attach 1234", "watch and report; nothing in the job is changed"),
            ("srobust attach --act 1234", "also ask for a requeue, which ends a hung step"),
            ("srobust attach --step 0 1234", "only step 1234.0"),
        ],
        [
            (0, "the job has ended"),
            (2, "wrong usage"),
            (3, "no such running job, a heterogeneous job, or Slurm does not answer"),
            (130, "ended by Ctrl-C; the job goes on"),
        ],
    )
)
@click.argument("job_id")
@click.option(
    "--act", is_flag=True, help="Also act, whatever the site's mode is: ask for a requeue, which ends a hung step."
)
@click.option("--step", metavar="N", help="Watch only this step (default: all steps of the job).")
@click.option("--launcher", type=int, metavar="PID", help="With --step: end when this process ends, the step's srun.")
@click.option("--checkpoint-dir", metavar="DIR", default="", help="Where the job's checkpoints are.")
@click.option(
    "--hang-timeout", metavar="SECONDS", help="Act after this long without progress, whatever the stacks say."
)
@click.option("--layout", metavar="tp=2,pp=4", help="Parallel sizes, which help to find the rank at fault.")
@click.option(
    "--folder", "where", type=click.Path(file_okay=False, path_type=Path), help="Where to put the incident folder."
)
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    job_id: str,
    *,
    act: bool,
    step: str | None,
    launcher: int | None,
    where: Path | None,
    config_path: str | None,
    **given: str | None,
) -> None:
    """Watch a job that already runs, also one started by plain `srun python train.py`. Nothing in the job is changed.

    Progress is read from slurm_robust.progress if the program calls it, else from the log lines in the job's output
    file. A hang is reported with the stacks of all ranks and a verdict, in the folder `slurm-robust-JOBID` beside the
    job's output file. The watch runs until the job ends. Ctrl-C ends the watch and harms no rank.
    """
    if launcher is not None and step is None:
        raise click.UsageError("--launcher goes with --step: it is that step's srun")
    if step is not None and not step.isdecimal():
        raise click.UsageError(f"--step={step}: expected the number behind the point, as in 1234.0")
    own = _own(act=act, **given)
    with failing("attach", site.ConfigError, NoJobError):
        of_site = site.load(config_path)
        config = own.applied(of_site)
        ref = JobRef.parse(job_id)
        supervised = job.read(connect(config.slurm), ref)
        # Agents tell jobs of two clusters on one machine apart by it, and only a job's own environment has it.
        os.environ.setdefault("SLURM_CLUSTER_NAME", supervised.cluster)
    if supervised.info.state != "RUNNING":
        fail("attach", not_running(job_id, supervised.info.state))
    if supervised.info.hetjob_id:
        fail("attach", f"job {job_id} is part of a heterogeneous job, which is not supervised")
    attached = AttachedStep(step, launcher or 0, connection(os.environ)) if step is not None else None
    lock, alone = _speaker(supervised, attached, act=act)
    if not act or not alone:
        config = msgspec.structs.replace(config, mode=Mode.OBSERVE)
        supervised.can_claim = supervised.can_claim and alone
    # srun's own output tells more than Slurm, which may know the file by its pattern only.
    files = own_output_files(launcher) if launcher else []
    if not files and (told := supervised.output()) is not None:
        files = [told]
    path = incident_folder.beside(files[0] if files else None, supervised.name, Path(supervised.info.work_dir or "."))
    session = Session(
        supervised,
        config,
        incident_folder.IncidentFolder(where / path.name if where else path),
        attached=attached,
        checkpoint_dir=own.checkpoint_dir,
        output_files=tuple(files),
        layout=own.layout,
        layout_order=own.layout_order,
        lock=lock if act and alone else None,
        site_mode=of_site.mode if find(config_path) is not None else None,
    )
    try:
        asyncio.run(Supervisor(session).run())
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if lock is not None:
            lock.release()
