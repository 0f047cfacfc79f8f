"""Brings the state of an attempt up to date, once in each poll of the supervisor."""

from __future__ import annotations

from slurm_robust.localize import ranks as rank_names
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import SILENT_AGENT_S, AttemptState
from slurm_robust.supervise.watch.stopped_ranks import StoppedRanks, others_rest

_AGENTS_S = 1.0


class Observer:
    """Brings the state of an attempt up to date, and restarts agents that fell silent.

    Attributes:
        stopped_ranks: Continues ranks that a signal has stopped. The observer does not decide anything else.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._agents_checked_at = 0.0
        self._stopped_s = session.clock.stopped_s
        self.stopped_ranks = StoppedRanks(session)

    async def poll(self, attempt: AttemptState) -> None:
        """Read everything that is new."""
        session = self._session
        if (stopped_s := session.clock.stopped_s - self._stopped_s) > 0:
            self._stopped_s += stopped_s
            attempt.leave_out_stop(stopped_s)
            text = (
                f"the supervisor was stopped for {stopped_s:.0f} s, as in a suspended job: it is not taken for silence"
            )
            session.folder.log_event("note", text)
        attempt.read_outputs()
        attempt.confirm_exits(ended=session.srun_exit_code is not None)
        attempt.note_vanished(ended=session.srun_exit_code is not None or session.attached_srun_gone)
        waited_for = attempt.reports or others_rest(*attempt.seen_resting, session.clock.now_s(), session.settings)
        if self.stopped_ranks.poll(attempt.fleet, attempt.last_sign_s, waited_for=waited_for):
            attempt.leave_out_pause()
        attempt.note_pauses()
        session.node_faults.pass_on(attempt.signals, session.folder)
        session.node_faults.forget(session.clock.now_s())
        if restarted := attempt.restarted_inside():
            who = rank_names.name(restarted)
            text = f"{who} started anew inside the step, by their parent (torchrun?): the attempt goes on"
            session.folder.log_event("note", text, ranks=restarted)
        now_s = session.clock.monotonic_s()
        if now_s - self._agents_checked_at >= _AGENTS_S:
            self._agents_checked_at = now_s
            nodes, heard = session.allocation.nodes, attempt.fleet.heard_at_s
            session.allocation.silent_nodes = await session.agents.look_after(nodes, heard, SILENT_AGENT_S)
