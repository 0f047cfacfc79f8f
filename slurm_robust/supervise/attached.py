"""A training step that somebody else's srun runs: which one it is, and whether that srun still lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_robust import claim
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.agent.ranks import STEP_MARK

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_ASK_SLURM_S = 1.0
_GIVE_UP_AFTER_S = 3600.0
"""Without an answer of Slurm, an agent or a rank for so long: the cluster is gone, or this machine no part of it."""


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


class End:
    """The end of a training that is not ours, for the supervisor that watches it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._asked_slurm_at = 0.0
        self._heard_at = time.monotonic()

    async def come(self) -> bool:
        """Has the step, or the job, ended? Slurm is asked only when ranks or agents are gone, and not often."""
        s = self._s
        if s.attached is not None and s.attached.over:
            return True
        fleet = s.present.fleet
        as_usual = s.agents.running and (fleet.alive or not fleet.ranks)
        if as_usual:
            self._heard_at = time.monotonic()
        if as_usual or time.monotonic() - self._asked_slurm_at < _ASK_SLURM_S:
            return False
        self._asked_slurm_at = time.monotonic()
        with contextlib.suppress(SlurmError):
            job = await asyncio.to_thread(s.context.client.job, s.context.ref)
            self._heard_at = time.monotonic()
            return job is None or job.state != "RUNNING"
        if time.monotonic() - self._heard_at < _GIVE_UP_AFTER_S:
            return False
        s.folder.tell("note", "neither Slurm nor an agent has answered for an hour: this watch ends")
        return True

    async def tell(self) -> None:
        """Of one step: its srun has ended, how is not known here; what comes next in the script is another step."""
        s = self._s
        if s.attached is None or not s.attached.over:
            return
        step = s.present.step
        s.folder.tell("finished", f"srun has ended{f' at step {step}' if step >= 0 else ''}", step=step)
        await s.agents.stop()
        if not s.context.asked:
            await s.context.say(state=claim.STATE_DONE, step=step)
