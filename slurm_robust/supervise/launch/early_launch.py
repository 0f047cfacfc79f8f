"""Makes the first launch from the launcher itself, so that srun does not wait for a supervisor to load its modules.

The ranks get the environment that a supervisor would give them. If that environment cannot soon be known here, there is
no early launch, and the supervisor orders the first launch like all others. srun waits for all modules that this module
loads: it loads the standard library, and more only if the command line or the site's file needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_robust.core.mode import Mode
from slurm_robust.supervise import incident_folder
from slurm_robust.supervise.agent.clock import CLOCK
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.job_ref import JobIds, NoJobError, ids_from_environment
from slurm_robust.supervise.launch import attempt_settings, srun_process
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.launch.options import RunOptions
from slurm_robust.supervise.launch.own_output import own_output_files
from slurm_robust.supervise.launch.run_place import LINEAGE_FILE, place, run_key
from slurm_robust.supervise.launch.srun_command import SrunCommand, first_launch
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock

if TYPE_CHECKING:
    from slurm_robust.config.site import Config

DEFAULT_MODE = Mode.OBSERVE
DEFAULT_LAUNCHES_PER_HOUR = 30
"""Copied from `config.Config`, which is not loaded if the site has no file."""
_TALLY_S = 3600.0
_LOOK_UP_S = 10.0
"""If a file server takes longer, the supervisor launches; the launcher waits for that with a limit, too."""
_SLURM_S = 3.0


class EarlyLaunch(NamedTuple):
    """The launch to make, and what the supervisor is told about it.

    Attributes:
        attempt: The name of the attempt.
        env: Variables that are added to our own.
        lineage: The name of the training.
        output_from: Output file → its size now.
        alone: No claim of an earlier attempt waits for an answer: a step that ends well needs no supervisor.
    """

    attempt: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    lineage: str
    resume_point: ResumePoint
    output_from: Mapping[str, int]
    alone: bool


class EarlySrun(NamedTuple):
    """An srun that runs; `mask` are the signals that were blocked before."""

    launch: EarlyLaunch
    srun: subprocess.Popen[bytes]
    mask: Collection[signal.Signals | int]


def start(launch: EarlyLaunch, env: Mapping[str, str]) -> EarlySrun:
    """Start srun.

    Raises:
        OSError: srun cannot be started.
    """
    mask = srun_process.block_signals()
    return EarlySrun(launch, srun_process.start(launch.argv, {**env, **launch.env}, mask), mask)


def lock_of(env: Mapping[str, str]) -> SupervisorLock | None:
    """Return the lock of this job's supervisor, claimed; None if cluster or job are not known."""
    try:
        ref = ids_from_environment(env)
    except NoJobError:
        return None
    if not env.get("SLURM_CLUSTER_NAME"):
        return None
    lock = SupervisorLock(env["SLURM_CLUSTER_NAME"], ref.address)
    lock.claim()
    return lock


def prepare(
    command: SrunCommand, own: RunOptions, env: Mapping[str, str], config: Config | None, lock: SupervisorLock | None
) -> EarlyLaunch | None:
    """Return the first launch; None if the supervisor has to make it.

    `config` is None if the site has no file. That is for the supervisor: a version of the code; warm restarts, for
    which ranks record what they import; a training that this job's folder does not remember; too many launches without
    a new step; a checkpoint folder, or a Slurm, that does not answer soon.
    """
    warm = own.warm is not None or (config is not None and config.supervise.warm_restarts and not own.no_warm)
    if own.code or warm or lock is None or lock.fd < 0:
        return None
    ref, restart = ids_from_environment(env), env.get("SLURM_RESTART_COUNT") or "0"
    outputs, work_dir = own_output_files(), Path()
    if ref.het_offset is not None or not restart.isdecimal():
        return None
    if not outputs and not own.folder:
        asked = _ask_slurm(ref, config)
        if asked is None:
            return None
        outputs, work_dir = asked
    # The supervisor reports the reason.
    folder = IncidentFolder(incident_folder.of_run(own.folder, outputs, ref.address, work_dir), quiet=True)
    mode = own.mode or (config.mode if config is not None else DEFAULT_MODE)
    acting = mode is Mode.ACT and lock.claim() and not lock.shared
    lineage = _lineage(folder, int(restart), _launches_per_hour(config) if acting and not sys.stderr.isatty() else None)
    resume_point = _resume_point(own.checkpoint_dir)
    if not lineage:
        return None
    name = attempt_settings.attempt_name(ref.address, int(restart), os.getpid(), 1)
    dumps = folder.subfolder("fr")  # PyTorch does not create it, and writes no dump without it
    given = attempt_settings.environment(env, name, lineage, resume_point, dumps, command=command)
    argv = tuple(first_launch(command, keep_evidence=acting))
    sizes = {str(path): _size_bytes(path) for path in outputs}
    return EarlyLaunch(name, argv, given, lineage, resume_point, sizes, alone=restart == "0")


