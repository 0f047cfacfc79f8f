"""Decides when a job leaves a node that reported a fault: now, after the next verified checkpoint, or at a limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slurm_robust.core.model import Signal
from slurm_robust.core.text import joined, shortened
from slurm_robust.policy.job.node_faults import fault_text
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.watch.attempt_state import AttemptState
from slurm_robust.supervise.watch.newest_checkpoint import NewestCheckpoint


@dataclass(frozen=True)
class FaultsDue:
    """Nodes to leave now.

    Attributes:
        nodes: Node → the reason.
        signals: What the nodes reported.
        urgent: The nodes are left at once, though the step may be at work; otherwise it has just saved, or the limit is
            over.
        storm: So many nodes reported at once that no node is left: only to be announced.
        stays: The nodes are not left, since the job was moved often enough: only to be announced.
        when: Why the nodes are left now, for the story; empty if the reasons already say it.
    """

    nodes: Mapping[str, str]
    signals: tuple[Signal, ...]
    urgent: bool = True
    storm: bool = False
    stays: bool = False
    when: str = ""

    @property
    def only_announced(self) -> bool:
        """Whether no node is left."""
        return self.storm or self.stays

    @property
    def text(self) -> str:
        """A sentence that says what is due."""
        if not self.storm:
            return joined([*(self.nodes[node] for node in sorted(self.nodes)), *([self.when] if self.when else [])])
        names, first = shortened(", ".join(sorted(self.nodes)), 60), self.signals[0]
        many = f"{len(self.nodes)} nodes report faults at once ({names}), more than half: a cause that they share"
        return f"{many}, so none is left; the first: {fault_text(first)}"


class FaultWatch:
    """Watches the faults of one attempt's nodes."""

    def __init__(self, session: Session, attempt: AttemptState) -> None:
        self._session = session
        self._attempt = attempt
        self._waits_since_s: float | None = None
        self._checkpoint = NewestCheckpoint(session)
        self._unsaved_reported = False

    async def poll(self) -> FaultsDue | None:
        """Return what is to be done now about faults; None if nothing is."""
        due = urgent_faults(self._session, self._attempt)
        return due or self._staying() or await self._after_checkpoint()

    def _staying(self) -> FaultsDue | None:
        """Return nodes that are no longer left for their mild faults; only to be announced."""
        faults, used = self._session.node_faults, nodes_in_use(self._session, self._attempt)
        stays = faults.staying(used, used, self._session.clock.now_s())
        return FaultsDue(stays, faults.of(stays), urgent=False, stays=True) if stays else None

    async def _after_checkpoint(self) -> FaultsDue | None:
        """Return nodes that are left after a checkpoint, once the checkpoint is there or the wait is over."""
        session, faults = self._session, self._session.node_faults
        used = nodes_in_use(session, self._attempt)
        later = {n: why for n, why in faults.faulty(used, used).leave_later.items() if faults.unhandled(n)}
        if not later:
            self._waits_since_s = None
            return None
        now_s = session.clock.monotonic_s()
        if self._waits_since_s is None:
            self._waits_since_s, self._checkpoint = now_s, NewestCheckpoint(session)
            self._unsaved_reported = False
            self._report_wait(later)
        if not session.checkpoint_dir:
            return None
        when = await self._reached(now_s, later)
        return FaultsDue(later, faults.of(later), urgent=False, when=when) if when else None

    async def _reached(self, now_s: float, later: Collection[str]) -> str:
        """Return why the wait is over; empty while it is not."""
        limit_s = self._session.settings.fault_wait_s
        assert self._waits_since_s is not None
        step = await self._checkpoint.newer()
        if step >= 0:
            return f"the checkpoint of step {step} is verified"
        if now_s - self._waits_since_s < limit_s:
            return ""
        if self._checkpoint.had_one:
            return f"no newer checkpoint is verified after {limit_s:g} s (supervise.fault_wait_s)"
        self._report_unsaved(later)
        return ""

    def _report_wait(self, later: Mapping[str, str]) -> None:
        session, names = self._session, ", ".join(sorted(later))
        leaves = "leaves" if session.acting else "would leave"
        limit = f"in {session.settings.fault_wait_s:g} s at most"
        wait = f"the job {leaves} {names} after its next verified checkpoint, {limit}"
        if not session.checkpoint_dir:
            wait = f"{names} stays in use: no checkpoint folder is known, and leaving the node could lose all progress"
        session.folder.log_event("note", wait)

    def _report_unsaved(self, later: Collection[str]) -> None:
        """Say once that the limit is over, and why the job is still there."""
        if self._unsaved_reported:
            return
        self._unsaved_reported = True
        session, names = self._session, ", ".join(sorted(later))
        why = (
            f"no verified checkpoint is known in {session.checkpoint_dir}, and leaving the node could lose all progress"
        )
        session.folder.log_event("note", f"{names} stays in use until one is verified: {why}")


def nodes_in_use(session: Session, attempt: AttemptState) -> frozenset[str]:
    """Return the nodes that train; all usable nodes while ranks may still be found on others."""
    usable, fleet = session.allocation.nodes, attempt.fleet
    training = set(fleet.rank_nodes.values())
    found = fleet.complete or 0 < fleet.step_nodes <= len(training)
    return frozenset(training.intersection(usable) if found else ()) or frozenset(usable)


def urgent_faults(session: Session, attempt: AttemptState) -> FaultsDue | None:
    """Return nodes that are left at once, or a storm to announce; each once."""
    faults, used = session.node_faults, nodes_in_use(session, attempt)
    found = faults.faulty(used, used)
    now = {node: why for node, why in found.leave_now.items() if faults.unhandled(node)}
    if now:
        return FaultsDue(now, faults.of(now))
    if not faults.is_news(found.storm):
        return None
    return FaultsDue(dict.fromkeys(sorted({s.node for s in found.storm}), ""), found.storm, storm=True)
