"""What every probe is told: which node, which stage, where to look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_robust.claim import NODE_NAME

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
        root: Folder that stands for `/`: `/proc`, `/sys` and `/dev` are looked for below it.
        kmsg: The kernel log, `/dev/kmsg` or a plain file.
        cache_dir: State kept between looks; None keeps none (a saved log or a foreign root is being looked at).
        job_id: The job that starts or ends here, None outside prolog and epilog.
        job_gpus: Its GPUs on this node, host ids; empty where unknown.
        job_instances: UUIDs of its MIG instances on this node; empty where it has none, or they are not told.
        nvml_library: The site's own libnvidia-ml.so.1; empty is the loader's.
        gpu_profiles: The site's own expectations by model, see `nvml.profiles`.
        real_memory_mb: Slurm's RealMemory of this node in MiB, 0 where nobody said.
        deadline_s: The check's own; a probe that splits its work stays below it.
        shared: What probes of one lane read once for all of them; see `once`.
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
        """What `read` gives, read by the first of a lane's probes that asks and kept for the others."""
        if name not in self.shared:
            self.shared[name] = read()
        value: T = self.shared[name]
        return value

    def path(self, absolute: str) -> Path:
        """Where `absolute` (`/proc/meminfo`) is to be looked for."""
        return self.root / absolute.lstrip("/")

    @property
    def real_root(self) -> bool:
        """True where this machine itself is looked at, and not a saved tree."""
        return str(self.root) == "/"

    def boot_id(self) -> str:
        """The kernel's name of this boot, empty where it cannot be read."""
        return read_text(self.path("/proc/sys/kernel/random/boot_id")).strip()


def read_text(path: Path, limit: int = 1 << 20) -> str:
    """A small file's text; empty where it is missing or cannot be read. Bad bytes are replaced."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def node_name(env: Mapping[str, str] | None = None) -> str:
    """Slurm's name of this node: `SLURMD_NODENAME`, else the host's short name.

    The variable wins because several nodes may share a host; one that has not the shape of a name is not believed.
    """
    named = (os.environ if env is None else env).get("SLURMD_NODENAME", "")
    return named if NODE_NAME.match(named) else os.uname().nodename.split(".", maxsplit=1)[0]


def job_of(env: Mapping[str, str]) -> int | None:
    """`SLURM_JOB_ID`, where it has the shape of one."""
    text = env.get("SLURM_JOB_ID", "")
    return int(text) if _JOB_ID.match(text) else None


def job_choice_of(env: Mapping[str, str]) -> str:
    """What the job asked of us through the SPANK plugin, `robust=on spares=1`; empty where it said nothing.

    Any user may put anything into these variables of the job's, so only what has their shape is taken.
    """
    mode, spares = env.get("SPANK_ROBUST_MODE", ""), env.get("SPANK_ROBUST_SPARES", "")
    said = [f"robust={mode}"] if mode in _MODES else []
    if said and _SPARES.match(spares):
        said.append(f"spares={spares}")
    return " ".join(said)


def job_gpus_of(env: Mapping[str, str]) -> tuple[int, ...]:
    """`SLURM_JOB_GPUS` ("0,1"), where it has that shape; MIG and sharded ids have not, and give nothing."""
    text = env.get("SLURM_JOB_GPUS", "")
    return tuple(int(part) for part in text.split(",")) if _GPU_IDS.match(text) else ()


def job_instances_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """The job's MIG instances, where slurmd names them by their UUIDs (it does in CUDA_VISIBLE_DEVICES)."""
    for name in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        parts = env.get(name, "").split(",")
        if len(parts) <= _MAX_INSTANCES and all(_INSTANCE.match(part) for part in parts):
            return tuple(parts)
    return ()
