"""Finds the end of a training that somebody else started, for a supervisor that only watches it."""

from __future__ import annotations

import asyncio
import contextlib

from slurm_robust.localize.ranks import name
from slurm_robust.marks import claim
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

_ASK_SLURM_S = 1.0
_GIVE_UP_AFTER_S = 3600.0
"""After so long without an answer from Slurm or an agent, the cluster is gone, or this machine has left it."""


class AttachedEnd:
    """Finds the end of a training that is not ours."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_slurm_at = 0.0
        self._answered_at = session.clock.monotonic_s()

    async def reached(self, attempt: AttemptState) -> bool:
        """Return whether the step, or the job, has ended. Slurm is only asked if ranks or agents are gone."""
        s, fleet = self._session, attempt.fleet
        if s.attached_srun_gone:
            return True
        if s.srun_exit_code is not None:
            return False  # it waits for our decision
        now_s = s.clock.monotonic_s()
        as_usual = s.agents.running and (fleet.alive or not fleet.ranks)
        if as_usual:
            self._answered_at = now_s
        if as_usual or now_s - self._asked_slurm_at < _ASK_SLURM_S:
            return False
        self._asked_slurm_at = now_s
        with contextlib.suppress(SlurmError):
            client = s.job.client
            job = await asyncio.to_thread(client.job, s.job.ref)
            self._answered_at = s.clock.monotonic_s()
            return job is None or job.state != "RUNNING"
        if s.clock.monotonic_s() - self._answered_at < _GIVE_UP_AFTER_S:
            return False
        s.folder.log_event("note", "neither Slurm nor an agent has answered for an hour: this watch ends")
        return True

    async def report(self, attempt: AttemptState) -> None:
        """Report the end of an attached step: its exit code is not known here, and another step may follow."""
        s = self._session
        if not s.attached_srun_gone:
            return
        step = attempt.step
        ended = f"srun has ended{f' at step {step}' if step >= 0 else ''}"
        if known := [end for end in attempt.exits.values() if end.rank >= 0]:
            first = min(known, key=lambda end: end.at_s)
            how = f"by signal {first.signal}" if first.signal else f"with exit code {first.exit_code}"
            ended += f", after {name([first.rank])} on {first.node} had ended {how}; no attempt follows"
        s.folder.log_event("finished", ended, step=step)
        await s.agents.stop()
        if not s.job.requeue_requested:
            await s.job.write_claim(state=claim.STATE_DONE, step=step)
