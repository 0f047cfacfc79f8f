"""The daemon's breaker: counts what we take out of service, opens, and is reset by a person through the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from slurm_robust.core.text import shortened
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.store.seat_bars import SeatBars
from slurm_robust.policy.cluster.breaker import (
    CLAIM_WINDOW_S,
    ClaimBounds,
    ClaimedSuspects,
    TakenOut,
    headroom,
    kept_for_claim,
    over_limit,
)
from slurm_robust.policy.cluster.node_states import HELD_UP, SILENT
from slurm_robust.slurm.client import Node

T = TypeVar("T")

SAVED_AFTER_S = 60.0
"""slurmctld has certainly saved a drain after this time; a person has ended one that is missing then."""
UNCLEAR_S = 30.0
"""The time after which a node that was set DOWN to end a job, and is neither back nor drained, is reported."""
OPEN_KEY, RESET_KEY, SEEN_KEY = "breaker_open", "breaker_reset_at_s", "drains_seen"


def request_reset(journal: Journal, at_s: float, who: str) -> None:
    """Write a request of `srobust breaker reset`, which a daemon reads at its next poll, or when it starts."""
    with journal.transaction():
        journal.put(RESET_KEY, repr(at_s))
        journal.put(OPEN_KEY, "")
        journal.event(at_s, "info", "breaker.reset", f"reset by {who}")


def request_admit(journal: Journal, user: str, at_s: float, who: str) -> bool:
    """Write a request of `srobust breaker reset --user`: the user's claims count again. Return False if they did."""
    with journal.transaction():
        barred = SeatBars(journal).lift(user, at_s)
        journal.event(at_s, "info", "seat.admitted", f"claims of {user}'s jobs are accepted again, says {who}")
    return barred


