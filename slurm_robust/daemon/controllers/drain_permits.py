"""Keeps the leave to drain in the nodes' comments, where prolog, epilog and health check look for it.

It is renewed only while the breaker is closed and plans are carried out; a dead daemon lets it lapse by itself.
"""

from __future__ import annotations

from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.core import Core
from slurm_robust.drain_permit import parse, render_permit
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.values import fold

LASTS_S = 1200.0
RENEW_BELOW_S = 660.0
"""So one call in about nine minutes keeps the whole site's leave."""
RETRY_S = 30.0


class LeaveKeeper:
    """Renews the markers before they lapse, and takes them away when the breaker opens."""

    def __init__(self, core: Core, breaker: Breaker) -> None:
        self.core, self.breaker = core, breaker
        self._retry_at_s = 0.0

    def begin_anew(self) -> None:
        """Start every wait again: the clock was set back."""
        self._retry_at_s = 0.0

    async def tick(self) -> None:
        """After each reading of the nodes."""
        core, now_s = self.core, self.core.now_s()
        if not core.acting or not core.world.nodes_at_s or now_s < self._retry_at_s:
            return
        give = not self.breaker.why_open
        changes: dict[str, list[str]] = {}
        permits = {n.name: parse(n.comment, now_s) for n in core.world.nodes.values()}
        most = self.breaker.most() if give else {}
        if give and all(p and p.most == most[n] and p.until_s - now_s > RENEW_BELOW_S for n, p in permits.items()):
            return
        until_s = now_s + LASTS_S if give else None
        for node in core.world.nodes.values():
            wanted = render_permit(until_s, node.comment, most.get(node.name))
            # Nodes with the same words go into one call; those without any, nearly all, into a single one.
            if wanted != node.comment:
                changes.setdefault(wanted, []).append(node.name)
        try:
            for comment, names in changes.items():
                await core.call(core.client.set_node_comment, fold(names), comment)
        except SlurmError as error:
            self._retry_at_s = now_s + RETRY_S
            core.alert("leave.waits", f"the leave to drain could not be written: {error}", key="leave")
            return
        if changes:
            await core.read_nodes()
            core.info("leave", f"{'renewed on' if give else 'taken from'} {sum(map(len, changes.values()))} nodes")
