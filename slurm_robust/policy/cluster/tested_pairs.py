"""Reads the results of tests of two nodes together: what they say of each node, and what a suspect does next. Pure.

A test that passes proves both nodes healthy. If two nodes fail together, the test does not tell which node is broken:
each has to be tested with another node. A node is broken if it fails together with two other nodes, and these two have
not failed with any other node.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slurm_robust.core.model import TestName
from slurm_robust.core.text import shortened

MARK = "srobust-test: "
"""Begins the Comment of a job that tells the daemon of its test."""
REASON_MAX_CHARS = 150
NEEDS_TWO = (TestName.PAIRS, TestName.ALIGNMENT)
"""Tests that say something about two nodes only."""
UNTESTED_TRIES = 3
"""Tests that could not run, after which a suspect's full check counts alone."""
BACKOFF_S = 60.0
MOST_TESTS = 8
"""The most tests in one quarantine; after them the decision is made from what is known."""


class PairResult(str, enum.Enum):
    """The result of a test of two nodes."""

    PASSED = "passed"
    FAILED = "failed"
    """At least one of the two nodes fails by itself."""
    TOGETHER = "failed together"
    """One of the two nodes fails, or the link between them, and the test does not tell which."""
    UNTESTED = "not tested"
    """The test could not be made. It says nothing about either node."""


class PairReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report of a job that tests two nodes to the daemon.

    Attributes:
        failed: Nodes that fail by themselves → the evidence.
        together: The evidence that the two nodes fail, if it does not tell which of them; else empty.
        untested: Why a test of both nodes could not be made; empty if all tests were made.
    """

    failed: dict[str, str] = {}
    together: str = ""
    untested: str = ""

    @property
    def result(self) -> PairResult:
        """The worst that is known."""
        if self.failed:
            return PairResult.FAILED
        if self.together:
            return PairResult.TOGETHER
        return PairResult.UNTESTED if self.untested else PairResult.PASSED

    @property
    def reason(self) -> str:
        """The evidence as one sentence; empty after a pass."""
        return "; ".join(f"{node}: {why}" for node, why in self.failed.items()) or self.together or self.untested

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> PairReport:
        """Make the report from what `srobust test --json` prints.

        A full check without a result is no obstacle: each node has already passed a full check by itself.
        """
        failed: dict[str, str] = {}
        together, untested = "", [str(report["ended_early"])]
        for finding in report["findings"]:
            reason = shortened(f"{finding['test']}: {finding['reason']}", REASON_MAX_CHARS)
            if finding["kind"] == "node":
                failed |= {node: reason for node in finding["nodes"] if node not in failed}
            elif finding["kind"] == "untested":
                # If one node has no PyTorch, the other node has no partner, which is reported first.
                untested.insert(0, reason if finding["test"] in NEEDS_TWO else "")
            else:
                together = together or reason
        # Keep only the worst finding: a comment is short.
        if failed or together:
            return cls(failed, "" if failed else together)
        return cls(untested=shortened("; ".join(dict.fromkeys(filter(None, untested))), 2 * REASON_MAX_CHARS))

    def comment(self) -> str:
        """Return the report as the job's Comment carries it."""
        return MARK + msgspec.json.encode(self).decode()


def parse(comment: str) -> PairReport | None:
    """Return the report in a job's Comment; None if there is none."""
    _, mark, text = comment.partition(MARK)
    try:
        return msgspec.json.decode(text, type=PairReport) if mark else None
    except msgspec.DecodeError:
        return None


