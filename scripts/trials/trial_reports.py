"""What srobust reported about a job, as facts of a trial: story lines and the daemon's incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_DONE = ("decided", "relaunched", "claimed", "stopped", "gave-up")
_HARMLESS = ("alert_only", "")


def facts(story: Sequence[dict[str, Any]], incidents: Sequence[dict[str, Any]], fault_at_s: float) -> dict[str, Any]:
    """The fields of `trial_rules.Facts` that come from srobust's own reports.

    Args:
        story: Lines of `story.jsonl`.
        incidents: As `srobust incidents JOB --json` gives them.
        fault_at_s: Earlier story lines are left out.
    """
    after = [line for line in story if line["at_s"] >= fault_at_s]
    decided = [line for line in after if line["kind"] == "decided" and line.get("road") not in _HARMLESS]
    suspected = [line for line in after if line["kind"] == "suspected"]
    lost = [one for one in incidents if one.get("kind") == "node_lost" and one.get("opened_at_s", 0) >= fault_at_s]
    plans = [one["plan"] for one in incidents if one.get("plan") and one.get("opened_at_s", 0) >= fault_at_s]
    suspects = [line for line in after if line["kind"] == "suspect"]
    verdicts = [(one.get("verdict") or {}) for one in lost]
    roads = [line["road"] for line in decided] or [plan["road"] for plan in plans]
    reasons = [line["text"] for line in decided] or [plan["reason"] for plan in plans]
    return {
        "detected": next((line["text"] for line in suspected), next((v.get("why", "") for v in verdicts), "")),
        "suspected_s": _first([line["at_s"] for line in suspected] + [one["opened_at_s"] for one in lost], fault_at_s),
        "decided_s": _first(
            [line["at_s"] for line in decided]
            + [at for one in lost if (at := one.get("times", {}).get("accepted")) is not None],
            fault_at_s,
        ),
        "road": roads[-1] if roads else "",
        "reason": reasons[-1] if reasons else "",
        "blamed": _nodes([line.get("node", "") for line in suspects], *(v.get("suspects", []) for v in verdicts)),
        "evicted": _nodes(*(line.get("evict", []) for line in decided), *(plan.get("evict", []) for plan in plans)),
        "acted": bool(decided) or bool(plans) or any(line["kind"] in _DONE[1:] for line in after),
        "captures": sum(line["kind"] == "captured" for line in after),
        "messages": "\n".join([line["text"] for line in after] + [one.get("reason", "") for one in incidents]),
    }


def _first(times_s: Iterable[float], since_s: float) -> float | None:
    found = min(times_s, default=None)
    return None if found is None else round(found - since_s, 1)


def _nodes(*lists: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({node for some in lists for node in some if node}))
