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
        argv: Its srun: only an attempt that would be started by the very same one can be this step.
        env: What its processes were started with, beside the launcher's environment.
        tasks: How many processes it is to have.
        ready: Whether all of them wait.
        patience_s: How long all its processes have to show that they live, which is asked while the last step ends; and
            again to start the program. Both pass only where one freezes in between.
        modules, seconds: What each has imported, and how long the slowest took for its start and that.
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
    """The version of the code, where the ranks run from a snapshot."""
    order: str = ""
    """The packed order to prepare."""
    prepare_at_s: float = 0.0
    look_at_s: float = 0.0
    silent: int = 0
    """Questions in a row that not all of its processes have answered."""
