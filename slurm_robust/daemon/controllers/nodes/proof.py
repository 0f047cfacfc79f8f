"""Asks the policy what a suspect that has passed its full check must still prove, and has it tested."""

from __future__ import annotations

import math

from slurm_robust.daemon.context import DAY_S, DaemonContext
from slurm_robust.daemon.controllers.nodes.pair_tests import PairTests
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.policy.cluster.pair_partners import company, in_spare_pools
from slurm_robust.policy.cluster.strikes import jobs_that_suspect
from slurm_robust.policy.cluster.tested_pairs import (
    BackToService,
    CheckedSuspect,
    Company,
    Meet,
    OutOfService,
    StayInQuarantine,
    next_step,
)
from slurm_robust.slurm.client import Node

HOUR_S = 3600.0
IDLE_AT_ONCE = 4
"""The most idle nodes outside of pools that are held for tests at the same time."""


class Proof:
    """Asked at each poll about every suspect that has passed its full check."""

    def __init__(self, context: DaemonContext, tests: PairTests, ledger: NodeLedger) -> None:
        self.context, self.tests, self.ledger = context, tests, ledger

    def outcome(self, q: Quarantine, node: Node) -> BackToService | OutOfService | None:
        """Return what becomes of the node; None while a test is under way or awaited."""
        context = self.context
        if not self.tests.wanted:
            return BackToService("passed its recheck")
        if self.tests.of(q.node) is not None:
            return None
        now_s, config = context.now_s(), context.config
        strikes = self.ledger.strikes(q.node, now_s - config.quarantine.strike_window_days * DAY_S)
        jobs = jobs_that_suspect(strikes, q.job_id, q.lineage)
        ends_s = q.since_s + config.quarantine.claim_limit_s if q.of_claim else math.inf
        suspect = CheckedSuspect(q.node, q.incident, q.checked_at_s or now_s, jobs, q.accused, ends_s)
        wait_s = config.nodetest.proof_wait_h * HOUR_S
        step = next_step(suspect, self.tests.past(), self._company(node), now_s=now_s, wait_s=wait_s)
        if isinstance(step, Meet):
            self.tests.begin(q.node, step.partner, q.incident)
            self._note(q, f"passed its full check; is tested with {step.partner}")
        elif isinstance(step, StayInQuarantine):
            minutes = max(0.0, step.until_s - suspect.checked_at_s) / 60.0
            self._note(q, f"{step.why}, for {minutes:.0f} min at most")
        else:
            return step
        return None

    def _company(self, node: Node) -> Company:
        context, prefix, in_tests = self.context, self.context.config.standby.prefix, self.tests.taken()
        taken = in_tests | self.tests.avoided() | {q.node for q in self.ledger.quarantines()}
        found = company(
            node,
            context.readings.cluster(),
            self.ledger.standby_checks(),
            taken=taken,
            until_s=context.now_s() + self.tests.lasts_s,
            config=context.config,
        )
        spare = in_spare_pools(context.readings.reservations.values(), prefix, in_tests)
        idle = found.idle if self.tests.outside_pools() < IDLE_AT_ONCE else ()
        return Company(tuple(name for name in found.standby if name in spare), idle)

    def _note(self, q: Quarantine, word: str) -> None:
        if q.word != word:
            self.ledger.waits_for(q.node, word)
            self.context.info("quarantine.proof", f"{q.node}: {word}", key=q.node)
