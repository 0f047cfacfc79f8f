"""Holds what the supervisor knows of a warm step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_robust.supervise.launch.moved_paths import MovedPaths


@dataclass
class WarmStep:
    """A warm step that was started.

    Attributes:
        name: The attempt that it becomes.
        argv: The command line of its srun: only an attempt with an equal command line can be this step.
        env: The variables with which its processes were started, beside the launcher's environment.
        tasks: How many processes it is to have.
        ready: Whether all its processes wait.
        patience_s: How long its processes have to show that they live, while the last step ends, and again to start the
            program. Both times only pass if a process freezes in between.
        modules, seconds: How many modules each process has imported, and how long the slowest one took to start and
            import.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    tasks: int
    started_s: float
    ready: bool = False
    modules: int = 0
    seconds: float = 0.0
    patience_s: float = 1.0
    code: MovedPaths | None = None
    """The version of the code, if the ranks run from a snapshot."""
    order: str = ""
    """The packed order to prepare."""
    prepare_at_s: float = 0.0
    look_at_s: float = 0.0
    silent: int = 0
    """How many questions in a row not all of its processes have answered."""
