"""What each launch of the training is given: a name, a checkpoint, fresh rendezvous values. Decides; starts nothing."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from slurm_robust.checkpoint import rollbacks
from slurm_robust.checkpoint.demotion import demote as mark_demoted
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.find import latest

_PORTS = range(20000, 32000)
"""Below Linux's ephemeral ports, above what services use."""
_FLIGHT_RECORDER_EVENTS = "2000"
_TORCH_SEEN = (2, 13)
"""The oldest torch on which the warning about the old names was seen."""


@dataclass(frozen=True)
class Start:
    """Where an attempt starts from.

    Attributes:
        path: The checkpoint, None to start anew.
        step: Its step, -1 for none.
        notes: Why newer checkpoints were passed over, or why none could be looked up.
        looked: False where no checkpoint folder was named.
        skipped: Batches that the data loader is to leave out, `3-5,9-9`.
    """

    path: Path | None = None
    step: int = -1
    notes: tuple[str, ...] = ()
    looked: bool = False
    skipped: str = ""


def look_up(directory: str) -> Start:
    """The newest verified checkpoint; a folder that cannot be read is a note, not an error."""
    if not directory:
        return Start()
    try:
        found = latest(directory)
        skipped = str(rollbacks.skipped(rollbacks.read(directory)))
    except CheckpointError as error:
        return Start(notes=(str(error),))
    notes = tuple(f"{path.name} was passed over: {why}" for path, why in found.passed_over)
    return Start(found.path, found.step, notes, looked=True, skipped=skipped)


def demote(start: Start, why: str) -> str:
    """Pass this checkpoint over from now on; a sentence about it."""
    if start.path is None:
        return ""
    try:
        mark_demoted(start.path, why)
    except (CheckpointError, OSError) as error:
        return f"checkpoint {start.path.name} should be demoted ({why}), but: {error}"
    return f"checkpoint {start.path.name} is demoted: {why}"


def environment(base: Mapping[str, str], attempt: str, lineage: str, start: Start, dumps: Path) -> dict[str, str]:
    """Variables for the ranks; what the user set is never overridden.

    Args:
        base: The environment that srun starts from.
        attempt: Name of this launch; agents tell ranks of different launches apart by it.
        lineage: Name of the training across requeues.
        start: Its checkpoint.
        dumps: Folder for flight-recorder dumps.
    """
    # Slurm's own prefix is carried to the ranks whatever `--export` says.
    env = {"SROBUST_ATTEMPT": attempt, "SLURM_SROBUST_ATTEMPT": attempt, "SROBUST_LINEAGE": lineage}
    if start.looked:
        env["SROBUST_RESUME_PATH"] = str(start.path) if start.path is not None else ""
        env["SROBUST_RESUME_STEP"] = str(start.step)
        env[rollbacks.SKIP_VARIABLE] = start.skipped
    stem = str(dumps / f"{attempt}-rank-")
    wanted = {
        "TORCH_FR_BUFFER_SIZE": _FLIGHT_RECORDER_EVENTS,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # Python's stacks come from py-spy; here they need the GIL, which a hung rank may hold for ever.
        "TORCH_INCLUDE_STACK_TRACE": "0",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"/tmp/srobust-{attempt}-",  # noqa: S108 (a pipe, on the rank's own node)
    }
    # PyTorch renamed these, and newer versions warn on every rank where the old name is set too.
    if not torch_knows_new_names():
        wanted["TORCH_NCCL_TRACE_BUFFER_SIZE"] = _FLIGHT_RECORDER_EVENTS
        wanted["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = stem
    env.update({k: v for k, v in wanted.items() if k not in base})
    return env


def torch_knows_new_names() -> bool:
    """Whether the torch beside this package is one that was seen to read TORCH_FR_*; False where none is beside it."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _TORCH_SEEN


def fresh_rendezvous(base: Mapping[str, str], attempt: str, nodes: Sequence[str]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT for a relaunch, where the script set them.

    An address that is none of Slurm's node names (an IP address, an alias) is the script's own knowledge and stays.
    """
    out: dict[str, str] = {}
    address = base.get("MASTER_ADDR", "")
    if address and nodes and re.split(r"[.]", address)[0] in nodes:
        out["MASTER_ADDR"] = nodes[0]
    if base.get("MASTER_PORT"):
        out["MASTER_PORT"] = str(_PORTS[zlib.crc32(attempt.encode()) % len(_PORTS)])
    return out
