"""Judges a pair by the answers of its nodes. Pure."""

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
"""Errors of a rank whose partner has failed: the partner's own error goes first."""


def group_result(
    group: Group,
    answers: Mapping[str, Mapping[str, Any]],
    gone: Mapping[str, str],
    limit_s: float,
    *,
    cut: bool = False,
) -> GroupResult:
    """Return the result of one group.

    Args:
        group: The members of the group.
        answers: Member → its agent's answer; a member without an answer ran out of time.
        gone: Node that left the test → the reason.
        limit_s: How long the group had.
        cut: The budget left it less time than such a test may need: if it did not end, that is not a failure.
    """
    absent = frozenset(group) & frozenset(gone)
    if why := "; ".join(gone[node] for node in sorted(absent)) or _not_met(group, answers):
        return GroupResult(group, PairOutcome.NOT_RUN, why, absent=absent)
    errors = {node: str(answers[node]["error"]) for node in group if answers.get(node, {}).get("error")}
    if errors:
        excused = [f"{node}: {text}" for node, text in errors.items() if any(part in text.lower() for part in NO_FAULT)]
        if excused:
            return GroupResult(group, PairOutcome.NOT_RUN, excused[0])
        own = {node: text for node, text in errors.items() if not any(part in text.lower() for part in _AFTERMATH)}
        said = "; ".join(f"{node} says {text}" for node, text in (own or errors).items())
        return _failed(group, said, limit_s, cut=cut and not own)
    wrong = [
        f"{node} received {' and '.join(told)}"
        for node in group
        if (told := _wrong(answers.get(node, {}).get("wrong", {})))
    ]
    if wrong:
        return GroupResult(group, PairOutcome.FAILED, "; ".join(wrong))
    late = [node for node in group if "gb_per_s" not in answers.get(node, {})]
    if late:
        return _failed(group, f"no end within {limit_s:.0f} s on {', '.join(late)}", limit_s, cut=cut)
    operations = answers[group[0]]["gb_per_s"]
    rates = {name: min(float(answers[node]["gb_per_s"][name]) for node in group) for name in operations}
    return GroupResult(group, PairOutcome.PASSED, "", rates)


def _not_met(group: Group, answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why the ranks of a group could not meet, as a sentence; empty if the group failed for another reason.

    A rank that failed before it tried to meet the others is at fault itself. A rank that tried may have met a stranger.
    """
    failed = [told for node in group if not {"wrong", "unjoined"} & {*(told := answers.get(node, {}))}]
    said = [f"{node} says {why}" for node in group if (why := answers.get(node, {}).get("unjoined"))]
    return f"its ranks could not meet: {'; '.join(said)}" if said and all(t.get("joined") for t in failed) else ""


def ended_badly(answer: Mapping[str, Any]) -> bool:
    """Return whether a group need not wait for its other members after this answer."""
    return "error" in answer or "unjoined" in answer


def _wrong(counts: Mapping[str, int]) -> list[str]:
    """Return words such as `12 wrong numbers in all_gather` and `24 in all_reduce`."""
    found = [(count, operation) for operation, count in counts.items() if count]
    return [
        f"{count} wrong numbers in {operation}" if n == 0 else f"{count} in {operation}"
        for n, (count, operation) in enumerate(found)
    ]


def _failed(group: Group, reason: str, limit_s: float, *, cut: bool) -> GroupResult:
    """Return a failure; with `cut`, the result of a test that could not run, since only time was lacking."""
    if cut:
        return GroupResult(group, PairOutcome.NOT_RUN, f"no end within the {limit_s:.0f} s that the budget left")
    return GroupResult(group, PairOutcome.FAILED, reason)
