"""Tells whether running ranks wait for ranks that ended badly: independent tasks in one step go on without them."""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.localize.ranks import name
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.launch.srun_command import death_patience_s
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use

CAPTURES_AFTER_S = (0.0, 2.2, 4.2, 10.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0)
"""Seconds from one capture after a death to the next. The first two show which ranks wait in a collective."""
_LATER_S = 300.0
"""Seconds from one capture to the next after those."""
_SOONEST_S = 1.0


def next_capture_in_s(rounds: int, due_in_s: float) -> float:
    """Return the time to the next capture: sooner if the ended ranks count as waited for (`due_in_s`) before it."""
    pause_s = (*CAPTURES_AFTER_S, _LATER_S)[min(rounds, len(CAPTURES_AFTER_S))]
    return min(pause_s, max(due_in_s, _SOONEST_S)) if due_in_s else pause_s


class DeadRanks:
    """The deaths of one attempt while other ranks run. `investigate` makes an investigation without an incident."""

    def __init__(
        self,
        session: Session,
        attempt: AttemptState,
        investigate: Callable[[Session, AttemptState], Investigation] = Investigation,
    ) -> None:
        self._session = session
        self._attempt = attempt
        self._investigate = investigate
        self._known: set[int] = set()
        self._next_at_s = 0.0
        self._patience_s: float | None = None
        """How long plain srun would wait; None before a death."""
        self.investigation: Investigation | None = None
        """The captures since the last death; None before a capture."""
        self.waited_for = False
        """Whether the deaths have to be handled because the last captures show that other ranks wait."""

    async def decide_now(self) -> bool:
        """Return whether the deaths have to be handled now. Take the capture that is due, if any.

        They have to be if no other rank runs and no other end will be reported, if the other ranks wait for the dead
        ones, if plain srun would end the step now, or if the node of a dead rank is silent or has reported a fault.
        """
        attempt, session = self._attempt, self._session
        self.waited_for = False
        if not attempt.exits:
            return False
        nodes = session.allocation.nodes
        faulty = session.node_faults.faulty(nodes, nodes_in_use(session, attempt)).all
        struck = {e.node for e in attempt.exits.values()} & {*session.allocation.silent_nodes, *faulty}
        if attempt.awaits_reports and not struck:
            return False
        if not attempt.fleet.runs or struck or await self._is_the_end():
            return True
        new = set(attempt.exits) - self._known
        if new:
            self._known |= new
            self.investigation, self._next_at_s = self._investigate(session, attempt), 0.0
            text = f"{name(new)} ended badly, others run: nothing is done unless they wait for it, or stop"
            session.folder.log_event("note", text, ranks=sorted(new))
        found, now_s = self.investigation, session.clock.now_s()
        if found is None or now_s < self._next_at_s:
            return False
        await found.capture(keep=False)
        due_in_s = found.ended_are_waited_for_in_s()
        self._next_at_s = session.clock.now_s() + next_capture_in_s(found.rounds, due_in_s)
        self.waited_for = not due_in_s
        return self.waited_for

    async def _is_the_end(self) -> bool:
        """Return whether plain srun would have ended the step by now, because of the first death."""
        session = self._session
        if session.command is None:
            return False
        if self._patience_s is None:
            settings = await session.job.slurm_settings()
            self._patience_s = death_patience_s(session.command, session.environment, settings)
        first_at_s = min(e.at_s for e in self._attempt.exits.values())
        return session.clock.now_s() - first_at_s >= self._patience_s
