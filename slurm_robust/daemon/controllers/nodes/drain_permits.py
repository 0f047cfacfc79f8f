"""Keeps the drain permits in the nodes' comments, where prolog, epilog and health check read them.

Permits are renewed only while the breaker is closed and plans are carried out; without a daemon they expire.
"""

from __future__ import annotations

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.marks.drain_permit import parse, render_permit
from slurm_robust.marks.remedy import Remedy
from slurm_robust.policy.cluster.node_picture import NodePicture
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import fold

LASTS_S = 1200.0
RENEW_BELOW_S = 660.0
"""The rest of a permit below which it is renewed, so that a call in about nine minutes renews all permits."""
RETRY_S = 30.0
COMPARE_AGAIN_S = 30.0
"""The time between two comparisons while no node changes: permits run out, and drains get old."""
KEY = "drain_permits"
"""The key, in the journal, of actions for permits: only the last call is kept."""


class DrainPermits:
    """Renews the markers before they expire, and withdraws them when the breaker opens."""

    def __init__(self, context: DaemonContext, actor: Actor, breaker: Breaker, repairs: RepairLedger) -> None:
        self.context, self.actor, self.breaker, self.repairs = context, actor, breaker, repairs
        self._retry_at_s = self._compared_at_s = 0.0
        self._compared: tuple[NodePicture, str, frozenset[str]] | None = None

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._retry_at_s, self._compared = 0.0, None

    async def tick(self) -> None:
        """Renew or withdraw permits if needed, after each reading of the nodes."""
        context, now_s = self.context, self.context.now_s()
        if not context.acting or not context.readings.nodes_at_s or now_s < self._retry_at_s:
            return
        if self._still_right(now_s):
            return
        try:
            changed = False
            for comment, names in self._changes(now_s).items():
                verb = "withdrawn from" if self.breaker.why_open else "renewed on"
                reason = f"{verb} {len(names)} node{'s' if len(names) > 1 else ''}"
                action = Action(ActionKind.DRAIN_PERMIT, fold(names), reason, {"comment": comment})
                await self.actor.perform(KEY, action)
                changed = True
        except SlurmError:  # the actor has reported it
            self._retry_at_s, self._compared = now_s + RETRY_S, None
            return
        if changed:
            self._compared = None
            await context.read_nodes()
            if not self._changes(now_s):
                context.journal.note_result(KEY, action, context.now_s())

    def _still_right(self, now_s: float) -> bool:
        """Return whether nothing that a permit depends on has changed since all were compared, a moment ago."""
        now = (self.context.picture, self.breaker.why_open, self._withheld())
        if self._compared is not None and now_s - self._compared_at_s < COMPARE_AGAIN_S:
            before = self._compared
            if now[0] is before[0] and now[1:] == before[1:]:
                return True
        self._compared, self._compared_at_s = now, now_s
        return False

    def _withheld(self) -> frozenset[str]:
        """Nodes whose GPUs are about to be reset: their scripts would drain them for the fault that the reset ends."""
        return frozenset(t.node for t in self.repairs.open() if t.remedy is Remedy.GPU_RESET and not t.outcome)

    def _changes(self, now_s: float) -> dict[str, list[str]]:
        """Return the nodes whose comment must change, by the new comment: equal comments go into one call."""
        nodes = list(self.context.readings.nodes.values())
        permitted = not self.breaker.why_open
        most = self.breaker.most() if permitted else {}
        # Most nodes have the same comment.
        parsed = {comment: parse(comment, now_s) for comment in {n.comment for n in nodes}}
        permits = {n.name: parsed[n.comment] for n in nodes}
        withheld = self._withheld()
        lasting = (
            p is None if n in withheld else p and p.most == most[n] and p.until_s - now_s > RENEW_BELOW_S
            for n, p in permits.items()
        )
        if permitted and all(lasting):
            return {}
        changes: dict[str, list[str]] = {}
        for node in nodes:
            until_s = now_s + LASTS_S if permitted and node.name not in withheld else None
            wanted = render_permit(until_s, node.comment, most.get(node.name))
            if wanted != node.comment:
                changes.setdefault(wanted, []).append(node.name)
        return changes
