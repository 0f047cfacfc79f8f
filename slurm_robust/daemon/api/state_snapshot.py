"""What the daemon shows of itself: one JSON document, for `srobust status`, the HTTP side and other tools."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_robust import __version__
from slurm_robust.daemon.controllers.claim_intake import MARK
from slurm_robust.daemon.core import printable
from slurm_robust.daemon.store.journal import ActionRow, IncidentRow, Journal
from slurm_robust.policy.cluster.node_states import QUARANTINE_PREFIX, drained_by_us, foreign, lost_gres
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.values import expand, fold

if TYPE_CHECKING:
    from slurm_robust.daemon.service import Daemon

FILE_NAME = "state.json"
DAY_S = 86400.0
INCIDENTS = 100
"""Newest incidents that a snapshot carries; the journal has them all."""


def show_incident(row: IncidentRow, actions: list[ActionRow]) -> dict[str, Any]:
    """An incident as `incidents --json` shows it."""
    return {
        "id": row.id,
        "key": row.key,
        "job": row.job,
        "job_id": row.job_id,
        "user": row.user,
        "attempt": {"cluster": row.cluster, "job": row.job, "restart_count": row.restart, "start_at_s": row.start_at_s},
        "kind": row.kind,
        "mode": row.mode,
        "state": row.state,
        "outcome": row.outcome,
        "reason": row.reason,
        "opened_at_s": row.opened_at_s,
        "closed_at_s": row.closed_at_s,
        "lineage": row.lineage,
        "verdict": {k: v for k, v in row.verdict.items() if k not in ("road", "evict")},
        "plan": _plan(row),
        "actions": [
            {
                "kind": a.kind,
                "target": a.target,
                "reason": a.reason,
                "planned": a.planned,
                "calls": a.calls,
                "called_at_s": a.called_at_s,
                "done_at_s": a.done_at_s,
                "error": a.error,
            }
            for a in actions
        ],
        "times": dict(row.times),
        "report": row.report,
    }


def _plan(row: IncidentRow) -> dict[str, Any] | None:
    r, v = row.recovery, row.verdict
    if r is None and "road" not in v:
        return None
    if r is None:  # the job's own plan: of what the daemon does in a recovery it has nothing
        own = {"road": v["road"], "reason": v["why"], "evict": v["evict"], "kept": [], "standby": [], "seat": ""}
        return {**own, "time_limit_min": None}
    return {
        "road": r.road.value,
        "reason": r.reason,
        "evict": list(r.bad),
        "kept": list(r.kept),
        "standby": list(r.standby),
        "seat": r.seat,
        "time_limit_min": r.time_limit_min,
    }


def recent_incidents(journal: Journal, limit: int = INCIDENTS) -> list[dict[str, Any]]:
    """The newest incidents, newest first."""
    return [show_incident(row, journal.actions(row.key)) for row in journal.incidents(limit=limit)]


def room_of(node: Node, *, quarantined: bool, seat: str, standby: bool, job: str) -> str:
    """The room that a node is in: what keeps it from others counts before what runs on it."""
    if node.drained:
        return "drained"
    if quarantined:
        return "quarantine"
    if job:
        return "active"
    if seat:
        return "seat"
    return "standby" if standby else "idle"


def take(daemon: Daemon) -> dict[str, Any]:
    """The whole snapshot."""
    core, world = daemon.core, daemon.core.world
    reservations = list(world.reservations.values())
    in_quarantine = {q.node: q for q in daemon.ledger.quarantines()}
    strikes = daemon.ledger.all_strikes(core.now_s() - core.config.quarantine.strike_window_days * DAY_S)
    seats = {n: r.name for r in reservations if r.name.startswith(core.config.seat.prefix) for n in expand(r.nodes)}
    pools = {r.name: r for r in reservations if r.name.startswith(core.config.standby.prefix + "-")}
    standby = {n for r in pools.values() for n in expand(r.nodes)}
    held = {n for r in reservations if r.name.startswith(QUARANTINE_PREFIX) for n in expand(r.nodes)}
    at_work: dict[str, str] = {}
    for job in world.jobs.values():
        if job.state == "RUNNING" or job.completing:
            at_work.update(dict.fromkeys(job.nodes, job.ref.address))
    nodes = []
    for node in sorted(world.nodes.values(), key=lambda n: n.name):
        q = in_quarantine.get(node.name)
        job_address = at_work.get(node.name, "")
        room = room_of(
            node,
            quarantined=bool(q) or node.name in held,
            seat=seats.get(node.name, ""),
            standby=node.name in standby,
            job=job_address,
        )
        owner = (
            "" if not node.drained else "srobust" if drained_by_us(node) else "foreign" if foreign(node) else "slurm"
        )
        nodes.append(
            {
                "name": node.name,
                "room": room,
                "state": "+".join((node.state, *sorted(node.flags))),
                "job": job_address,
                "reason": node.reason if node.drained else "",
                "owner": owner,
                "incident": q.incident if q else "",
                "word": f"{q.why}; {q.word}".strip("; ") if q else "",
                "since_s": q.since_s if q else (node.reason_at_s or None) if node.drained else None,
                "strikes": strikes.get(node.name, 0),
                "partitions": list(node.partitions),
            }
        )
    return {
        "at_s": round(core.now_s(), 3),
        "cluster": core.cluster_name,
        "mode": core.mode.value,
        "version": __version__,
        "pid": os.getpid(),
        "account": core.account,
        "slurm_calls": core.calls,
        "breaker": {"open": bool(daemon.breaker.why_open), "why": daemon.breaker.why_open},
        "lost_gres": list(lost_gres(world.nodes.values())),
        "nodes": nodes,
        "standby": [
            {
                "name": p.name,
                "partition": p.kind.partition,
                "gres": p.kind.gres,
                "nodes": list(p.nodes),
                "held": fold(expand(pools[p.name].nodes)) if p.name in pools else "",
                "unchecked": fold(sorted(set(p.nodes) & world.unchecked)),
                "wanted": core.config.standby.size,
                "short": p.short,
                "ends_at_s": pools[p.name].end_at_s if p.name in pools else None,
            }
            for p in daemon.standby.pools
        ],
        "jobs": [_job(daemon, job) for job in world.jobs.values() if job.ref.job_id in daemon.intake.supervised],
        "waiting": [_waiting(job) for job in world.jobs.values() if job.state == "PENDING" and MARK in job.comment],
        "incidents": recent_incidents(core.journal),
        "troubles": list(core.troubles.values()),
    }


def _waiting(job: Job) -> dict[str, Any]:
    return {
        "job": job.ref.address,
        "user": job.user,
        "name": printable(job.name),
        "restart_count": job.restart_count,
        "reason": printable(job.reason),
    }


def _job(daemon: Daemon, job: Job) -> dict[str, Any]:
    claim = daemon.intake.supervised[job.ref.job_id]
    following = daemon.recoveries.of_job(job.ref.job_id)
    return {
        "job": job.ref.address,
        "user": job.user,
        "name": printable(job.name),
        "partition": job.partition,
        "nodes": fold(job.nodes),
        "restart_count": job.restart_count,
        "started_at_s": job.start_at_s,
        "claim": claim.state,
        "suspected_at_s": claim.suspected_at_s or None,
        "lineage": claim.lineage,
        "step": claim.step,
        "resume_step": claim.resume_step,
        "fruitless": claim.fruitless,
        "incident": following.row.id if following else claim.incident,
    }


def write(state_dir: Path, snapshot: Mapping[str, Any]) -> None:
    """Put the snapshot where everyone may read it, whole or not at all."""
    path = state_dir / FILE_NAME
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(snapshot, separators=(",", ":")), encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        # Half of it would take what little is left of a full disk.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
