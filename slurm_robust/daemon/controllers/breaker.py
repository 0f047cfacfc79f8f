"""The daemon's breaker: counts what went out with our prefix, trips, and is reset by a person through the journal."""

from __future__ import annotations

from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.policy.cluster.breaker import headroom, over_limit
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm.client import Node
from slurm_robust.text import shortened

SAVED_AFTER_S = 60.0
"""slurmctld has surely saved a drain after this long; one that is gone then was ended by a person."""
OPEN_KEY, RESET_KEY, SEEN_KEY = "breaker_open", "breaker_reset_at_s", "drains_seen"


def request_reset(journal: Journal, at_s: float, who: str) -> None:
    """What `srobust breaker reset` writes; a running daemon sees it at its next look, another one when it starts."""
    with journal.transaction():
        journal.put(RESET_KEY, repr(at_s))
        journal.put(OPEN_KEY, "")
        journal.event(at_s, "info", "breaker.reset", f"reset by {who}")


class Breaker:
    """Says whether nodes may be taken out."""

    def __init__(self, core: Core, ledger: Ledger) -> None:
        self.core, self.ledger = core, ledger
        self.lost: dict[str, str] = {}
        """Drains that slurmctld forgot when it was killed, node → reason: to be done again."""

    @property
    def why_open(self) -> str:
        """Why it is open, or an empty text where it is closed."""
        return self.core.journal.get(OPEN_KEY)

    def _partitions(self) -> dict[str, frozenset[str]]:
        partitions: dict[str, set[str]] = {}
        for node in self.core.world.nodes.values():
            for name in node.partitions:
                partitions.setdefault(name, set()).add(node.name)
        return {name: frozenset(members) for name, members in partitions.items()}

    def most(self) -> dict[str, int]:
        """For each node: at how many nodes out by our doing it may not be drained any more by prolog or health check.

        One past the bound is given, since that one trips the breaker and brings a person. A drain makes one more out
        and one less that may follow, so this changes only when a person repairs or resets, or a drain grows old.
        """
        core = self.core
        out = sum(1 for node in core.world.nodes.values() if drained_by_us(node))
        left = headroom(
            self.ledger.drains(),
            self._partitions(),
            core.config.breaker,
            now_s=core.now_s(),
            reset_at_s=float(core.journal.get(RESET_KEY, "0")),
        )
        return {name: out + left.get(name, 0) + 1 for name in core.world.nodes}

    def _limit(self, more: frozenset[str], *, planned: bool) -> str:
        core = self.core
        return over_limit(
            self.ledger.drains(),
            self._partitions(),
            core.config.breaker,
            now_s=core.now_s(),
            reset_at_s=float(core.journal.get(RESET_KEY, "0")),
            more=more,
            planned=planned,
        )

    def allows(self, nodes: frozenset[str]) -> bool:
        """True where these may be taken out; where that would be too much, the breaker opens."""
        if not self.why_open and (why := self._limit(nodes, planned=True)):
            self._open(f"refused to take out {shortened(', '.join(sorted(nodes)), 100)}: {why}")
        return not self.why_open

    def begin_anew(self) -> None:
        """The clock was set back: no drain and no reset lies in the future."""
        core, now_s = self.core, self.core.now_s()
        self.ledger.wait_at_most(now_s)
        if float(core.journal.get(RESET_KEY, "0")) > now_s:
            core.journal.put(RESET_KEY, repr(now_s))
        core.away_at_s = min(core.away_at_s, now_s)

    def look(self) -> None:
        """After each reading of the nodes: notice drains of ours, whoever of us made them, and trip where needed."""
        core, known = self.core, self.ledger.open_drains()
        # What was out before the very first start is history, not damage that is going on.
        at_s = core.now_s() if core.journal.get(SEEN_KEY) else 0.0
        for node in core.world.nodes.values():
            if drained_by_us(node) and node.name not in known:
                self.ledger.drained(node.name, at_s, node.reason)
                core.alert("node.drained", f"{node.name}: {node.reason}")
            elif node.name in known and not node.drained and self._forgotten(node, known[node.name]):
                self.lost[node.name] = known[node.name]
            elif node.name in known and not node.drained:
                self.ledger.drain_ended(node.name, core.now_s())
                core.info("node.back", f"{node.name} is back in service")
        core.journal.put(SEEN_KEY, "1")
        if not self.why_open and (why := self._limit(frozenset(), planned=False)):
            self._open(why)

    def _forgotten(self, node: Node, reason: str) -> bool:
        """True where slurmctld went away right after the drain, and nobody has touched the node since."""
        drains = [d.at_s for d in self.ledger.drains() if d.node == node.name and d.out]
        away_at_s = self.core.away_at_s
        return any(
            at_s <= away_at_s <= at_s + SAVED_AFTER_S and self._untouched_since(node, at_s, reason) for at_s in drains
        )

    @staticmethod
    def _untouched_since(node: Node, drain_at_s: float, reason: str) -> bool:
        """True where the node bears nothing newer than before the drain: Slurm 24.11 keeps reasons that are over."""
        return not node.reason or (node.reason != reason and 0 < node.reason_at_s < drain_at_s)

    def _open(self, why: str) -> None:
        self.core.journal.put(OPEN_KEY, why)
        self.core.alert(
            "breaker.open", f"{why}; nothing is drained or quarantined until a person types: srobust breaker reset"
        )
