"""Runs the loop of `srobustd`: one call to Slurm a second, more only while a recovery or a claim is under way."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from time import gmtime, strftime
from typing import Protocol

from slurm_robust.core.text import printable
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.nodes.blind_nodes import BOOTED, BlindNodes
from slurm_robust.daemon.controllers.nodes.drain_permits import DrainPermits
from slurm_robust.daemon.controllers.nodes.leaf_faults import LeafFaults
from slurm_robust.daemon.controllers.nodes.lemons import Lemons
from slurm_robust.daemon.controllers.nodes.marked_faults import MarkedFaults
from slurm_robust.daemon.controllers.nodes.pair_tests import PairTests
from slurm_robust.daemon.controllers.nodes.quarantine import Quarantines
from slurm_robust.daemon.controllers.nodes.repairs import Repairs
from slurm_robust.daemon.controllers.records.effective_time import EffectiveTimes
from slurm_robust.daemon.controllers.records.lost_jobs import LostJobs
from slurm_robust.daemon.controllers.records.sizes import Sizes
from slurm_robust.daemon.controllers.records.trainings import Trainings
from slurm_robust.daemon.controllers.recovery.claim_intake import ClaimIntake
from slurm_robust.daemon.controllers.recovery.exclusions import Exclusions
from slurm_robust.daemon.controllers.recovery.incident_reports import IncidentReports
from slurm_robust.daemon.controllers.recovery.late_claims import LateClaims
from slurm_robust.daemon.controllers.recovery.launch_failed import LaunchFailed
from slurm_robust.daemon.controllers.recovery.node_failures import NodeFailures
from slurm_robust.daemon.controllers.recovery.recoveries import Recoveries
from slurm_robust.daemon.controllers.recovery.seats_again import SeatsAgain
from slurm_robust.daemon.controllers.recovery.sweeper import Sweeper
from slurm_robust.daemon.controllers.standby.standby_check import StandbyChecks
from slurm_robust.daemon.controllers.standby.standby_pools import StandbyPools
from slurm_robust.daemon.lease import Lease, StandingByError
from slurm_robust.daemon.notifier import Notifier
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.store.pair_ledger import PairLedger
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.daemon.totals import Totals
from slurm_robust.marks.blind_marker import FULL
from slurm_robust.policy.cluster.recovery_step import credential_pause_s
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.parse import as_of_s, cluster_name, min_job_age_s, private_data

BUSY_INTERVAL_S = 0.1
"""The time between two polls while a recovery is open."""
WATCHFUL_INTERVAL_S = 0.5
"""The time between two polls while a node is in quarantine, silent, or has marked a fault under a job."""
CYCLE = ("jobs", "nodes", "jobs", "jobs", "reservations", "jobs")
"""The readings, one a second, while nothing is under way: jobs most often, since claims wait."""
READING_SHARE = 0.05
"""The share of time, at most, for reading the jobs more often while a claim is expected."""
WATCH_SHARE = 0.03
"""The share of time, at most, for reading the nodes, and for the jobs, while something is under way."""
WATCH_S = 1.0
"""The least time between two readings of one kind while something is under way."""
CALM_S, CALM_AFTER_S = 2.0, 20.0
"""The time between two readings of the jobs once no recovery has changed for the second time; others are rarer."""
OTHERS_AFTER = 6
"""Idle intervals after which nodes and reservations are read at the latest, however much is under way."""
SETTINGS_EVERY_S = 300.0
"""`scontrol reconfigure` may have changed them; they also tell slurmctld's time."""
SLEW_S = 1.0
"""A clock that goes back by less than this is only being slewed."""


class Timed(Protocol):
    """A part of the daemon that has timers."""

    def restart_timers(self) -> None:
        """Limit all remembered times to now, since the clock was set back."""


