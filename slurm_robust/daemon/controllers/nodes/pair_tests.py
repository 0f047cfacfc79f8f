"""Runs tests of two nodes together, as jobs of the daemon's account: begins, follows, judges and tidies up.

A suspect and its partner are held by a reservation of their own for the few minutes; two standby nodes are in their
pool's reservation. A suspect's quarantine decides on the result for the suspect; this module acts on the result for
other nodes.
"""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import replace

from slurm_robust.config.site import NodetestConfig
from slurm_robust.core.model import Action, ActionKind
from slurm_robust.core.text import printable
from slurm_robust.daemon.actor import Actor
from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.breaker import Breaker
from slurm_robust.daemon.controllers.nodes import full_check
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.pair_ledger import PairLedger
from slurm_robust.policy.cluster.node_states import PAIR_PREFIX, idle, in_reservations
from slurm_robust.policy.cluster.pair_partners import shared_partitions
from slurm_robust.policy.cluster.tested_pairs import (
    NEEDS_TWO,
    PairReport,
    PairResult,
    PairTest,
    broken_by_company,
    failed_by_themselves,
    failed_with,
    parse,
)
from slurm_robust.slurm.errors import SlurmRefusedError
from slurm_robust.slurm.values import fold

JOB_NAME = "srobust-pair-test"
START_S = 60.0
"""A test that has not started by then is cancelled: one of its nodes has got a job."""
AVOID_S = 60.0
"""A node that a job took before the test could begin is not asked for again at once."""
SETTLES_S = 15.0
"""Slurm may show a node busy this long after its test ended."""
LATER_S = 600.0
"""The time after which two standby nodes that failed together are checked again."""
SUSPECT, STANDBY = "suspect", "standby"


