"""The daemon's state as one JSON document, for `srobust status`, the HTTP side and other tools."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slurm_robust import __version__, fault_marker
from slurm_robust.daemon.context import DAY_S, printable
from slurm_robust.daemon.controllers.claim_intake import MARK
from slurm_robust.daemon.store.journal import ActionRow, IncidentRow, Journal
from slurm_robust.policy.cluster.node_states import (
    QUARANTINE_PREFIX,
    Pool,
    drained_by_us,
    foreign,
    in_reservations,
    lost_gres,
    state_of,
)
from slurm_robust.policy.cluster.recovery_plan import NODE_FAULT, NODE_LOST
from slurm_robust.policy.cluster.strikes import by_user, counted
from slurm_robust.slurm.client import Job, Node
from slurm_robust.slurm.values import expand, fold

if TYPE_CHECKING:
    from slurm_robust.daemon.service import Daemon

FILE_NAME = "state.json"
INCIDENTS = 100
"""Newest incidents that a snapshot carries; the journal has them all."""


def show_incident(row: IncidentRow, actions: list[ActionRow]) -> dict[str, Any]:
    """An incident as `incidents --json` shows it."""
    incident = row.incident
    return {
        "id": incident.id,
        "key": row.key,
        "job": incident.job,
        "job_id": row.job_id,
        "user": row.user,
        "attempt": asdict(row.attempt),
        **{key: getattr(row, key) for key in ("kind", "mode", "state", "outcome")},
        "reason": incident.outcome,
        "opened_at_s": incident.opened_at_s,
        "closed_at_s": row.closed_at_s,
        "lineage": row.lineage,
        "verdict": _verdict(row),
        "plan": _plan(row),
        "actions": [{k: v for k, v in vars(a).items() if k not in ("seq", "args")} for a in actions],
        "times": dict(incident.times),
        "report": row.report,
    }


def _verdict(row: IncidentRow) -> dict[str, Any]:
    verdict = row.incident.verdict
    if verdict is None:
        return {}
    shown = {
        "conclusion": verdict.conclusion.value,
        "confidence": row.confidence,
        "why": verdict.reason,
        "suspects": [suspect.node for suspect in verdict.suspects],
    }
    return shown if row.kind in (NODE_LOST, NODE_FAULT) else {**shown, "step": row.step, "at_s": row.claimed_at_s}


def _plan(row: IncidentRow) -> dict[str, Any] | None:
    plan, recovery = row.incident.plan, row.recovery
    if plan is None:
        return None
    return {
        "road": plan.road.value,
        "reason": plan.reason,
        "evict": list(plan.evict),
        # Of a job's own plan, the daemon knows no more.
        "kept": list(recovery.kept) if recovery else [],
        "standby": list(recovery.standby) if recovery else [],
        "seat": recovery.seat if recovery else "",
        "time_limit_min": recovery.time_limit_min if recovery else None,
    }


def recent_incidents(journal: Journal, limit: int = INCIDENTS) -> list[dict[str, Any]]:
    """The newest incidents, newest first."""
    return [show_incident(row, journal.actions(row.key)) for row in journal.incidents(limit=limit)]


@dataclass
class Shown:
    """Parts of the last snapshot, taken over into the next one where nothing in them has changed."""

    nodes: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = field(default_factory=dict)
    """By name: what the row was made from, and the row."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    incidents_at: tuple[int, int] = (-1, -1)
    """The journal's revision that they were read from."""


class Revision(NamedTuple):
    """What a snapshot is made from: two that are alike give the same one, but for its time and what grows old."""

    objects: tuple[object, ...]
    values: tuple[object, ...]

    def same(self, other: Revision | None) -> bool:
        """True where nothing has changed since the other one."""
        if other is None or self.values != other.values:
            return False
        # The readings are other objects where they have changed: comparing them would take longer than a snapshot.
        return all(one is another for one, another in zip(self.objects, other.objects, strict=True))


def revision(daemon: Daemon) -> Revision:
    """What a snapshot would be made from now."""
    context, readings = daemon.context, daemon.context.readings
    values = (context.mode, *context.troubles.values(), readings.unchecked, readings.at_check)
    pools = tuple(daemon.standby_pools.pools)
    return Revision(
        (readings.picture, readings.jobs, readings.reservations), (*values, pools, context.journal.revision)
    )


def take(daemon: Daemon, shown: Shown | None = None) -> dict[str, Any]:
    """The whole snapshot; `shown` remembers its parts for the next one."""
    context, readings, shown = daemon.context, daemon.context.readings, shown or Shown()
    supervised = daemon.claim_intake.supervised
    if shown.incidents_at != context.journal.revision:
        shown.incidents_at = context.journal.revision
        shown.incidents = recent_incidents(context.journal)
    return {
        "at_s": round(context.now_s(), 3),
        "cluster": context.cluster_name,
        "mode": context.mode.value,
        "version": __version__,
        "pid": os.getpid(),
        "account": context.account,
        "slurm_calls": context.calls,
        "breaker": {"open": bool(daemon.breaker.why_open), "why": daemon.breaker.why_open},
        "lost_gres": list(lost_gres(readings.picture.gres_used.values())),
        "nodes": _nodes(daemon, shown),
        "standby": [_pool(daemon, pool) for pool in daemon.standby_pools.pools],
        "jobs": [_job(daemon, job) for job in readings.jobs.values() if job.ref.job_id in supervised],
        "waiting": [
            _waiting(daemon, job) for job in readings.jobs.values() if job.state == "PENDING" and MARK in job.comment
        ],
        "incidents": shown.incidents,
        "troubles": list(context.troubles.values()),
    }


