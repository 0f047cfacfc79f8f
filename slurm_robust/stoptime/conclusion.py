"""Makes one verdict of all tests: which nodes failed, what is undecided, what was not tested. Pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_robust.core.model import Signal, SignalKind, TestName
from slurm_robust.stoptime.alignment import AlignmentVerdict
from slurm_robust.stoptime.pairing import PairVerdict
from slurm_robust.stoptime.replay_groups import ReplayVerdict


class FindingKind(str, enum.Enum):
    """The meaning of a finding for its nodes."""

    NODE = "node"
    """The node fails."""
    LINK = "link"
    """The link between the two fails; neither node does."""
    UNDECIDED = "undecided"
    """One of the nodes fails, and the test does not tell which."""
    UNTESTED = "untested"
    """The test could not be made. It does not say anything about the node."""


@dataclass(frozen=True)
class TestFinding:
    """One result of a test; a node that passed has no finding."""

    __test__ = False

    test: TestName
    kind: FindingKind
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class StageTime:
    """The time that one stage took."""

    name: str
    took_s: float


@dataclass(frozen=True)
class TestReport:
    """The results of `srobust test`.

    Attributes:
        ended_early: Why the tests were not finished, as a sentence; empty if they were.
        bandwidth: Median GB/s of the first round of pairs, by operation.
        notes: Sentences about tests that were not made without blame for a node, and other facts.
    """

    __test__ = False

    nodes: tuple[str, ...]
    tests: tuple[TestName, ...]
    findings: tuple[TestFinding, ...] = ()
    stages: tuple[StageTime, ...] = ()
    ended_early: str = ""
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`failed` if a node or link fails, else `undecided` if anything is open, else `passed`."""
        kinds = {finding.kind for finding in self.findings}
        if kinds & {FindingKind.NODE, FindingKind.LINK}:
            return "failed"
        return "undecided" if kinds or self.ended_early else "passed"

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        """Nodes that failed a test, in the order of `nodes`."""
        failed = {node for finding in self.findings if finding.kind is FindingKind.NODE for node in finding.nodes}
        return tuple(node for node in self.nodes if node in failed)

    def signals(self, at_s: float) -> tuple[Signal, ...]:
        """Return the failures as facts for a verdict on a job: one for each node of a failed node or link."""
        return tuple(
            Signal(SignalKind.TEST_FAILED, at_s, f"test {finding.test.value}", finding.reason, node)
            for finding in self.findings
            if finding.kind in (FindingKind.NODE, FindingKind.LINK)
            for node in finding.nodes
        )

    def to_json(self) -> dict[str, Any]:
        """Return the documented object of `test --json`."""
        return {
            "verdict": self.verdict,
            "nodes": list(self.nodes),
            "tests": [test.value for test in self.tests],
            "failed_nodes": list(self.failed_nodes),
            "findings": [
                {"test": f.test.value, "kind": f.kind.value, "nodes": list(f.nodes), "reason": f.reason}
                for f in self.findings
            ],
            "stages": [{"name": stage.name, "took_s": round(stage.took_s, 2)} for stage in self.stages],
            "gb_per_s": {name: round(rate, 3) for name, rate in self.bandwidth.items()},
            "ended_early": self.ended_early,
            "notes": list(self.notes),
        }


def of_pairs(verdict: PairVerdict, test: TestName = TestName.PAIRS) -> Iterable[TestFinding]:
    """Yield the findings of the pairs test."""
    yield from (TestFinding(test, FindingKind.NODE, (n,), why) for n, why in verdict.broken_nodes.items())
    yield from (TestFinding(test, FindingKind.LINK, pair, why) for pair, why in verdict.broken_links.items())
    yield from (TestFinding(test, FindingKind.UNDECIDED, group, why) for group, why in verdict.undecided.items())
    yield from untested(test, verdict.untested)


def of_alignment(verdict: AlignmentVerdict) -> Iterable[TestFinding]:
    """Yield the findings of the alignment test."""
    test = TestName.ALIGNMENT
    yield from (TestFinding(test, FindingKind.NODE, (n,), why) for n, why in verdict.broken.items())
    yield from (TestFinding(test, FindingKind.UNDECIDED, group, why) for group, why in verdict.undecided.items())
    yield from untested(test, verdict.untested)


def of_replay(verdict: ReplayVerdict) -> Iterable[TestFinding]:
    """Yield the findings of the replay."""
    test = TestName.REPLAY
    yield from (TestFinding(test, FindingKind.NODE, (n,), why) for n, why in verdict.broken.items())
    yield from (TestFinding(test, FindingKind.UNDECIDED, group, why) for group, why in verdict.undecided.items())
    yield from untested(test, verdict.untested)


def untested(test: TestName, reasons: Mapping[str, str]) -> Iterable[TestFinding]:
    """Yield findings for nodes that a test says nothing about; nodes with an equal reason are in one finding."""
    together: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        together.setdefault(reason, []).append(node)
    for reason, nodes in together.items():
        yield TestFinding(test, FindingKind.UNTESTED, tuple(nodes), reason)


def count_of(names: Sequence[str]) -> str:
    """Return `1 node`, `5 nodes`."""
    return f"{len(names)} node{'' if len(names) == 1 else 's'}"


def in_words(findings: Iterable[TestFinding]) -> str:
    """Return how many nodes and links failed, in words; `passed` without any finding."""
    counts: dict[FindingKind, int] = defaultdict(int)
    for found in findings:
        counts[found.kind] += len(found.nodes) if found.kind in (FindingKind.NODE, FindingKind.UNTESTED) else 1
    words = {FindingKind.NODE: "failed", FindingKind.LINK: "failed link", FindingKind.UNTESTED: "not tested"}
    many = {FindingKind.LINK: "s"}
    told = (f"{n} {words.get(kind, kind.value)}{many.get(kind, '') if n > 1 else ''}" for kind, n in counts.items())
    return ", ".join(told) or "passed"


def environment_note(of_job: Mapping[str, bool]) -> str:
    """Return a sentence on whose NCCL, UCX and gloo variables the ranks of the tests had, on which nodes."""
    theirs = [node for node, found in of_job.items() if found]
    others = [node for node, found in of_job.items() if not found]
    if not others:
        return "the tests had the NCCL_, UCX_ and GLOO_ variables of the job's own ranks"
    why = "no rank of the job runs there"
    if not theirs:
        return f"the tests had this command's NCCL_, UCX_ and GLOO_ variables: {why}"
    return (
        f"the tests had the job's own NCCL_, UCX_ and GLOO_ variables, and this command's on {', '.join(others)}: {why}"
    )