class Daemon:
    """The daemon: the site's, or (`as_user`) one user's own, which only requeues that user's jobs after a claim."""

    def __init__(self, context: DaemonContext, *, as_user: bool = False) -> None:
        self.context = context
        self.as_user = as_user
        self.ledger = NodeLedger(context.journal)
        self.repair_ledger = RepairLedger(context.journal)
        self.lease = Lease(context)
        self.actor = Actor(context, self.lease)
        self.breaker = Breaker(context, self.ledger)
        self.recoveries = Recoveries(context, self.actor, self.breaker)
        self.claim_intake = ClaimIntake(
            context, self.actor, self.recoveries, self.breaker, self.ledger, as_user=as_user
        )
        self.incident_reports = IncidentReports(context, self.claim_intake, self.recoveries)
        self.node_failures = NodeFailures(context, self.claim_intake, self.recoveries)
        self.node_faults = MarkedFaults(context, self.actor, self.breaker, self.node_failures)
        self.leaf_faults = LeafFaults(context, self.actor, self.ledger)
        self.blind_nodes, self.full_nodes = BlindNodes(context), BlindNodes(context, FULL)
        self.rebooted_nodes = BlindNodes(context, BOOTED)
        pair_ledger = PairLedger(context.journal)
        self.pair_tests = PairTests(context, self.actor, self.breaker, self.ledger, pair_ledger)
        self.quarantine = Quarantines(
            context, self.actor, self.breaker, self.ledger, self.repair_ledger, pair_tests=self.pair_tests
        )
        self.repairs = Repairs(context, self.actor, self.recoveries, self.ledger, self.repair_ledger)
        self.standby_pools = StandbyPools(context, self.actor, self.ledger)
        self.standby_checks = StandbyChecks(context, self.actor, self.breaker, self.ledger, self.pair_tests)
        self.lemons = Lemons(context, self.breaker, self.ledger)
        self.launch_failed = LaunchFailed(context, self.actor, self.recoveries, self.ledger)
        self.exclusions = Exclusions(context, self.actor, self.recoveries, self.ledger)
        self.seats_again = SeatsAgain(context, self.recoveries)
        self.sweeper = Sweeper(context, self.actor, self.ledger, self.recoveries, self.repair_ledger)
        self.drain_permits = DrainPermits(context, self.actor, self.breaker, self.repair_ledger)
        attempt_ledger = AttemptLedger(context.journal)
        self.trainings = Trainings(context, self.claim_intake, attempt_ledger)
        self.lost_jobs = LostJobs(context, self.trainings)
        self.late_claims = LateClaims(context, self.claim_intake, self.recoveries, attempt_ledger)
        self.sizes = Sizes(context, attempt_ledger)
        self.effective_times = EffectiveTimes(context, self.trainings, attempt_ledger)
        self.totals = Totals(context)
        self.notifier = Notifier(context, lambda: self.breaker.why_open)
        self._timed: tuple[Timed, ...] = (
            *(self.recoveries, self.quarantine, self.node_failures, self.drain_permits, self.sweeper, self.exclusions),
            *(self.standby_pools, self.standby_checks, self.node_faults, self.repairs, self.pair_tests),
            *(self.trainings, self.notifier, self.lemons, self.blind_nodes, self.full_nodes, self.leaf_faults),
            *(self.seats_again, self.rebooted_nodes),
        )
        """Parts with timers in memory; the breaker's are in the journal."""
        self._last_poll_s = 0.0
        self._cycle = cycle(CYCLE)
        self._stop = asyncio.Event()
        self.replaced = False
        """Whether it ends, or has ended, for a daemon with other settings."""
        self._forget_at_s = 0.0
        self._settings_at_s = -SETTINGS_EVERY_S
        self.after_poll: list[Callable[[], Awaitable[None]]] = []
        """Called after each poll, to publish the state."""

    def stop(self) -> None:
        """End after the step under way."""
        self.replaced = False
        self._stop.set()

    def replace(self) -> None:
        """End in the same way, for a daemon with other settings; one that is told to end is not replaced."""
        self.replaced = self.replaced or not self._stop.is_set()
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`. Where Slurm is away, or the daemon has an error of its own, it waits and tries again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        context = self.context
        since = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(context.mode_since_s))
        mode = f"mode {context.mode.value}, since {since}"
        context.info("daemon.start", f"{mode}, journal {context.journal.path}, as {context.account}")
        self.recoveries.load()
        if not self.as_user:
            self.lease.begin()
        trouble_s = 0.0
        while not self._stop.is_set():
            try:
                await self._poll()
                trouble_s, trouble = 0.0, ""
            except StandingByError:
                trouble_s, trouble = 0.0, ""
            except SlurmError as error:
                trouble_s = min(10.0, trouble_s * 2 or 0.5)
                context.alert("slurm.away", f"{error}; trying again in {trouble_s:g} s", key="away")
                trouble = f"the daemon cannot ask Slurm, and does nothing until it can ({printable(str(error))[:200]})"
                trouble += ": scontrol ping"
            except Exception as error:  # noqa: BLE001 (an error of its own must not end the daemon)
                trouble_s = min(20.0, trouble_s * 2 or 1.0)
                context.own_error(error)
                trouble = _explained(error, context.journal.path)
            context.trouble("poll", trouble)
            await self._publish()
            await self._pause(trouble_s or self._interval_s())
        self.lease.close()
        await self.lemons.close()
        context.info("daemon.stop", "stopped; open recoveries are continued at the next start")

    async def _publish(self) -> None:
        """Publish the state, also when the poll failed: `srobust status` then shows why."""
        with self.context.aside("counting for the metrics"):
            self.totals.tick()
        for hook in self.after_poll:
            with self.context.aside(f"publishing ({hook.__qualname__})"):
                await hook()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _interval_s(self) -> float:
        if self.lease.standing_by:
            return self.context.config.daemon.idle_interval_s
        pace_s = self._pace_s()
        if self.recoveries.open:
            rest_s = max(BUSY_INTERVAL_S, self.recoveries.rest_s)
            # Not beyond the next whole second where one is new: a requeued job may start from then on.
            return min(rest_s, pace_s, 1.005 - self.context.now_s() % 1 if rest_s < 1 else rest_s)
        if self._watchful:
            return min(WATCHFUL_INTERVAL_S, pace_s)
        return pace_s

    @property
    def _watchful(self) -> bool:
        """True while a node is looked after, is silent under a job, or has marked a fault."""
        looked_after = self.quarantine.busy or self.repairs.busy or self.pair_tests.busy
        return looked_after or self.node_failures.suspicious or self.node_faults.suspicious

    def _pace_s(self) -> float:
        """Return the time between two readings of the jobs: `idle_interval_s`, or less while a claim is expected."""
        chosen = self.context.config.daemon
        if not self.claim_intake.expecting:
            return chosen.idle_interval_s
        return min(chosen.idle_interval_s, max(chosen.claim_interval_s, self.context.jobs_cost_s / READING_SHARE))

    async def _poll(self) -> None:
        await self._learn_settings()
        self._watch_clock()
        if self.lease.took_over:
            self._take_up()
        due = self._due()
        if self.lease.standing_by:
            await self._only_read(due)
        else:
            await self._act(due)

    async def _learn_settings(self) -> None:
        """Read slurm.conf as the controller runs it, where that was long ago."""
        context = self.context
        now_s = context.now_s()
        if not self._settings_at_s <= now_s < self._settings_at_s + SETTINGS_EVERY_S:
            settings = await context.call(context.client.settings)
            context.compare_clocks(as_of_s(settings), now_s)
            context.cluster_name = context.cluster_name or cluster_name(settings)
            context.credential_pause_s = credential_pause_s(settings)
            context.min_job_age_s = min_job_age_s(settings)
            if not self.as_user:
                self.repairs.learn(settings)
            context.private = private_data(settings)
            self._settings_at_s = context.now_s()

    async def _act(self, due: str) -> None:
        """Read what is due, and act on it."""
        context, readings = self.context, self.context.readings
        if due == "jobs":
            await context.read_jobs()
            await self.claim_intake.tick()
            if readings.complete and not self.as_user:
                await self.late_claims.tick()
            self.incident_reports.tick()
            with context.aside("recording of trainings"):
                self.trainings.tick()
                await self.lost_jobs.tick()
            if not self.as_user and self.node_failures.note_jobs():
                due = "nodes"
        if due == "nodes":
            await self._read_nodes()
            if self.lease.standing_by:
                return
            if not self.as_user:
                with context.aside("telling of leaf switches"):
                    await self.leaf_faults.tick()
            self.breaker.count_drains()
            await self.drain_permits.tick()
        elif due == "reservations":
            await context.read_reservations()
            await self.sweeper.tick()
        if self.as_user:
            await self.recoveries.tick()
        elif readings.complete:
            if due == "nodes":
                await self.node_failures.tick()
                await self.node_faults.tick()
                await self.launch_failed.tick()
                await self.exclusions.tick()
                await self.seats_again.tick()
                with context.aside("telling of nodes that cannot see their GPUs, or have a full mount"):
                    self._tell_of_nodes()
                with context.aside("the search for lemons"):
                    await self.lemons.tick()
            await self.recoveries.tick()
            await self.pair_tests.tick()
            await self.quarantine.tick()
            await self.repairs.tick()
            await self.standby_checks.tick()
            evicted = frozenset(n for f in self.recoveries.open.values() for n in f.recovery.bad)
            await self.standby_pools.tick(evicted, self.seats_again.lacked)
            with context.aside("recording of sizes"):
                self.sizes.tick(self.standby_pools.pools)
        self._forget()

    def _tell_of_nodes(self) -> None:
        """Tell people what nodes say of themselves, if no action follows from it."""
        self.blind_nodes.tick()
        self.full_nodes.tick()
        self.rebooted_nodes.tick()

    async def _read_nodes(self) -> None:
        began_s = self.context.steady_s()
        await self.context.read_nodes()
        await self.lease.seen(began_s)

    async def _only_read(self, due: str) -> None:
        """Read Slurm while another daemon acts, and decide nothing."""
        context = self.context
        if due == "nodes":
            await self._read_nodes()
        else:
            await (context.read_jobs() if due == "jobs" else context.read_reservations())

    def _take_up(self) -> None:
        """Begin as after a start: what this daemon remembers is older than the other daemon's actions."""
        self.lease.took_over = False
        self.context.readings.expire()
        for part in (self.breaker, *self._timed):
            part.restart_timers()
        self.recoveries.open.clear()
        self.recoveries.load()

    def _watch_clock(self) -> None:
        """Restart every timer once the clock was set back: one whose end lies far ahead would never end.

        A clock that is set forward only shortens waits, which needs no correction.
        """
        now_s, last_s = self.context.now_s(), self._last_poll_s
        self._last_poll_s = now_s
        if not last_s:
            # The clock may have been set back while no daemon ran: only the journal's times can lie in the future then.
            journalled: tuple[Timed, ...] = (self.breaker, self.standby_pools, self.notifier, self.lemons)
            for part in journalled:
                part.restart_timers()
        elif now_s <= last_s - SLEW_S:
            text = f"the clock was set back by {last_s - now_s:.0f} s; every timer is restarted"
            self.context.alert("clock.back", text)
            self.context.readings.expire()
            for part in (self.breaker, *self._timed):
                part.restart_timers()

    def _due(self) -> str:
        """Return what to read now.

        While something is under way: readings a second old, and jobs if a claim is expected.
        """
        readings, now_s = self.context.readings, self.context.now_s()
        idle_s = self.context.config.daemon.idle_interval_s
        ages = {
            "jobs": now_s - readings.jobs_at_s,
            "nodes": now_s - readings.nodes_at_s,
            "reservations": now_s - readings.reservations_at_s,
        }
        jobs = "jobs" if ages["jobs"] >= 0.9 * self._pace_s() else ""  # a timer may end a little early
        if self.as_user:
            return jobs
        if self.lease.standing_by:
            return "nodes" if not readings.nodes_at_s else next(self._cycle)
        # Of a large site each kind is read as often as is cheap, but not more seldom than at rest: claims wait.
        costs = {"jobs": self.context.jobs_cost_s, "nodes": self.context.nodes_cost_s}
        seldom_s = OTHERS_AFTER * idle_s
        due_after_s = {name: max(WATCH_S, min(seldom_s, costs.get(name, 0.0) / WATCH_SHARE)) for name in ages}
        if self.recoveries.unchanged_s > CALM_AFTER_S:
            due_after_s = {name: max(CALM_S, seldom_s) for name in ages} | {"jobs": max(CALM_S, due_after_s["jobs"])}
        oldest = max(ages, key=lambda name: ages[name] / due_after_s[name])
        if not readings.complete or self.recoveries.open or self._watchful:
            if ages[oldest] >= due_after_s[oldest]:
                return oldest
            return jobs if self.claim_intake.expecting else ""
        if not self.claim_intake.expecting:
            return next(self._cycle)
        return oldest if oldest != "jobs" and ages[oldest] >= OTHERS_AFTER * idle_s else jobs

    def _forget(self) -> None:
        now_s = self.context.now_s()
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + 3600.0
            self.context.journal.close_running(now_s - DAY_S, now_s)
            self.context.journal.forget_before(now_s - self.context.config.daemon.retention_days * DAY_S)


def _explained(error: Exception, journal: Path) -> str:
    """Return what keeps the daemon from its work, and the command to type."""
    if isinstance(error, sqlite3.OperationalError):
        return (
            f"the journal {journal} cannot be written ({error}), and the daemon does nothing without it: "
            f"df -h {journal.parent}"
        )
    message = printable(f"{type(error).__name__}: {error}")[:200]
    return f"the daemon has an internal error ({message}) and tries again: journalctl -u srobustd"
