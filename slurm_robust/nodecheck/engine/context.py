"""Tells every probe which node and stage this is, and where to read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.core.text import NODE_NAME
from slurm_robust.nodecheck import state_folder

STAGES = ("prolog", "epilog", "periodic", "full")
_GPU_IDS = re.compile(r"\d{1,3}(?:,\d{1,3}){0,127}\Z")
_INSTANCE = re.compile(r"MIG-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_MAX_INSTANCES = 128
_JOB_ID = re.compile(r"\d{1,10}\Z")
_MODES = ("on", "observe", "off")
_SPARES = re.compile(r"\d{1,4}\Z", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """A probe's surroundings.

    Attributes:
        root: Folder that stands for `/`: `/proc`, `/sys` and `/dev` are read below it.
        kmsg: The kernel log, `/dev/kmsg` or a plain file.
        cache_dir: State kept between runs; None keeps none (for a saved log or a saved tree).
        job_id: The job that starts or ends here, None outside prolog and epilog.
        job_gpus: The job's GPUs on this node, host ids; empty if unknown.
        job_instances: UUIDs of the job's MIG instances on this node; empty if it has none, or they are unknown.
        nvml_library: The site's own libnvidia-ml.so.1; empty: the loader's.
        gpu_profiles: The site's own expectations by model, see `engine.gpu_profiles`.
        real_memory_mb: Slurm's RealMemory of this node in MiB, 0 if unknown.
        deadline_s: The check's own deadline; a probe that splits its work stays below it.
        shared: Values that the probes of one lane read once for all of them; see `once`.
    """

    node: str
    stage: str = "full"
    root: Path = Path("/")
    kmsg: Path = Path("/dev/kmsg")
    cache_dir: Path | None = None
    job_id: int | None = None
    job_gpus: tuple[int, ...] = ()
    job_instances: tuple[str, ...] = ()
    real_memory_mb: int = 0
    nvml_library: str = ""
    gpu_profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deadline_s: float = 5.0
    shared: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, read: Callable[[], T]) -> T:
        """Return the result of `read`, called by the first probe of the lane that needs it and kept for the others."""
        if name not in self.shared:
            self.shared[name] = read()
        value: T = self.shared[name]
        return value

    def path(self, absolute: str) -> Path:
        """Return where to read `absolute` (`/proc/meminfo`)."""
        return self.root / absolute.lstrip("/")

    @property
    def real_root(self) -> bool:
        """Whether this machine itself is checked, and not a saved tree."""
        return str(self.root) == "/"

    def boot_id(self) -> str:
        """Return the kernel's name of this boot, empty if it cannot be read."""
        return state_folder.boot_id(str(self.root))


def node_name(env: Mapping[str, str] | None = None) -> str:
    """Slurm's name of this node: `SLURMD_NODENAME`, else the host's short name.

    The variable wins because several nodes may share a host; a value that is not shaped like a name is ignored.
    """
    named = (os.environ if env is None else env).get("SLURMD_NODENAME", "")
    return named if NODE_NAME.match(named) else os.uname().nodename.split(".", maxsplit=1)[0]


def job_of(env: Mapping[str, str]) -> int | None:
    """Return `SLURM_JOB_ID`, if it is shaped like a job id."""
    text = env.get("SLURM_JOB_ID", "")
    return int(text) if _JOB_ID.match(text) else None


def job_choice_of(env: Mapping[str, str]) -> str:
    """Return the job's choice with the SPANK plugin's options, `robust=on spares=1`; empty if it chose nothing.

    Users control these variables, so only values of the right shape are taken.
    """
    mode, spares = env.get("SPANK_ROBUST_MODE", ""), env.get("SPANK_ROBUST_SPARES", "")
    chosen = [f"robust={mode}"] if mode in _MODES else []
    if chosen and _SPARES.match(spares):
        chosen.append(f"spares={spares}")
    return " ".join(chosen)


def job_gpus_of(env: Mapping[str, str]) -> tuple[int, ...]:
    """Return `SLURM_JOB_GPUS` ("0,1") as numbers; empty for any other shape, as of MIG and sharded GPUs."""
    text = env.get("SLURM_JOB_GPUS", "")
    return tuple(int(part) for part in text.split(",")) if _GPU_IDS.match(text) else ()


def job_instances_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the job's MIG instances, where slurmd names them by UUID (it does in CUDA_VISIBLE_DEVICES)."""
    for name in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        parts = env.get(name, "").split(",")
        if len(parts) <= _MAX_INSTANCES and all(_INSTANCE.match(part) for part in parts):
            return tuple(parts)
    return ()
