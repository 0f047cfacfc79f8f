"""Tells people which nodes cannot check their GPUs, or have a full mount: each says so itself, by a marker in `Extra`.

And which nodes Slurm keeps DOWN because they have booted.

Nothing is done about it. The health checks of a large site come one after the other, so nodes are gathered for a while
before an alert names them; which were told of stands in the journal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from slurm_robust.core.text import shortened
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.marks import blind_marker
from slurm_robust.marks.blind_marker import BLIND, FULL
from slurm_robust.policy.cluster.node_states import REBOOTED, rebooted
from slurm_robust.slurm.values import fold

BOOTED = "booted"
_LINE = {BLIND: "nodes.blind", FULL: "nodes.full", BOOTED: "nodes.rebooted"}
_ONE = {BLIND: "cannot check its GPUs", FULL: "has a full file system", BOOTED: "is DOWN after a reboot"}
_MANY = {BLIND: "cannot check their GPUs", FULL: "have a full file system", BOOTED: "are DOWN after a reboot"}
GATHER_S, GATHER_MAX_S = 120.0, 900.0
"""An alert waits until no further node has come for so long, but at most this long after the first of them."""


@dataclass(frozen=True)
class BlindGroup:
    """Nodes that say the same for the same reason; `nodes` is folded."""

    reason: str
    nodes: str
    count: int

    def sentence(self, kind: str) -> str:
        """Return what people read."""
        who = f"1 node {_ONE[kind]}" if self.count == 1 else f"{self.count} nodes {_MANY[kind]}"
        return f"{who}: {shortened(self.nodes, 200)}: {self.reason}"


class BlindNodes:
    """Compares each reading of the nodes with what people were told, for one kind of them."""

    def __init__(self, context: DaemonContext, kind: str = BLIND) -> None:
        self.context, self.kind = context, kind
        self._told_key = f"{kind}_nodes_told"
        self.notes: dict[str, str] = {}
        """Node → its note, for the node's row."""
        self.groups: tuple[BlindGroup, ...] = ()
        """The largest first."""
        self._untold: frozenset[str] = frozenset()
        self._first_s = self._grown_s = 0.0

    def restart_timers(self) -> None:
        """Gather anew, since the clock was set back."""
        self._untold = frozenset()

    def tick(self) -> None:
        """Compare the nodes that cannot check themselves with those told before, after each reading of the nodes."""
        context, now_s = self.context, self.context.now_s()
        blind = self._blind(now_s)
        self.groups = _groups(blind)
        self.notes = {name: f"{_ONE[self.kind]}: {reason}" for name, reason in blind.items()}
        told = frozenset(json.loads(context.journal.get(self._told_key, "[]")))
        kept, untold = told & blind.keys(), blind.keys() - told
        if not self._untold:
            self._first_s = now_s
        if untold - self._untold:
            self._grown_s = now_s
        self._untold = frozenset(untold)
        waited = now_s - self._grown_s >= GATHER_S or now_s - self._first_s >= GATHER_MAX_S
        if untold and waited:
            for group in _groups({name: blind[name] for name in untold}):
                context.alert(_LINE[self.kind], group.sentence(self.kind))
            kept, self._untold = frozenset(blind), frozenset()
        if kept != told:
            context.journal.put(self._told_key, json.dumps(sorted(kept)))

    def _blind(self, now_s: float) -> dict[str, str]:
        """Return the reason of each node whose marker holds."""
        found, picture = dict[str, str](), self.context.picture
        if self.kind == BOOTED:
            down = picture.silent.items()
            return {name: REBOOTED for name, n in down if rebooted((n.state, *n.flags), n.reason)}
        for name, node in (picture.blind if self.kind == BLIND else picture.full).items():
            marker = blind_marker.parse(node.extra, self.kind)
            if marker is not None and blind_marker.believed(marker, now_s, node.boot_at_s):
                found[name] = marker.reason
        return found


def _groups(blind: dict[str, str]) -> tuple[BlindGroup, ...]:
    named: dict[str, list[str]] = {}
    for name, reason in sorted(blind.items()):
        named.setdefault(reason, []).append(name)
    groups = [BlindGroup(reason, fold(names), len(names)) for reason, names in named.items()]
    return tuple(sorted(groups, key=lambda group: -group.count))
