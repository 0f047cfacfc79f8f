"""Tells people of one fault if several nodes of one leaf switch lose the network; these nodes are still drained.

The reason of each drain names the switch, and people get one message. No such drain counts as a failure of its node.
"""

from __future__ import annotations

import asyncio

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.core.text import shortened
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.marks.remedy import remedy_of
from slurm_robust.policy.cluster.leaf_faults import MARK, TOGETHER_S, LeafFault, lost_network, together
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm import topology

SETTLES_S = 3.0
"""An alert waits until no further node has come for so long."""


class LeafFaults:
    """Compares each reading of the nodes with the switches of topology.conf, if there is one."""

    def __init__(self, context: DaemonContext, actor: Actor, ledger: NodeLedger) -> None:
        self.context, self.actor, self.ledger = context, actor, ledger
        self._since_s: dict[str, float] | None = None
        """Since when each node has lost the network; None before the first reading, when these times are unknown."""
        self._faults: list[LeafFault] = []
        self._told: dict[str, frozenset[str]] = {}
        self._explained: set[str] = set()
        context.cause_of = self.cause_of

    def restart_timers(self) -> None:
        """Limit the times of losses to now, since the clock was set back."""
        now_s = self.context.now_s()
        self._since_s = {name: min(at_s, now_s) for name, at_s in (self._since_s or {}).items()}

    def cause_of(self, node: str) -> str:
        """Return which switch is to be looked at before this node; empty for none."""
        return next((fault.cause for fault in self._faults if node in fault.nodes), "")

    async def tick(self) -> None:
        """Find nodes of one switch that failed together, after each reading of the nodes, before drains are counted."""
        context, picture, now_s = self.context, self.context.picture, self.context.now_s()
        nodes = {**picture.silent, **picture.marked, **picture.ours}
        known = self._since_s
        lost = [name for name, node in nodes.items() if lost_network(node)]
        self._since_s = {name: 0.0 if known is None else known.get(name, now_s) for name in lost}
        recent = [name for name, at_s in self._since_s.items() if at_s > now_s - TOGETHER_S]
        if self._faults or len(recent) > 1:
            leaves = await asyncio.to_thread(topology.read_named, context.config.slurm.conf)
            self._faults = together(self._since_s, leaves, self._faults)
            self._explained &= {name for fault in self._faults for name in fault.nodes}
            self._told = {f.switch: self._told.get(f.switch, frozenset()) for f in self._faults}
            self._tell(now_s)
            await self._explain()

    def _tell(self, now_s: float) -> None:
        assert self._since_s is not None
        new = [f for f in self._faults if not self._told[f.switch] >= set(f.nodes)]
        if not new or max(self._since_s[n] for f in new for n in f.nodes) > now_s - SETTLES_S:
            return
        self._told |= {f.switch: frozenset(f.nodes) for f in new}
        self.context.alert("nodes.leaf_switch", shortened("; ".join(f.sentence for f in new), 900))

    async def _explain(self) -> None:
        """Say it also in the reasons of drains that came before the others, or that nodes made themselves."""
        for name in (n for f in self._faults for n in f.nodes):
            node = self.context.readings.nodes[name]
            told = name in self._explained or MARK in node.reason
            # With a remedy, a repair is under way.
            if self.context.acting and drained_by_us(node) and not told and remedy_of(node.reason) is None:
                self._explained.add(name)
                with self.context.guarded("leaf.waits", name, key=name):
                    await self.actor.perform(f"leaf.{name}", Action(ActionKind.DRAIN, name, node.reason))
                    await self.context.read_nodes()
                    self.ledger.drain_explained(name, self.context.readings.nodes[name].reason)
