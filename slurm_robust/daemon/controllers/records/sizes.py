"""Writes down how many nodes of each class and which standby pools there were, whenever that changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger, ClusterSize, PoolSize
from slurm_robust.policy.cluster.node_picture import NodePicture
from slurm_robust.policy.cluster.node_states import Pool
from slurm_robust.slurm.values import gpu_count


class Sizes:
    """Compares the readings with the sizes written last."""

    def __init__(self, context: DaemonContext, ledger: AttemptLedger) -> None:
        self.context, self.ledger = context, ledger
        self._picture: NodePicture | None = None
        self._pools: tuple[Pool, ...] | None = None
        now_s = context.now_s()
        self._nodes = {row.gres: row.nodes for row in ledger.cluster_sizes(now_s, now_s)}
        self._held = {row.pool: (row.wanted, row.nodes) for row in ledger.pool_sizes(now_s, now_s)}

    def tick(self, pools: Sequence[Pool]) -> None:
        """Write down new sizes after a reading, with the pools as they are planned now."""
        readings = self.context.readings
        if readings.picture is not self._picture and readings.nodes_at_s:
            self._picture = readings.picture
            self._note_nodes(Counter(node.gres for node in readings.nodes.values()))
        if self._pools is None or list(self._pools) != pools:
            self._pools = tuple(pools)
            self._note_pools(pools)

    def _note_nodes(self, now: Counter[str]) -> None:
        at_s = self.context.now_s()
        gone = {gres: 0 for gres, nodes in self._nodes.items() if nodes and gres not in now}
        changed = {gres: nodes for gres, nodes in {**now, **gone}.items() if self._nodes.get(gres) != nodes}
        if changed:
            self.ledger.add_sizes(cluster=[ClusterSize(at_s, gres, n, gpu_count(gres)) for gres, n in changed.items()])
            self._nodes |= changed

    def _note_pools(self, pools: Sequence[Pool]) -> None:
        at_s = self.context.now_s()
        now = {pool.name: PoolSize(at_s, pool.name, pool.kind.partition, pool.wanted, pool.nodes) for pool in pools}
        gone = [name for name, held in self._held.items() if name not in now and held != (0, ())]
        now |= {name: PoolSize(at_s, name, "", 0, ()) for name in gone}
        changed = [row for row in now.values() if self._held.get(row.pool) != (row.wanted, row.nodes)]
        if changed:
            self.ledger.add_sizes(pools=changed)
            self._held |= {row.pool: (row.wanted, row.nodes) for row in changed}
