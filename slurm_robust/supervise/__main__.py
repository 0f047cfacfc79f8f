"""The supervisor process that `srobust run` starts: `python -m slurm_robust.supervise FD WORD…` (not for people)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from slurm_robust import config as site
from slurm_robust.model import Mode
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise import job
from slurm_robust.supervise.incident import incident_folder
from slurm_robust.supervise.launch import options, srun_command
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.supervisor import Supervisor
from slurm_robust.supervise.watch import output


async def supervise(fd: int, words: list[str]) -> int:
    """Supervise what the launcher on the other end of `fd` runs.

    A fault of ours before the launch ends this process: the launcher then runs the user's srun plainly.
    """
    command = srun_command.parse(words)
    own = options.read(command.own, os.environ)
    channel = Channel(fd)
    await channel.open()
    await channel.ready.wait()
    config = own.applied(site.load(own.config))
    supervised = await asyncio.to_thread(job.read, connect(config.slurm), job.ref_from_environment(os.environ))
    files = output.own_output_files()
    reported = supervised.output()
    if not files and reported is not None:
        files = [reported]
    where = (
        Path(own.folder) / f"slurm-robust-{supervised.name}"
        if own.folder
        else incident_folder.beside(files[0] if files else None, supervised.name, Path(supervised.info.work_dir or "."))
    )
    folder = incident_folder.IncidentFolder(where)
    lock = SupervisorLock(supervised.cluster, supervised.name)
    if not lock.claim():
        # Both would take each other's nodes for spares, and write to one Comment.
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
    )
    try:
        return await Supervisor(session).run()
    finally:
        lock.release()


def main() -> None:
    """Entry point."""
    try:
        asyncio.run(supervise(int(sys.argv[1]), sys.argv[2:]))
    except (site.ConfigError, job.NoJobError, SlurmError, srun_command.UsageError) as error:
        sys.stderr.write(f"srobust: not supervised: {error}\n")
        sys.exit(3)
    # A requeue may follow at once: without cleaning up, this process is gone sooner.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
