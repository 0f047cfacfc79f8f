"""A training step that somebody else's srun runs: which one it is, and whether that srun still lives."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field

from slurm_robust.supervise.agent.ranks import STEP_MARK


@dataclass
class Attached:
    """One step of a job, as `srobust attach --step` is given it.

    Attributes:
        step: Its number.
        launcher: Pid of its srun, on this machine; 0 where that is not known.
    """

    step: str
    launcher: int = 0
    _pidfd: int = field(default=-1, init=False)
    _gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.launcher:
            return
        try:
            self._pidfd = os.pidfd_open(self.launcher)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            self.launcher = 0  # an old kernel: the step's end is then seen as the job's

    @property
    def attempt(self) -> str:
        """What agents take for the name of the attempt: ranks of this step only."""
        return f"{STEP_MARK}{self.step}"

    @property
    def over(self) -> bool:
        """Whether its srun has ended."""
        if self._pidfd >= 0 and not self._gone:
            self._gone = bool(select.select([self._pidfd], [], [], 0)[0])
        return self._gone