def _nodes(daemon: Daemon, last: Shown) -> list[dict[str, Any]]:
    context, readings, config = daemon.context, daemon.context.readings, daemon.context.config
    reservations = readings.reservations.values()
    quarantines = {q.node: q for q in daemon.ledger.quarantines()}
    strikes = daemon.ledger.all_strikes(context.now_s() - config.quarantine.strike_window_days * DAY_S)
    seats = in_reservations(reservations, config.seat.prefix)
    pools = in_reservations(reservations, config.standby.prefix + "-")
    quarantined = in_reservations(reservations, QUARANTINE_PREFIX) | frozenset(quarantines)
    jobs = {n: j.ref.address for j in readings.jobs.values() if j.state == "RUNNING" or j.completing for n in j.nodes}
    repairs = daemon.repairs.shown()
    rows = dict[str, tuple[tuple[object, ...], dict[str, Any]]]()
    for name in sorted(readings.nodes):
        node, q, job = readings.nodes[name], quarantines.get(name), jobs.get(name, "")
        repair, struck = repairs.get(name), strikes.get(name, ())
        of = (node, name in quarantined, name in seats, name in pools, job, q, struck, repair)
        known = last.nodes.get(name)
        if known is not None and known[0] == of:
            rows[name] = known
            continue
        state = state_of(node, quarantined=of[1], seat=of[2], standby=of[3], job=bool(job)).value
        row = {
            "name": name,
            "node_state": state,
            "room": state,  # its name up to version 0.1
            "state": "+".join((node.state, *sorted(node.flags))),
            "job": job,
            "reason": node.reason if node.drained else "",
            "owner": _drained_by(node),
            "incident": q.incident if q else "",
            "word": f"{q.why}; {q.word}".strip("; ") if q else _marked(node),
            "since_s": q.since_s if q else (node.reason_at_s or None) if node.drained else None,
            "strikes": counted(struck),
            "strikes_by_user": by_user(struck),
            "repair": repair,
            "partitions": list(node.partitions),
        }
        rows[name] = (of, row)
    last.nodes = rows
    return [row for _, row in rows.values()]


def _marked(node: Node) -> str:
    """The fault that the node has marked, while nothing has come of it yet."""
    marker = fault_marker.parse(node.extra)
    return f"it reports {marker.sentence}" if marker else ""


def _drained_by(node: Node) -> str:
    if not node.drained:
        return ""
    if drained_by_us(node):
        return "srobust"
    return "foreign" if foreign(node) else "slurm"


def _pool(daemon: Daemon, pool: Pool) -> dict[str, Any]:
    readings = daemon.context.readings
    held = readings.reservations.get(pool.name)
    return {
        "name": pool.name,
        "partition": pool.kind.partition,
        "gres": pool.kind.gres,
        "nodes": list(pool.nodes),
        "held": fold(expand(held.nodes)) if held else "",
        "unchecked": fold(sorted(set(pool.nodes) & readings.unchecked)),
        "wanted": daemon.context.config.standby.size,
        "short": pool.short,
        "ends_at_s": held.end_at_s if held else None,
    }


def _waiting(daemon: Daemon, job: Job) -> dict[str, Any]:
    return {
        "job": job.ref.address,
        "user": job.user,
        "name": printable(job.name),
        "restart_count": job.restart_count,
        "reason": printable(job.reason),
        **daemon.effective_times.of(job),
    }


def _job(daemon: Daemon, job: Job) -> dict[str, Any]:
    claim = daemon.claim_intake.supervised[job.ref.job_id]
    recovery = daemon.recoveries.of_job(job.ref.job_id)
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
        "step": claim.step_now(job.restart_count),
        "resume_step": claim.resume_step,
        "fruitless": claim.fruitless,
        "incident": recovery.incident.id if recovery else claim.incident,
        **daemon.effective_times.of(job),
    }


def encoded(snapshot: Mapping[str, Any]) -> bytes:
    """The snapshot as one line of JSON."""
    try:
        return msgspec.json.encode(snapshot)
    except UnicodeEncodeError:  # half a character pair, in a text from outside
        return json.dumps(snapshot, separators=(",", ":")).encode()


def write(state_dir: Path, snapshot: Mapping[str, Any] | bytes) -> None:
    """Write the snapshot where everyone may read it: the whole of it, or nothing."""
    path = state_dir / FILE_NAME
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(snapshot if isinstance(snapshot, bytes) else encoded(snapshot))
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        # A part of it would fill what is left of the disk.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
