"""Remembers what earlier runs saw: how often in a row a fault was seen, and with which job it began.

One file for all checks, `looks.json` in `nodecheck.cache_dir`. Times are seconds since boot; a new boot starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status

NAME = "looks"
STRIKES, WINDOW = "strikes", "window_s"
"""The options that every check of the periodic stage has."""

_MOST = 1 << 53
_BAD = (Status.FAIL, Status.WARN)


def weigh(
    report: NodeReport,
    kept: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
    *,
    boot_id: str,
    now_s: float,
    job_id: int | None = None,
) -> tuple[NodeReport, dict[str, Any]]:
    """Weigh a run with those before it.

    In the periodic stage a check with two or more strikes only warns until so many runs in a row had the fault, each
    within the window of the one before. A run with `unknown` changes nothing. A finding that an epilog is the first to
    have belongs to the job that ends (`job_id`); later findings name that job.

    `kept` is from this function in the last run; anything else counts as no run. `settings` has `strikes` and
    `window_s` by check; a check that is not in it has one strike. `now_s` is in seconds since boot.

    Returns:
        The report to act on, and what to keep.
    """
    before = kept.get("checks") if kept.get("boot_id") == boot_id else None
    before = before if isinstance(before, Mapping) else {}
    looks: dict[str, Any] = {name: entry for name, entry in before.items() if isinstance(entry, Mapping)}
    results = []
    for result in report.results:
        entry = looks.get(result.name, {})
        status = result.finding.status
        if status is Status.UNKNOWN:
            results.append(result)
            continue
        if status not in _BAD:
            looks.pop(result.name, None)
            results.append(result)
            continue
        known = entry if entry.get("reason") == result.finding.reason else {}
        chosen = settings.get(result.name, {})
        count, last_s = _number(entry, "looks"), _number(entry, "last_s")
        if status is not Status.FAIL:
            count = 0
        elif report.stage == "periodic":
            count = int(count) + 1 if 0 <= now_s - last_s <= chosen.get(WINDOW, 0.0) else 1
        job = known.get("job") if known else (job_id if report.stage == "epilog" else None)
        looks[result.name] = {"reason": result.finding.reason, "looks": count, "last_s": now_s, "job": job}
        finding = _with_job(result.finding, job, now=not known)
        strikes = int(chosen.get(STRIKES, 1))
        if status is Status.FAIL and report.stage == "periodic" and count < strikes:
            finding = _not_yet(finding, int(count), strikes)
        results.append(Result(result.name, finding, result.duration_ms))
    return replace(report, results=tuple(results)), {"boot_id": boot_id, "checks": looks}


def _number(entry: Mapping[str, Any], name: str) -> float:
    value = entry.get(name)
    # Not more than a float counts exactly, and no NaN: the kept values may be damaged.
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST else 0


def _with_job(finding: Finding, job: Any, *, now: bool) -> Finding:
    if not isinstance(job, int):
        return finding
    when = f"seen as job {job} ended" if now else f"since job {job}"
    evidence = {**finding.evidence, "seen_by_job": job}
    return replace(finding, sentence=f"{finding.sentence} ({when})", evidence=evidence)


def _not_yet(finding: Finding, count: int, strikes: int) -> Finding:
    evidence = {**finding.evidence, "look": count, "strikes": strikes}
    return replace(
        finding, status=Status.WARN, sentence=f"{finding.sentence} (run {count} of {strikes})", evidence=evidence
    )