class PairTests:
    """All tests of two nodes that are under way."""

    def __init__(
        self, context: DaemonContext, actor: Actor, breaker: Breaker, nodes: NodeLedger, ledger: PairLedger
    ) -> None:
        self.context, self.actor, self.breaker, self.nodes, self.ledger = context, actor, breaker, nodes, ledger
        self.config = context.config.nodetest
        self._avoid_until_s: dict[str, float] = {}
        self._settling_until_s: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """True while a test is under way."""
        return bool(self.ledger.open())

    def restart_timers(self) -> None:
        """Wait anew, since the clock was set back."""
        self._avoid_until_s.clear()
        self._settling_until_s.clear()
        self.ledger.restart_timers(self.context.now_s())

    @property
    def wanted(self) -> bool:
        """Whether the site wants tests of two nodes."""
        return any(test.value in self.config.tests for test in NEEDS_TWO)

    def past(self) -> list[PairTest]:
        """Tests that have ended within the strike window, in their order."""
        return self.ledger.ended(self.context.now_s() - self.context.config.quarantine.strike_window_days * DAY_S)

    def failed_with(self) -> dict[str, frozenset[str]]:
        """Return for each node the nodes with which it has failed together since it last passed such a test."""
        past = self.past()
        names = {name for test in past if test.result == PairResult.TOGETHER for name in test.nodes}
        # Who failed with a node that proved to be the broken one is not blamed for it any more.
        broken = failed_by_themselves(past) | {name for name in names if broken_by_company(name, past)}
        found = {name: failed_with(name, past) - broken for name in names}
        return {name: others for name, others in found.items() if others}

    def of(self, suspect: str) -> PairTest | None:
        """Return the test of this suspect that is under way."""
        return next((t for t in self.ledger.open() if t.node == suspect and t.purpose == SUSPECT), None)

    def in_pool(self, pool: str) -> bool:
        """True while two members of this pool are tested."""
        return any(t.purpose == STANDBY and t.key == pool for t in self.ledger.open())

    def taken(self) -> frozenset[str]:
        """Nodes that a test has."""
        return frozenset(name for t in self.ledger.open() for name in t.nodes)

    @property
    def lasts_s(self) -> float:
        """A test that begins now has ended by then, with its reservation."""
        return START_S + _hold_minutes(self.config) * 60.0

    def outside_pools(self) -> int:
        """Return how many idle nodes outside of pools are in tests now."""
        held = self.context.readings.reservations.values()
        pools = in_reservations(held, f"{self.context.config.standby.prefix}-")
        return sum(1 for t in self.ledger.open() if t.purpose == SUSPECT and t.partner not in pools)

    def settling(self) -> frozenset[str]:
        """Nodes that a test had until a moment ago."""
        now_s = self.context.now_s()
        return frozenset(name for name, until_s in self._settling_until_s.items() if now_s < until_s)

    def avoided(self) -> frozenset[str]:
        """Nodes that a job took before their test could begin."""
        now_s = self.context.now_s()
        return frozenset(name for name, until_s in self._avoid_until_s.items() if now_s < until_s)

    def begin(self, node: str, partner: str, key: str, pool: str = "") -> None:
        """Have these two tested: a suspect of that incident and its partner, or two members of that pool."""
        purpose, reservation = (STANDBY, pool) if pool else (SUSPECT, f"{PAIR_PREFIX}-{node}")
        test = PairTest(0, node, partner, purpose, key, reservation, self.context.now_s())
        self.ledger.begin(test)
        self.context.info("pair_test", f"{node} is tested with {partner} ({', '.join(self.config.tests)})")

    async def tick(self) -> None:
        """Bring every test forward; an error with one does not delay the others."""
        if self.context.acting:
            for test in self.ledger.open():
                with self.context.guarded("pair_test.waits", test.node, key=test.node):
                    await self._advance(test)

    def end(self, test: PairTest) -> None:
        """Cancel the test, which serves no purpose any more; it has no result."""
        if not test.result:
            self.ledger.dropped(test)

    async def _advance(self, test: PairTest) -> None:
        if test.result:
            await self._tidy_up(test)
        elif test.job_id is None:
            await self._submit(test)
        else:
            await self._follow(test, test.job_id)

    # --- the job

    async def _submit(self, test: PairTest) -> None:
        context, readings = self.context, self.context.readings
        name, key = f"{JOB_NAME}-{test.node}", self._key(test)
        if (ours := full_check.running_check(context, name)) is not None:
            self.ledger.submitted(test, ours.ref.job_id, context.now_s())
            return
        if not self._free(test.partner):
            self._drop(test)
            return
        if not self._free(test.node):
            # Slurm may show it busy for a moment after its full check.
            if context.now_s() - test.begun_at_s > START_S:
                self._drop(test)
            return
        if test.purpose == SUSPECT and test.reservation not in readings.reservations:
            args = {"reservation": test.reservation, "minutes": _hold_minutes(self.config)}
            try:
                await self.actor.perform(key, Action(ActionKind.HOLD_PAIR, fold(test.nodes), _why(test), args))
            except SlurmRefusedError:
                self._drop(test)
                return
            await context.read_reservations()
            return
        action, own = self._action(test, name), self.actor.own_jobs
        try:
            own.check(own.partition(self._partitions(test)))
            ref = await self.actor.perform(key, action)
        except SlurmRefusedError as error:
            # A partition that the account may not use, a limit: asked again and again it would hold both for ever.
            self._told(test, PairReport(untested=f"Slurm refused the test: {error.text or error.what}"))
            return
        assert ref is not None
        context.journal.note_result(key, action, context.now_s())
        self.ledger.submitted(test, ref.job_id, context.now_s())

    def _key(self, test: PairTest) -> str:
        """Return the key of a pool's action: a pool is tested again and again, and an action replaces the key's row."""
        return f"pair_test.{test.node}" if test.purpose == STANDBY else test.key

    def _free(self, name: str) -> bool:
        readings = self.context.readings
        node = readings.nodes.get(name)
        # A seat that was given since then waits for its job.
        seats = in_reservations(readings.reservations.values(), self.context.config.seat.prefix)
        taken = readings.busy | seats
        return node is not None and idle(node) and name not in taken

    def _drop(self, test: PairTest) -> None:
        """Drop a test because a node is busy: it has no result, and does not count."""
        self._avoid_until_s[test.partner] = self.context.now_s() + AVOID_S
        self.ledger.dropped(test)

    def _partitions(self, test: PairTest) -> tuple[str, ...]:
        node, partner = (self.context.readings.nodes[name] for name in test.nodes)
        return shared_partitions(node, partner)

    def _action(self, test: PairTest, name: str) -> Action:
        config, own = self.config, self.actor.own_jobs
        node = replace(self.context.readings.nodes[test.node], partitions=self._partitions(test))
        args = full_check.sbatch_args(name, node, own, reservation=test.reservation, minutes=_minutes(config))
        args += [f"--nodelist={','.join(test.nodes)}", "--nodes=2", "--mem=0"]
        command = [sys.executable, "-m", "slurm_robust.cli.main", "test", "--tell-slurm"]
        command += [f"--tests={','.join(config.tests)}", f"--budget={config.budget_s:g}"]
        command += [f"--python={config.python}"] if config.python else []
        command += ["--eud"] if config.eud else []
        script = f'#!/bin/sh\nexec {shlex.join(command)} --job "$SLURM_JOB_ID"\n'
        return Action(ActionKind.TEST_PAIR, fold(test.nodes), _why(test), {"sbatch": args, "script": script})

    async def _follow(self, test: PairTest, job_id: int) -> None:
        context = self.context
        job = context.readings.jobs.get(job_id)
        self.actor.own_jobs.note(job)
        # Compared with the time of the reading: a job that was submitted later cannot be in it.
        result = full_check.result_of(job, job_id, context.readings.jobs_at_s - test.begun_at_s, START_S)
        if result is None:
            return
        report = parse(job.comment) if job is not None and full_check.over(job) else None
        if report is None or (job is not None and job.state not in ("COMPLETED", "FAILED")):
            # A job that was killed may have written a result of an unfinished test.
            report = PairReport(untested=(result.detail or "the test told no result").replace("recheck", "test"))
        self._told(test, report)

    def _told(self, test: PairTest, report: PairReport) -> None:
        # What cannot be printed is no reason that Slurm would take.
        failed = {name: printable(why) for name, why in report.failed.items()}
        report = PairReport(failed, printable(report.together), printable(report.untested))
        self.ledger.told(test, report)
        told = f"{fold(test.nodes)}: {report.result.value}. {report.reason}".strip(". ")
        self.context.info("pair_test.ended", told)
        self._weigh(test, report)

    async def _tidy_up(self, test: PairTest) -> None:
        context, readings = self.context, self.context.readings
        job = readings.jobs.get(test.job_id) if test.job_id is not None else None
        if job is not None and not full_check.over(job):
            if not job.completing:
                await self.actor.perform(
                    self._key(test), Action(ActionKind.CANCEL, job.ref.address, "no test is needed")
                )
            await context.read_jobs()
            return
        if test.purpose == SUSPECT and test.reservation in readings.reservations:
            action = Action(ActionKind.RELEASE_PAIR, test.reservation, f"{fold(test.nodes)}: {test.result}")
            await self.actor.perform(self._key(test), action)
            await context.read_reservations()
            if test.reservation in readings.reservations:
                return
            context.journal.note_result(self._key(test), action, context.now_s())
        self.ledger.end(test, context.now_s())
        self._settling_until_s |= dict.fromkeys(test.nodes, context.now_s() + SETTLES_S)

    # --- the result for other nodes

    def _weigh(self, test: PairTest, report: PairReport) -> None:
        context, now_s = self.context, self.context.now_s()
        others = test.nodes if test.purpose == STANDBY else (test.partner,)
        if report.result is PairResult.UNTESTED and not self.nodes.announced("pair_test.untested", report.reason):
            text = f"{fold(test.nodes)} could not be tested together: {report.reason}"
            context.alert("pair_test.untested", f"{text}; the full check counts alone, and nobody is blamed")
        if report.result is PairResult.PASSED or (report.result is PairResult.UNTESTED and test.purpose == STANDBY):
            for name in others:
                self.nodes.standby_met(name, now_s, f"{report.result.value} with {test.other(name)}")
        elif report.result is PairResult.TOGETHER:
            later_s = LATER_S if test.purpose == STANDBY else 0.0
            for name in others:
                word = f"failed together with {test.other(name)}: {report.reason}"
                self.nodes.standby_not_checked(name, now_s, now_s + later_s, 0, word)
                self.nodes.standby_met(name, 0.0, word)
            context.alert("pair_test.together", f"{fold(test.nodes)}: {report.reason}", key=test.node)
        past = [*self.past(), *(t for t in self.ledger.open() if t.result)]
        for name in others:
            if name in report.failed:
                self._accuse(test, name, f"failed a test with {test.other(name)}: {report.failed[name]}")
            elif report.result is PairResult.TOGETHER and (with_ := broken_by_company(name, past)):
                self._accuse(test, name, f"failed together with {' and with '.join(with_)}: {report.reason}")

    def _accuse(self, test: PairTest, name: str, why: str) -> None:
        context, now_s = self.context, self.context.now_s()
        context.alert("pair_test.failed", f"{name} {why}")
        self.nodes.standby_not_checked(name, now_s, now_s + LATER_S, 0, why)
        self.nodes.standby_met(name, 0.0, why)
        if self.breaker.allows(frozenset((name,))):
            row = Quarantine(name, f"pair.{test.number}", 0, "", why, now_s, now_s, accused=why)
            self.nodes.quarantine(row)


def _minutes(config: NodetestConfig) -> int:
    """Return how long the job may take: its tests, their start and their end."""
    return math.ceil((config.budget_s + 60.0) / 60.0)


def _hold_minutes(config: NodetestConfig) -> int:
    return _minutes(config) + 1


def _why(test: PairTest) -> str:
    return f"{test.node}, {'a suspect' if test.purpose == SUSPECT else 'in standby'}, is tested with {test.partner}"
