"""Says what the results of tests of a job's nodes mean for its incident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurm_robust.core.model import Conclusion, Grade, Plan, Suspect, Verdict
from slurm_robust.core.text import joined
from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.stoptime.conclusion import FindingKind, TestReport

CONFIDENCE = 0.95
"""Confidence in a node that fails a test whose partners passed: it fails again when it is tested again."""


def outcome_of(report: TestReport, left_out: Mapping[str, str], took_s: float) -> TestOutcome:
    """Return a report as the policy reads it; `left_out` has the nodes that were not tested, with the reason."""
    failed: dict[str, str] = {}
    links: dict[tuple[str, str], str] = {}
    open_: list[str] = []
    for found in report.findings:
        if found.kind is FindingKind.NODE:
            for node in found.nodes:
                own = f"{node} fails the test {found.test.value}: {found.reason}"
                failed[node] = f"{failed[node]}; {own}" if node in failed else own
        elif found.kind is FindingKind.LINK and len(found.nodes) == 2:
            one, other = found.nodes
            link = f"the link between {one} and {other}"
            links[one, other] = f"{link} fails the test {found.test.value}: {found.reason.removeprefix(f'{link}: ')}"
        else:
            open_.append(f"{found.test.value} of {', '.join(found.nodes)}: {found.reason}")
    open_ += [f"{node}: not tested: {why}" for node, why in left_out.items()]
    open_ += [report.ended_early] if report.ended_early else []
    return TestOutcome(report.tests, report.nodes, failed, links, tuple(open_), round(took_s, 3))


def not_tested(plan: Plan, why: str, took_s: float) -> TestOutcome:
    """Return the outcome of tests that could not be made: nothing is known, and no node is blamed."""
    return TestOutcome(plan.tests, plan.test_nodes, open=(why,), took_s=round(took_s, 3))


def verdict_after(before: Verdict, outcome: TestOutcome, rank_nodes: Mapping[int, str]) -> Verdict:
    """Return the verdict with the results of tests: nodes that fail, else links, else the verdict from before."""
    if not outcome.failed and not outcome.links:
        return before
    suspects = tuple(
        Suspect(node, tuple(sorted(r for r, where in rank_nodes.items() if where == node)), CONFIDENCE, why)
        for node, why in outcome.failed.items()
    )
    detail = f"tests of {len(outcome.nodes)} nodes; before them: {before.reason}"
    if not outcome.failed:
        # It is not known which of the two nodes is at fault: no node is a culprit.
        found = f"{joined(outcome.links.values())}; neither node is proven bad"
        return replace(before, reason=found, missing=(), detail=detail)
    reason = joined(outcome.failed.values())
    return replace(
        before, conclusion=Conclusion.CULPRIT, reason=reason, suspects=suspects, missing=(), corroborated=True,
        detail=detail, grade=Grade.CERTAIN,
    )  # fmt: skip
