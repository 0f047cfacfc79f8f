"""What the answers of a pair's nodes say about the pair. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.stoptime.pairing import Group, GroupResult, PairOutcome

NO_FAULT = (
    "address already in use",
    "eaddrinuse",
    "out of memory",
    "cannot allocate memory",
    "rank server has ended",
    "cannot be started",
    "name or service not known",
    "temporary failure in name resolution",
)
"""Errors of a test that could not run: a taken port, memory that others use, a name that does not resolve."""
_AFTERMATH = ("connection closed by peer", "connection reset", "broken pipe", "timed out", "timeout", "remote process")
"""What a rank says when its partner has failed: the partner's own words come first."""


def group_result(
    group: Group, answers: Mapping[str, Mapping[str, Any]], gone: Mapping[str, str], limit_s: float
) -> GroupResult:
    """The result of one group.

    Args:
        group: Its members.
        answers: What each member's agent told; a member without an answer ran out of time.
        gone: Nodes that left the test, each with the reason.
        limit_s: How long the group had.
    """
    absent = frozenset(group) & frozenset(gone)
    if absent:
        reason = "; ".join(gone[node] for node in sorted(absent))
        return GroupResult(group, PairOutcome.NOT_RUN, reason, absent=absent)
    errors = {node: str(answers[node]["error"]) for node in group if answers.get(node, {}).get("error")}
    if errors:
        excused = [f"{node}: {text}" for node, text in errors.items() if any(part in text.lower() for part in NO_FAULT)]
        if excused:
            return GroupResult(group, PairOutcome.NOT_RUN, excused[0])
        own = {node: text for node, text in errors.items() if not any(part in text.lower() for part in _AFTERMATH)}
        said = "; ".join(f"{node} says {text}" for node, text in (own or errors).items())
        return GroupResult(group, PairOutcome.FAILED, said)
    wrong = [
        f"{node} received {count} wrong numbers in {operation}"
        for node in group
        for operation, count in answers.get(node, {}).get("wrong", {}).items()
        if count
    ]
    if wrong:
        return GroupResult(group, PairOutcome.FAILED, "; ".join(wrong))
    late = [node for node in group if "gb_per_s" not in answers.get(node, {})]
    if late:
        return GroupResult(group, PairOutcome.FAILED, f"no end within {limit_s:.0f} s on {', '.join(late)}")
    operations = answers[group[0]]["gb_per_s"]
    rates = {name: min(float(answers[node]["gb_per_s"][name]) for node in group) for name in operations}
    return GroupResult(group, PairOutcome.PASSED, "", rates)
