"""Keeps the standby pools: checked nodes held ready, one pool for each hardware class."""

from __future__ import annotations

from slurm_robust.daemon.core import Core
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.model import ActionKind
from slurm_robust.policy.cluster.node_states import OURS, Pool, plan_pools
from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import SlurmError, SlurmRefusedError
from slurm_robust.slurm.values import expand, fold

EVERY_S = 10.0
FLAGS = ("OVERLAP",)
"""Only idle nodes are taken, so running jobs need not be ignored; seats lie over the pools."""
DAY_MIN = 24 * 60


class StandbyKeeper:
    """Looks every few seconds, and right after a recovery has taken nodes out."""

    def __init__(self, core: Core, ledger: Ledger) -> None:
        self.core, self.ledger = core, ledger
        self.pools: list[Pool] = []
        self.next_at_s = 0.0

    async def tick(self, keep_out: frozenset[str] = frozenset()) -> None:
        """Bring the pools to what they should be.

        Args:
            keep_out: Nodes that a recovery under way has set aside; those in its seat are left where they are anyway.
        """
        core, config = self.core, self.core.config.standby
        if core.now_s() < self.next_at_s or not core.world.complete:
            return
        self.next_at_s = core.now_s() + EVERY_S
        keep_out |= {q.node for q in self.ledger.quarantines()}
        self.pools = plan_pools(
            core.world.nodes,
            core.world.reservations.values(),
            prefix=config.prefix,
            size=config.size,
            partitions=config.partitions,
            seat_prefix=core.config.seat.prefix,
            keep_out=keep_out,
            at_check=core.world.at_check,
        )
        if not core.acting:
            return
        wanted = {p.name: p for p in self.pools}
        changed = False
        for name in sorted({*wanted, *(r for r in core.world.reservations if r.startswith(config.prefix + "-"))}):
            changed |= await self._try(name, wanted.get(name))
        if changed:
            await core.read_reservations()

    async def _try(self, name: str, pool: Pool | None) -> bool:
        """One pool's trouble does not hold up the others."""
        try:
            return await self._bring(name, pool, self.core.world.reservations.get(name))
        except SlurmError as error:
            self.core.alert("standby.waits", f"{name}: {error}", key=name)
            return False

    async def _bring(self, name: str, pool: Pool | None, there: Reservation | None) -> bool:
        core, client = self.core, self.core.client
        nodes = pool.nodes if pool else ()
        if not nodes:
            if there is not None:
                self._say(name, "nothing to hold, the pool is taken down")
                await core.call(client.delete_reservation, name)
            return there is not None
        if there is None:
            self._say(name, f"holds {fold(nodes)}")
            minutes = self._minutes(nodes)
            if minutes < 1:
                return False
            await core.call(client.create_reservation, name, fold(nodes), (core.account,), minutes, FLAGS)
            return True
        changed = False
        if set(expand(there.nodes)) != set(nodes):
            self._say(name, f"holds {fold(nodes)}, before: {there.nodes}")
            try:
                await core.call(client.update_reservation, name, nodes=fold(nodes))
            except SlurmRefusedError:
                # A pool made by hand with REPLACE flags refuses a list: ours are made anew.
                await core.call(client.delete_reservation, name)
            changed = True
        left_min, minutes = (there.end_at_s - core.now_s()) / 60, self._minutes(nodes)
        if left_min < minutes / 2:
            age_min = int((core.now_s() - there.start_at_s) // 60)
            # Slurm's longest reservation is a year from its start: an old pool is made anew.
            if age_min + minutes > 360 * DAY_MIN:
                await core.call(client.delete_reservation, name)
            else:
                await core.call(client.update_reservation, name, duration_min=age_min + minutes)
            changed = True
        return changed

    def _minutes(self, nodes: tuple[str, ...]) -> int:
        """As long as the site wants, but not into a coming reservation of others."""
        minutes, now_s = self.core.config.standby.duration_days * DAY_MIN, self.core.now_s()
        for other in self.core.world.reservations.values():
            if not other.name.startswith(OURS) and other.start_at_s > now_s and set(expand(other.nodes)) & set(nodes):
                minutes = min(minutes, int((other.start_at_s - now_s) // 60) - 1)
        return minutes

    def _say(self, name: str, text: str) -> None:
        self.core.info(ActionKind.KEEP_STANDBY.value, f"{name}: {text}", key=name)