@dataclass(frozen=True)
class PairTest:
    """One test of two nodes, as the journal keeps it.

    Attributes:
        node: The suspect, or the standby node that is new.
        partner: The node that it is tested with.
        purpose: `suspect` or `standby`.
        key: The incident, or the pool.
        reservation: The reservation in which the test runs.
        job_id: The test's job; None until it was submitted.
        ended_at_s: None until the test has ended and its reservation is gone.
        result: A `PairResult`; empty until there is a result.
        failed: The nodes that failed by themselves, with commas between.
        reason: The evidence.
    """

    number: int
    node: str
    partner: str
    purpose: str
    key: str
    reservation: str
    begun_at_s: float
    job_id: int | None = None
    ended_at_s: float | None = None
    result: str = ""
    failed: str = ""
    reason: str = ""

    @property
    def nodes(self) -> tuple[str, str]:
        """Return the node and its partner."""
        return self.node, self.partner

    def other(self, node: str) -> str:
        """Return the node that was tested together with `node`."""
        return self.partner if node == self.node else self.node


def failed_with(node: str, tests: Sequence[PairTest]) -> frozenset[str]:
    """Return nodes with which `node` has failed together since it last passed a test; `tests` are in order of time."""
    others: set[str] = set()
    for test in tests:
        if node not in test.nodes:
            continue
        if test.result == PairResult.PASSED:
            others.clear()
        elif test.result == PairResult.TOGETHER:
            others.add(test.other(node))
    return frozenset(others)


def broken_by_company(node: str, tests: Sequence[PairTest]) -> tuple[str, ...]:
    """Return the nodes that failed with this node and no other: two or more prove it broken; empty if not proven.

    A node that also failed together with other nodes does not count as a witness: it may be the broken one itself.
    """
    with_it = failed_with(node, tests)
    witnesses = tuple(sorted(other for other in with_it if failed_with(other, tests) <= {node}))
    return witnesses if len(witnesses) > 1 else ()


def failed_by_themselves(tests: Sequence[PairTest]) -> frozenset[str]:
    """Return nodes that failed by themselves since they last passed a test; `tests` are in order of time."""
    found: set[str] = set()
    for test in tests:
        if test.result == PairResult.PASSED:
            found.difference_update(test.nodes)
        found.update(filter(None, test.failed.split(",")))
    return frozenset(found)


@dataclass(frozen=True)
class CheckedSuspect:
    """A node in quarantine that has passed its full check.

    Attributes:
        key: The incident because of which the node is in quarantine; its tests have the same key.
        checked_at_s: When the node passed its full check.
        jobs: How many different jobs have suspected the node within the strike window, the present job included.
        accused: The failed test that brought the node here as the partner; empty if a job suspected the node.
        claim_ends_at_s: When the quarantine ends if no test has failed; infinite if more than claims brought it here.
    """

    node: str
    key: str
    checked_at_s: float
    jobs: int
    accused: str = ""
    claim_ends_at_s: float = math.inf


@dataclass(frozen=True)
class Meet:
    """Test the suspect together with this node."""

    partner: str


@dataclass(frozen=True)
class StayInQuarantine:
    """Nothing can be done now; the suspect stays in quarantine until `until_s` at the longest."""

    why: str
    until_s: float


@dataclass(frozen=True)
class BackToService:
    """Return the suspect to service, with a strike.

    Attributes:
        unproven: Two jobs suspected the node, and no test could be made: a person is told.
        failed_test: The test that the node failed together with another node, before it passed; empty for none.
    """

    why: str
    unproven: bool = False
    failed_test: str = ""


@dataclass(frozen=True)
class OutOfService:
    """The suspect is drained."""

    why: str


SuspectStep = Meet | StayInQuarantine | BackToService | OutOfService


@dataclass(frozen=True)
class Company:
    """The nodes that a suspect can be tested with now.

    Attributes:
        standby: Standby nodes that are free and passed their own tests, best first.
        idle: Free nodes outside all reservations, which would have to be reserved first.
    """

    standby: Sequence[str] = ()
    idle: Sequence[str] = ()


@dataclass(frozen=True)
class _Past:
    """The ended tests of one quarantine."""

    tests: Sequence[PairTest]
    proven_by: str = ""
    together: tuple[PairTest, ...] = field(default=())
    untested: tuple[PairTest, ...] = field(default=())


