"""The loop of `srobustd`: looks at Slurm once a second, more often only while something is going on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path

from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.clock_watch import Timekeeper
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.claim_intake import Intake
from slurm_robust.daemon.controllers.drain_permits import LeaveKeeper
from slurm_robust.daemon.controllers.exclusions import ExclusionKeeper
from slurm_robust.daemon.controllers.incident_reports import Reports
from slurm_robust.daemon.controllers.launch_failed import HeldKeeper
from slurm_robust.daemon.controllers.node_failures import NodeWatch
from slurm_robust.daemon.controllers.quarantine import QuarantineKeeper
from slurm_robust.daemon.controllers.recoveries import Recoveries
from slurm_robust.daemon.controllers.standby import StandbyKeeper
from slurm_robust.daemon.controllers.standby_check import StandbyChecks
from slurm_robust.daemon.controllers.sweeper import Sweeper
from slurm_robust.daemon.core import Core, printable
from slurm_robust.daemon.store.node_ledger import Ledger
from slurm_robust.policy.cluster.recovery_step import credential_pause_s
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.parse import cluster_name

BUSY_INTERVAL_S = 0.1
"""Between two looks at a recovery under way."""
WATCHFUL_INTERVAL_S = 0.5
"""Between two looks while a node is in quarantine, or silent under a job."""
CYCLE = ("jobs", "nodes", "jobs", "jobs", "reservations", "jobs")
"""What is read, one a second, while nothing is going on: claims are what waits."""
READING_SHARE = 0.05
"""Of the time, at most, for reading the jobs more often than that while a claim is on its way."""
OTHERS_AFTER = 6
"""Idle intervals after which nodes and reservations are read while a claim is on its way."""
DAY_S = 86400.0


class Daemon:
    """The daemon: the site's, or (`as_user`) one user's own, which knows claims and requeues and nothing else."""

    def __init__(self, core: Core, *, as_user: bool = False) -> None:
        self.core = core
        self.as_user = as_user
        self.ledger = Ledger(core.journal)
        self.actor = Actor(core)
        self.breaker = Breaker(core, self.ledger)
        self.recoveries = Recoveries(core, self.actor, self.breaker)
        self.intake = Intake(core, self.actor, self.recoveries, self.breaker, self.ledger, as_user=as_user)
        self.reports = Reports(core, self.intake, self.recoveries)
        self.nodewatch = NodeWatch(core, self.intake, self.recoveries)
        self.quarantine = QuarantineKeeper(core, self.actor, self.breaker, self.ledger)
        self.standby = StandbyKeeper(core, self.ledger)
        self.standby_checks = StandbyChecks(core, self.actor, self.breaker, self.ledger)
        self.held = HeldKeeper(core, self.actor, self.recoveries, self.ledger)
        self.exclusions = ExclusionKeeper(core, self.actor, self.recoveries, self.ledger)
        self.sweeper = Sweeper(core, self.ledger, self.recoveries)
        self.leave = LeaveKeeper(core, self.breaker)
        self.timekeeper = Timekeeper(self)
        self._cycle = cycle(CYCLE)
        self._stop = asyncio.Event()
        self._forget_at_s = 0.0
        self._settings_read = False
        self.after_look: list[Callable[[], Awaitable[None]]] = []
        """Called after each look: markers, snapshots."""

    def stop(self) -> None:
        """End after the step under way."""
        self._stop.set()

    async def run(self) -> None:
        """Until told to stop; Slurm being away, or an error of our own, only makes it wait and look again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        core = self.core
        core.info("daemon.start", f"mode {core.mode.value}, journal {core.journal.path}, as {core.account}")
        self.recoveries.load()
        trouble_s = 0.0
        while not self._stop.is_set():
            try:
                await self._look()
                trouble_s, trouble = 0.0, ""
            except SlurmError as error:
                trouble_s = min(10.0, trouble_s * 2 or 0.5)
                core.alert("slurm.away", f"{error}; looking again in {trouble_s:g} s", key="away")
                trouble = f"the daemon cannot ask Slurm, and does nothing until it can ({printable(str(error))[:200]})"
                trouble += ": scontrol ping"
            except Exception as error:  # noqa: BLE001 (an error of ours must not leave jobs without their daemon)
                trouble_s = min(20.0, trouble_s * 2 or 1.0)
                core.broken(error)
                trouble = _in_words(error, core.journal.path)
            core.trouble("look", trouble)
            await self._show()
            await self._pause(trouble_s or self._interval_s())
        core.info("daemon.stop", "stopped; what is under way is taken up at the next start")

    async def _show(self) -> None:
        """Also when the look failed: whoever asks is to learn why, and not that the daemon is gone."""
        try:
            for hook in self.after_look:
                await hook()
        except Exception as error:  # noqa: BLE001 (what is shown must not end the daemon)
            self.core.broken(error, "what the daemon shows of itself")

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _interval_s(self) -> float:
        pace_s = self._pace_s()
        if self.recoveries.open:
            return min(BUSY_INTERVAL_S, pace_s)
        if self.quarantine.busy or self.nodewatch.suspicious:
            return min(WATCHFUL_INTERVAL_S, pace_s)
        return pace_s

    def _pace_s(self) -> float:
        """Between two readings of the jobs: `idle_interval_s`, or, while a claim is on its way, what is cheap."""
        chosen = self.core.config.daemon
        if not self.intake.expecting:
            return chosen.idle_interval_s
        return min(chosen.idle_interval_s, max(chosen.claim_interval_s, self.core.jobs_cost_s / READING_SHARE))

    async def _look(self) -> None:
        core, world = self.core, self.core.world
        self.timekeeper.tick()
        if not self._settings_read:
            settings = await core.call(core.client.settings)
            core.cluster_name = core.cluster_name or cluster_name(settings)
            core.credential_pause_s = credential_pause_s(settings)
            self._settings_read = True
        due = self._due()
        if due == "jobs":
            await core.read_jobs()
            await self.intake.tick()
            self.reports.tick()
            if not self.as_user and self.nodewatch.note_jobs():
                due = "nodes"
        if due == "nodes":
            await core.read_nodes()
            self.breaker.look()
            await self.leave.tick()
        elif due == "reservations":
            await core.read_reservations()
            await self.sweeper.tick()
        if self.as_user:
            await self.recoveries.tick()
        elif world.complete:
            if due == "nodes":
                await self.nodewatch.tick()
                await self.held.tick()
                await self.exclusions.tick()
            await self.recoveries.tick()
            await self.quarantine.tick()
            await self.standby_checks.tick()
            await self.standby.tick(frozenset(n for f in self.recoveries.open.values() for n in f.recovery.bad))
        self._forget()

    def _due(self) -> str:
        """What to read now. With something under way only what is a second old, and the jobs where a claim is."""
        world, now_s, idle_s = self.core.world, self.core.now_s(), self.core.config.daemon.idle_interval_s
        ages = {
            "jobs": now_s - world.jobs_at_s,
            "nodes": now_s - world.nodes_at_s,
            "reservations": now_s - world.reservations_at_s,
        }
        jobs = "jobs" if ages["jobs"] >= 0.9 * self._pace_s() else ""  # a timer may end a little early
        if self.as_user:
            return jobs
        oldest = max(ages, key=lambda name: ages[name])
        if not world.complete or self.recoveries.open or self.quarantine.busy or self.nodewatch.suspicious:
            if ages[oldest] >= 1.0:
                return oldest
            return jobs if self.intake.expecting else ""
        if not self.intake.expecting:
            return next(self._cycle)
        return oldest if oldest != "jobs" and ages[oldest] >= OTHERS_AFTER * idle_s else jobs

    def _forget(self) -> None:
        now_s = self.core.now_s()
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + 3600.0
            self.core.journal.close_running(now_s - DAY_S, now_s)
            self.core.journal.forget_before(now_s - self.core.config.daemon.retention_days * DAY_S)


def _in_words(error: Exception, journal: Path) -> str:
    """What keeps the daemon from its work, and what to type."""
    if isinstance(error, sqlite3.OperationalError):
        return (
            f"the journal {journal} cannot be written ({error}), and nothing is done without it: df -h {journal.parent}"
        )
    said = printable(f"{type(error).__name__}: {error}")[:200]
    return f"the daemon has met an error of its own ({said}) and tries again: journalctl -u srobustd"
