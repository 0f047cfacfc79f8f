"""The supervisor process that `srobust run` starts: `python -m slurm_robust.supervise FD LOCK WORD…`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from slurm_robust.config import site
from slurm_robust.config.file import find
from slurm_robust.core.model import JobRef, Mode
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise import incident_folder, job
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.job_ref import NoJobError
from slurm_robust.supervise.launch import options, srun_command
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.own_output import own_output_files
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.supervisor import Supervisor


async def supervise(fd: int, lock_fd: int, words: list[str]) -> int:
    """Supervise what the launcher on the other end of `fd` runs; `lock_fd` holds the job's lock, -1 for no lock.

    A fault of our own before the launch ends this process: the launcher then runs the user's srun without supervision.
    """
    command = srun_command.parse(words)
    own = options.read(command.own, os.environ)
    channel = Channel(fd)
    await channel.open()
    await channel.ready.wait()
    of_site = site.load(own.config)
    config = own.applied(of_site)
    supervised, config = await asyncio.to_thread(read_job, config, job.ref_from_environment(os.environ))
    files = own_output_files()
    reported = supervised.output()
    if not files and reported is not None:
        files = [reported]
    # From here on this process may leave traces that only a supervisor can complete.
    channel.report_alive()
    work_dir = Path(supervised.info.work_dir or ".")
    folder = IncidentFolder(incident_folder.of_run(own.folder, files, supervised.name, work_dir))
    lock = SupervisorLock(supervised.cluster, supervised.name)
    lock.take_over(lock_fd)
    if not lock.claim():
        # Two supervisors would take each other's nodes for spares, and write to one Comment.
        folder.log_event("note", "another srobust run supervises this job: neither acts, both watch and report")
        config = msgspec.structs.replace(config, mode=Mode.OBSERVE)
        supervised.can_claim = False
    session = Session(
        supervised,
        config,
        folder,
        channel=channel,
        command=command,
        lock=lock,
        checkpoint_dir=own.checkpoint_dir,
        output_files=tuple(files),
        layout=own.layout,
        layout_order=own.layout_order,
        code_dir=own.code,
        replay=own.replay,
        site_mode=of_site.mode if find(own.config) is not None else None,
    )
    try:
        return await Supervisor(session).run()
    finally:
        lock.release()


def read_job(config: site.Config, ref: JobRef) -> tuple[job.SupervisedJob, site.Config]:
    """Return the job and the configuration, changed to use Slurm's commands if pyslurm cannot be asked.

    Raises:
        NoJobError: Slurm does not know the job.
        SlurmError: Slurm's commands cannot be asked either.
    """
    try:
        return job.read(connect(config.slurm), ref), config
    except SlurmError as error:
        if config.slurm.backend == "commands":
            raise
        sys.stderr.write(f"srobust: {config.slurm.backend} failed: {error}; Slurm's commands are used for this job\n")
    config = msgspec.structs.replace(config, slurm=msgspec.structs.replace(config.slurm, backend="commands"))
    return job.read(connect(config.slurm), ref), config


def main() -> None:
    """Run the supervisor: the entry point."""
    try:
        asyncio.run(supervise(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
    except (site.ConfigError, NoJobError, SlurmError, srun_command.UsageError) as error:
        sys.stderr.write(f"srobust: not supervised: {error}\n")
        sys.exit(3)
    # A requeue may follow at once: without cleaning up, this process is gone sooner.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
