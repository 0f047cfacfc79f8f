"""One poll of the current attempt: new output, exits, vanished ranks, silent agents. It decides nothing."""

from __future__ import annotations

from slurm_robust.localize.ranks import name
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState

SILENT_AGENT_S = 7.0
"""Three heartbeats: after this long without one, an agent counts as silent."""
_AGENTS_S = 1.0


class Observer:
    """Brings the state of an attempt up to date, and restarts agents that fell silent."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._agents_checked_at = 0.0

    async def poll(self, attempt: AttemptState) -> None:
        """Read what is new."""
        session = self._session
        attempt.read_outputs()
        attempt.confirm_exits(ended=session.srun_exit_code is not None)
        attempt.note_vanished()
        if restarted := attempt.restarted_inside():
            text = f"{name(restarted)} started anew inside the step, by their parent (torchrun?): the attempt goes on"
            session.folder.log_event("note", text, ranks=restarted)
        now_s = session.clock.monotonic_s()
        if now_s - self._agents_checked_at >= _AGENTS_S:
            self._agents_checked_at = now_s
            nodes, heard = session.allocation.nodes, attempt.fleet.heard_at_s
            session.allocation.silent_nodes = await session.agents.look_after(nodes, heard, SILENT_AGENT_S)