class Breaker:
    """Decides whether nodes may be taken out of service."""

    def __init__(self, context: DaemonContext, ledger: NodeLedger) -> None:
        self.context, self.ledger = context, ledger
        self.lost: dict[str, str] = {}
        """Drains that slurmctld forgot when it was killed, reason by node: to be repeated."""
        self._unclear: dict[str, float] = {}
        """Nodes that were set DOWN only to end a job, and when: seconds later they are back, or do not respond."""

    @property
    def why_open(self) -> str:
        """The reason why the breaker is open; empty if it is closed."""
        return self.context.journal.get(OPEN_KEY)

    def shown(self) -> dict[str, Any]:
        """Return for the snapshot: whether the breaker is open, why, and how many nodes are out of service now."""
        out, held = self._taken().nodes_out, {q.node for q in self.ledger.quarantines()}
        return {"open": bool(self.why_open), "why": self.why_open, "out": len(out), "quarantined": len(out & held)}

    def most(self) -> dict[str, int]:
        """Return for each node the number of drained nodes from which prolog and health check may not drain the node.

        The number is one more than the bound, since that last drain opens the breaker and alerts a person. A drain adds
        one to the nodes out of service and takes one from the headroom, so the number only changes when a person
        repairs a node or resets the breaker, or a drain gets old.
        """
        context = self.context
        out = len(context.picture.ours)
        left = self._judged(headroom)
        return {name: out + left.get(name, 0) + 1 for name in context.readings.nodes}

    def _judged(self, judge: Callable[..., T], **asked: Any) -> T:
        """Return the answer of `headroom` or `over_limit` about the nodes that are out so far."""
        context = self.context
        known = (self._taken().out, context.picture.partitions, context.config.breaker)
        return judge(*known, now_s=context.now_s(), reset_at_s=self._reset_at_s, **asked)

    def _taken(self) -> TakenOut:
        return self.ledger.taken_out(self.context.now_s() - max(CLAIM_WINDOW_S, self.context.config.breaker.window_s))

    @property
    def _reset_at_s(self) -> float:
        return float(self.context.journal.get(RESET_KEY, "0"))

    def kept_for_claim(self, suspects: ClaimedSuspects) -> str:
        """Return why the suspects of a claim stay in service; empty if they may be taken out.

        This never opens the breaker.
        """
        context, config = self.context, self.context.config
        if self.why_open:
            return "the breaker is open"
        most = config.quarantine.max_per_user_hour
        bounds = ClaimBounds(context.picture.partitions, config.breaker, most, self._reset_at_s)
        return kept_for_claim(suspects, self._taken(), bounds, context.now_s())

    def room(self, nodes: frozenset[str]) -> bool:
        """Return whether these may be taken out of service; unlike `allows`, it never opens the breaker."""
        return not self.why_open and not self._judged(over_limit, more=nodes)

    def allows(self, nodes: frozenset[str]) -> bool:
        """Return whether these may be taken out of service; where that would be too many, the breaker opens."""
        if not self.why_open and (why := self._judged(over_limit, more=nodes)):
            self._open(f"refused to take out {shortened(', '.join(sorted(nodes)), 100)}: {why}")
        return not self.why_open

    def restart_timers(self) -> None:
        """Limit drains and resets to now, since the clock was set back."""
        context, now_s = self.context, self.context.now_s()
        self.ledger.wait_at_most(now_s)
        if float(context.journal.get(RESET_KEY, "0")) > now_s:
            context.journal.put(RESET_KEY, repr(now_s))
        context.away_at_s = min(context.away_at_s, now_s)
        self._unclear = {name: min(at_s, now_s) for name, at_s in self._unclear.items()}

    def count_drains(self) -> None:
        """Count the drains with our prefix after each reading of the nodes, and open the breaker if needed."""
        context, known = self.context, self.ledger.open_drains()
        # Nodes that were drained before the very first start of the daemon do not count.
        seen, nodes = context.journal.get(SEEN_KEY), context.readings.nodes
        at_s = context.now_s() if seen else 0.0
        for node in context.picture.ours.values():
            if node.name not in known:
                self.ledger.drained(node.name, at_s, node.reason)
                if HELD_UP in node.reason and SILENT not in node.reason:
                    self._unclear[node.name] = context.now_s()
            since_s = self._unclear.get(node.name)
            clear = since_s is not None and (SILENT in node.reason or context.now_s() - since_s >= UNCLEAR_S)
            if clear or (node.name not in known and since_s is None):
                self._unclear.pop(node.name, None)
                cause = context.cause_of(node.name)
                more = f"; {cause}" if cause and cause not in node.reason else ""
                context.alert("node.drained", f"{node.name}: {node.reason}{more}")
        for name, reason in known.items():
            if name not in nodes or nodes[name].drained:
                continue
            if self._forgotten(nodes[name], reason):
                self.lost[name] = reason
            else:
                self._unclear.pop(name, None)
                self.ledger.drain_ended(name, context.now_s())
                context.info("node.back", f"{name} is back in service")
        if not seen:
            context.journal.put(SEEN_KEY, "1")
        if not self.why_open and (why := self._judged(over_limit)):
            self._open(why)

    def _forgotten(self, node: Node, reason: str) -> bool:
        """Return whether slurmctld was away right after the drain, and the node was not changed by others since."""
        away_at_s = self.context.away_at_s
        at_s = [d.at_s for d in self.ledger.drains() if d.node == node.name and d.out]
        at_s = [since_s for since_s in at_s if since_s <= away_at_s <= since_s + SAVED_AFTER_S]
        # No reason that is newer than the drain: Slurm 24.11 keeps old ones.
        old = node.reason != reason and node.reason_at_s > 0
        return any(not node.reason or (old and node.reason_at_s < since_s) for since_s in at_s)

    def _open(self, why: str) -> None:
        self.context.journal.put(OPEN_KEY, why)
        self.context.alert(
            "breaker.open",
            f"{why}; nothing is drained or quarantined until a person types: srobust breaker reset. Jobs still get "
            "seats, without their suspects",
        )