def _lineage(folder: IncidentFolder, restart: int, most_launches: int | None) -> str:
    """Return the training's name; empty if the supervisor has to choose it, or to refuse the launch."""
    key = run_key(place(folder, restart, os.getpid()))
    try:
        found = folder.read(LINEAGE_FILE)
    except FileNotFoundError:
        return os.urandom(6).hex() if restart == 0 else ""
    except OSError:
        return ""
    import json  # noqa: PLC0415 (a job's first launch does not need it)

    try:
        known = json.loads(found)
        tally, run = known.get("tally") or {}, (known.get("runs") or {}).get(key)
        counts = 0 <= CLOCK.now_s() - tally.get("since_s", 0.0) < _TALLY_S
        if counts and most_launches is not None and tally.get("count", 0) >= most_launches:
            return ""
        if run is not None:
            return str(run["id"])
    except (ValueError, TypeError, AttributeError, KeyError):
        return ""
    return os.urandom(6).hex() if restart == 0 else ""


def _launches_per_hour(config: Config | None) -> int:
    return config.supervise.fruitless_launches_per_hour if config is not None else DEFAULT_LAUNCHES_PER_HOUR


def _resume_point(directory: str) -> ResumePoint:
    """Return the newest verified checkpoint."""
    if not directory:
        return ResumePoint()
    if _is_empty(directory):
        return ResumePoint(searched=True)
    from slurm_robust.supervise.launch.resume_points import look_up  # noqa: PLC0415 (loads what reads seals)

    return look_up(directory)


def _is_empty(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _ask_slurm(ref: JobIds, config: Config | None) -> tuple[list[Path], Path] | None:
    """Return the job's output file and working directory, if our own output goes through a pipe or to a terminal."""
    import msgspec  # noqa: PLC0415 (seldom needed, and srun waits for it)

    from slurm_robust.config.site import SlurmConfig  # noqa: PLC0415
    from slurm_robust.core.model import JobRef  # noqa: PLC0415
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415
    from slurm_robust.slurm.factory import connect  # noqa: PLC0415
    from slurm_robust.slurm.output_files import existing_output  # noqa: PLC0415

    settings = config.slurm if config is not None else SlurmConfig()
    try:
        client = connect(msgspec.structs.replace(settings, timeout_s=min(_SLURM_S, settings.timeout_s)))
        job = client.job(JobRef(*ref))
    except SlurmError:
        return None
    if job is None:
        return None
    written = existing_output(job)
    return [written] if written is not None else [], Path(job.work_dir or ".")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def try_prepare(*args: Any) -> EarlyLaunch | None:
    """Return the launch of `prepare`; None if it fails, which is reported, or takes long: the supervisor orders it."""
    found: list[EarlyLaunch | None] = []

    def work() -> None:
        # This thread may still run when the launcher waits for signals: it must not receive any of them.
        srun_process.block_signals()
        try:
            found.append(prepare(*args))
        except Exception as error:  # noqa: BLE001 (whatever it is, it must not hold the launch)
            sys.stderr.write(f"srobust: srun waits for the supervisor: {type(error).__name__}: {error}\n")

    # A thread: a file server that does not answer must not hold the launch for ever.
    thread = threading.Thread(target=work, daemon=True)
    with contextlib.suppress(RuntimeError):  # there can be no more threads
        thread.start()
        thread.join(_LOOK_UP_S)
    return found[0] if found else None
