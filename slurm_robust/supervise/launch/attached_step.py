"""A training step that somebody else's srun runs: which one it is, whether that srun lives, and what it waits for.

Where the SPANK plugin acts, an srun whose step has failed tells us its exit code and stays until we let it go: the
batch script's next line runs only then, and a job whose script has ended cannot be requeued any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust import claim
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.agent.ranks import STEP_MARK

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

HOLD_VARIABLE = "SROBUST_HOLD"
"""Number of the descriptor on whose other end srun tells its exit code and waits; set by the SPANK plugin."""
_STAY_EVERY_S = 10.0
"""srun waits a minute from one word of ours to the next (PATIENCE_MS in spank/src/hold.c)."""
_ASK_SLURM_S = 1.0
_GIVE_UP_AFTER_S = 3600.0
"""Without an answer of Slurm, an agent or a rank for so long: the cluster is gone, or this machine no part of it."""


@dataclass
class Attached:
    """One step of a job, as `srobust attach --step` is given it.

    Attributes:
        step: Its number.
        launcher: Pid of its srun, on this machine; 0 where that is not known.
        hold: Connection to an srun that waits for us when its step has failed; None where it does not.
    """

    step: str
    launcher: int = 0
    hold: socket.socket | None = None
    words: tuple[str, ...] = field(default=(), init=False)
    """What was typed behind that srun, empty where it cannot be seen."""
    _pidfd: int = field(default=-1, init=False)
    _gone: bool = field(default=False, init=False)
    _said: str = field(default="", init=False)
    _staying: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.launcher:
            return
        with contextlib.suppress(OSError):
            typed = Path(f"/proc/{self.launcher}/cmdline").read_bytes().decode("utf-8", "replace")
            self.words = tuple(typed.split("\0")[1:])
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

    @property
    def ended(self) -> int | None:
        """The exit code of an srun that has ended its step and waits for us; None where it does not, or not yet."""
        if self.hold is not None and not self._said.endswith("\n"):
            with contextlib.suppress(OSError):  # nothing is said so far, or srun is gone: `over` sees that
                self._said += self.hold.recv(64).decode("ascii", "replace")
        told = re.fullmatch(r"ended (\d{1,3})\n", self._said)
        return int(told[1]) if told is not None else None

    def stay(self) -> None:
        """Keep srun waiting from now on, however long that takes: a requeue is on its way."""
        if self.hold is not None and self._staying is None:
            self._staying = asyncio.get_running_loop().create_task(self._keep_waiting(self.hold))

    async def _keep_waiting(self, hold: socket.socket) -> None:
        with contextlib.suppress(OSError):  # srun is gone
            while True:
                hold.send(b".")
                await asyncio.sleep(_STAY_EVERY_S)

    def let_go(self) -> None:
        """Have srun end, with its own exit code. Our own end does the same."""
        if self._staying is not None:
            self._staying.cancel()
        if self.hold is not None:
            self.hold.close()
            self.hold = None


def connection(env: MutableMapping[str, str]) -> socket.socket | None:
    """The connection to srun that the plugin has left to us; None where there is none.

    It is ours alone: no child of ours may keep srun waiting.
    """
    number = env.pop(HOLD_VARIABLE, "")
    if not number.isdecimal():
        return None
    try:
        hold = socket.socket(fileno=int(number))
        hold.setblocking(False)
        hold.set_inheritable(False)
    except OSError:
        return None
    return hold


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
        if s.ended is not None:
            return False  # it waits for what we decide
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