def next_step(  # noqa: PLR0911 (a list of cases, each with its step)
    suspect: CheckedSuspect, tests: Sequence[PairTest], company: Company, *, now_s: float, wait_s: float
) -> SuspectStep:
    """Return the next step for a suspect that has passed its full check.

    Args:
        suspect: The node.
        tests: All ended tests, in order of time.
        company: The nodes that the suspect can be tested with.
        now_s: The time.
        wait_s: How long the suspect waits, at most, for a test with a result.
    """
    past = _past(suspect, tests)
    if decided := _decided(suspect, past, tests):
        return decided
    # If so, a passed full check alone is not enough.
    proof = suspect.jobs > 1 or bool(suspect.accused or past.together)
    end_s = suspect.checked_at_s + wait_s
    if not past.together:
        end_s = min(end_s, suspect.claim_ends_at_s)
    if len(past.untested) >= (UNTESTED_TRIES if proof else 1):
        return _undecided(suspect, past, f"the tests with another node could not run ({past.untested[-1].reason})")
    if now_s >= end_s or len(past.tests) >= MOST_TESTS:
        return _undecided(suspect, past, "no test with another node could tell in time")
    if past.untested and now_s < past.untested[-1].begun_at_s + BACKOFF_S * 2 ** len(past.untested):
        why = f"not tested with another node ({past.untested[-1].reason}), which is tried again"
        return StayInQuarantine(why, end_s)
    # A node that failed with the suspect must pass elsewhere first: testing the same two nodes again tells nothing new.
    met = {t.partner for t in past.together}
    free = [name for name in (*company.standby, *(company.idle if proof else ())) if name not in met]
    if free:
        return Meet(free[0])
    if not proof:
        return BackToService("passed its full check; no proven node was free to meet it")
    return StayInQuarantine(f"{_accusation(suspect, past)}: it waits for a free node to be tested with", end_s)


def _past(suspect: CheckedSuspect, tests: Sequence[PairTest]) -> _Past:
    mine = [t for t in tests if t.node == suspect.node and t.key == suspect.key]
    passed = next((t.partner for t in mine if t.result == PairResult.PASSED), "")
    together = tuple(t for t in mine if t.result == PairResult.TOGETHER)
    return _Past(mine, passed, together, tuple(t for t in mine if t.result == PairResult.UNTESTED))


def _decided(suspect: CheckedSuspect, past: _Past, tests: Sequence[PairTest]) -> SuspectStep | None:
    own = next((t for t in past.tests if suspect.node in t.failed.split(",")), None)
    if own is not None:
        return OutOfService(own.reason)
    if past.proven_by:
        failed = past.together[0].reason if past.together else suspect.accused
        return BackToService(f"passed its full check and its test with {past.proven_by}", failed_test=failed)
    # For a node that came here as a partner, only tests of this quarantine count: it is tested anew here.
    elsewhere = [t for t in tests if suspect.node not in t.nodes]
    if witnesses := broken_by_company(suspect.node, [*elsewhere, *past.tests]):
        names = " and with ".join(witnesses)
        return OutOfService(f"fails with {names}, which passed their own tests: {past.together[0].reason}")
    return None


def _undecided(suspect: CheckedSuspect, past: _Past, why: str) -> SuspectStep:
    """Decide at the end of the wait. Only a failed test takes a node out of service: claims alone do not."""
    if past.together or suspect.accused:
        return OutOfService(f"{_accusation(suspect, past)}; {why}")
    if suspect.jobs > 1:
        return BackToService(f"{_accusation(suspect, past)}; {why}", unproven=True)
    return BackToService(f"passed its full check; {why}")


def _accusation(suspect: CheckedSuspect, past: _Past) -> str:
    if past.together:
        return f"failed together with {past.together[-1].partner} ({past.together[-1].reason})"
    return suspect.accused or f"{suspect.jobs} jobs suspected it, and its full check passed"
