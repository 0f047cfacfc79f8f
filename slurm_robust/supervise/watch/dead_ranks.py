"""Ranks that ended badly while others run: are they waited for? Independent tasks in one step go on without them."""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.localize.ranks import name
from slurm_robust.supervise.incident.investigation import Investigation
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.fault_watch import nodes_in_use

CAPTURES_AFTER_S = (0.0, 2.2, 4.2, 10.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0)
"""From one capture after a death to the next; then silence decides. The first two show who waits in a collective."""


class DeadRanks:
    """The deaths of one attempt, as long as others run. `investigate` makes an investigation without an incident."""

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
        self.investigation: Investigation | None = None
        """The captures since the last death; None before there is one, or where nobody was captured."""

    async def decide_now(self) -> bool:
        """Whether the deaths have to be handled now. Takes the capture that is due, if any.

        They have to where nothing else runs, where the others wait for the dead, and where the node of a dead rank is
        silent or has reported a fault.
        """
        attempt, session = self._attempt, self._session
        if not attempt.exits:
            return False
        nodes = session.allocation.nodes
        faulty = session.node_faults.faulty(nodes, nodes_in_use(session, attempt)).all
        struck = {e.node for e in attempt.exits.values()} & {*session.allocation.silent_nodes, *faulty}
        if not attempt.fleet.runs or struck:
            return True
        new = set(attempt.exits) - self._known
        if new:
            self._known |= new
            self.investigation, self._next_at_s = self._investigate(session, attempt), 0.0
            text = f"{name(new)} ended badly, others run: nothing is done unless they wait for it, or stop"
            session.folder.log_event("note", text, ranks=sorted(new))
        found, now_s = self.investigation, session.clock.now_s()
        if found is None or found.rounds >= len(CAPTURES_AFTER_S) or now_s < self._next_at_s:
            return False
        await found.capture(keep=False)
        rest = CAPTURES_AFTER_S[found.rounds :]
        self._next_at_s = session.clock.now_s() + (rest[0] if rest else 0.0)
        return found.dead_are_waited_for()
