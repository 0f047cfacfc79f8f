"""An incident handler and a plan executor with all that they need, on a `World`; no supervisor."""

from __future__ import annotations

from supervised import World

from slurm_robust.localize.evidence import RankExit
from slurm_robust.supervise.incident.decider import Decider
from slurm_robust.supervise.incident.incident_handler import IncidentHandler
from slurm_robust.supervise.incident.incident_log import IncidentLog
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.outcome import Outcome
from slurm_robust.supervise.recover.plan_executor import PlanExecutor
from slurm_robust.supervise.versions.code_keeper import CodeKeeper
from slurm_robust.supervise.watch.losses import Losses
from slurm_robust.supervise.watch.observer import Observer


class Parts:
    """The parts, and one attempt."""

    def __init__(self, world: World) -> None:
        session = world.session
        self.world = world
        self.store = LineageStore(session)
        self.log = IncidentLog(session)
        self.losses = Losses(session)
        self.observer = Observer(session)
        self.decider = Decider(session, self.log, self.losses)
        self.handler = IncidentHandler(session, self.log, self.decider, self.observer)
        self.code = CodeKeeper(session, self.store, self.log)
        self.executor = PlanExecutor(session, self.store, self.log, self.losses, self.code)
        self.attempt = world.attempt()
        self.start = AttemptStart(session, self.attempt, self.store)

    async def silent(self) -> Outcome:
        """The supervisor's poll has found this silence."""
        found = self.attempt.assess(self.world.session.settings)
        return await self.handler.silent(self.attempt, self.start, found)

    def exit_of(self, rank: int, *, code: int | None = None, signal: int = 0) -> None:
        """A rank has ended, by srun's report."""
        self.world.loses(rank)
        self.attempt.exits[rank] = RankExit(rank, f"n{rank + 1}", self.world.clock.at_s, code, signal)
