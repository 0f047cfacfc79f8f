"""Builds the daemon's state as one JSON document, for `srobust status`, the HTTP side and other tools."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slurm_robust import __version__
from slurm_robust.core.build import build
from slurm_robust.core.model import Mode
from slurm_robust.core.text import printable
from slurm_robust.daemon.api.node_rows import AboutNodes, NodeRows
from slurm_robust.daemon.api.state_lines import Snapshot
from slurm_robust.daemon.context import DAY_S
from slurm_robust.daemon.controllers.recovery.claim_intake import MARK
from slurm_robust.daemon.store.journal import ActionRow, IncidentRow, Journal
from slurm_robust.daemon.store.seat_bars import SeatBars
from slurm_robust.marks.claim import Claim
from slurm_robust.policy.cluster.kept_out import kept_out
from slurm_robust.policy.cluster.node_states import (
    QUARANTINE_PREFIX,
    Pool,
    in_reservations,
    lost_gres,
)
from slurm_robust.policy.cluster.recovery_plan import NODE_FAULT, NODE_LOST
from slurm_robust.policy.cluster.standby_health import SUSPECT_S, doubted
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand, fold
from slurm_robust.wire import whole_file

if TYPE_CHECKING:
    from slurm_robust.daemon.service import Daemon

FILE_NAME = "state.json"
INCIDENTS = 100
"""Newest incidents that a snapshot carries; the journal has them all."""


def show_incident(row: IncidentRow, actions: list[ActionRow]) -> dict[str, Any]:
    """Return an incident as `incidents --json` shows it."""
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
    """Return the newest incidents, newest first."""
    return [show_incident(row, journal.actions(row.key)) for row in journal.incidents(limit=limit)]


class Revision(NamedTuple):
    """The sources of a snapshot: equal revisions give the same snapshot, except for its time and ages in it."""

    objects: tuple[object, ...]
    values: tuple[object, ...]

    def same(self, other: Revision | None) -> bool:
        """Return whether nothing has changed since the other one."""
        if other is None or self.values != other.values:
            return False
        # Changed readings are other objects: comparing their contents would take longer than a snapshot.
        return all(one is another for one, another in zip(self.objects, other.objects, strict=True))


class Snapshots:
    """Makes snapshots of the daemon's state; parts that have not changed since the last snapshot are reused."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._rows = NodeRows()
        self._incidents: list[dict[str, Any]] = []
        self._incidents_at = (-1, -1)
        """The journal's revision that they were read from."""

    def revision(self) -> Revision:
        """Return the revision that a snapshot would be made from now."""
        daemon, context = self._daemon, self._daemon.context
        readings = context.readings
        values = (context.mode, context.private, *context.troubles.values(), readings.unchecked, readings.at_check)
        own = (
            _reads_first(daemon),
            tuple(daemon.standby_pools.pools),
            dict(daemon.exclusions.left_out),
            daemon.blind_nodes.groups,
            daemon.full_nodes.groups,
        )
        more = (*own, context.journal.revision, daemon.lease.shown())
        return Revision((readings.picture, readings.jobs, readings.reservations), (*values, *more))

    def take(self) -> Snapshot:
        """Return the state as it is now."""
        daemon, context = self._daemon, self._daemon.context
        if self._incidents_at != (revision := context.journal.revision):
            self._incidents = recent_incidents(context.journal)
            self._incidents_at = revision  # only now: a reading that failed is repeated
        self._rows.update(_about_nodes(daemon))
        return Snapshot({**_state(daemon), "incidents": self._incidents}, self._rows.encoded)


def _reads_first(daemon: Daemon) -> bool:
    """Return whether the daemon has not read everything once; a user's own daemon reads jobs only."""
    readings = daemon.context.readings
    return not (readings.jobs_at_s if daemon.as_user else readings.complete)


def _state(daemon: Daemon) -> dict[str, Any]:
    context, readings = daemon.context, daemon.context.readings
    supervised = daemon.claim_intake.supervised
    return {
        # By this host's clock: others tell by it whether the daemon still writes.
        "at_s": round(context.now_s() + context.clock_ahead_s, 3),
        "clock_ahead_s": context.clock_ahead_s,
        "cluster": context.cluster_name,
        "mode": context.mode.value,
        "mode_since_s": round(context.mode_since_s, 3),
        "watch_builds": {made: fold(names) for made, names in sorted(readings.picture.watch_builds.items())},
        "watch_modes": {mode: fold(names) for mode, names in sorted(readings.picture.watch_modes.items())},
        "lease": daemon.lease.shown(),
        "version": __version__,
        "build": build(),
        "pid": os.getpid(),
        "reading": _reads_first(daemon),
        "account": context.account,
        "private": sorted(context.private),
        "slurm_calls": context.calls,
        "breaker": daemon.breaker.shown(),
        "lost_gres": list(lost_gres(readings.picture.gres_used.values())),
        "blind_nodes": [asdict(group) for group in daemon.blind_nodes.groups],
        "full_nodes": [asdict(group) for group in daemon.full_nodes.groups],
        "standby": [_pool(daemon, pool) for pool in daemon.standby_pools.pools],
        "jobs": [_job(daemon, j, supervised[i]) for i, j in readings.jobs.items() if i in supervised],
        "waiting": [
            _waiting(daemon, job) for job in readings.jobs.values() if job.state == "PENDING" and MARK in job.comment
        ],
        "kept_out": kept_out(
            (j for j in readings.jobs.values() if daemon.recoveries.of_job(j.ref.job_id) is None),
            readings.picture,
            in_reservations(readings.reservations.values(), context.config.standby.prefix + "-"),
        ),
        "troubles": list(context.troubles.values()),
        "lost_jobs": daemon.lost_jobs.shown(),
        "fault_storm": daemon.node_faults.storm_shown(),
        "barred": [msgspec.to_builtins(bar) for bar in SeatBars(context.journal).all(context.now_s())],
        "totals": daemon.totals.shown(),
        "notify": daemon.notifier.shown(),
        "job_labels": context.config.daemon.http.job_labels,
    }


def _about_nodes(daemon: Daemon) -> AboutNodes:
    context, readings, config = daemon.context, daemon.context.readings, daemon.context.config
    reservations = readings.reservations.values()
    quarantines = {q.node: q for q in daemon.ledger.quarantines()}
    return AboutNodes(
        nodes=readings.nodes,
        quarantines=quarantines,
        strikes=daemon.ledger.all_strikes(context.now_s() - config.quarantine.strike_window_days * DAY_S),
        repairs=daemon.repairs.shown(),
        jobs={
            n: j.ref.address for j in readings.jobs.values() if j.state == "RUNNING" or j.completing for n in j.nodes
        },
        quarantined=in_reservations(reservations, QUARANTINE_PREFIX) | frozenset(quarantines),
        seats=in_reservations(reservations, config.seat.prefix),
        pools=in_reservations(reservations, config.standby.prefix + "-"),
        notes={**daemon.blind_nodes.notes, **daemon.full_nodes.notes},
    )


def _pool(daemon: Daemon, pool: Pool) -> dict[str, Any]:
    readings = daemon.context.readings
    held = readings.reservations.get(pool.name)
    unchecked = sorted(set(pool.nodes) & readings.unchecked)
    suspected = daemon.ledger.suspected(daemon.context.now_s() - SUSPECT_S)
    known = daemon.ledger.standby_checks()
    unsure = doubted(suspected, known)
    return {
        "name": pool.name,
        "partition": pool.kind.partition,
        "gres": pool.kind.gres,
        "nodes": list(pool.nodes),
        "held": fold(expand(held.nodes)) if held else "",
        "unchecked": fold(unchecked),
        "unchecked_count": len(unchecked),
        "suspected": [
            {
                "node": name,
                "at_s": suspected[name].at_s,
                "job": suspected[name].job,
                "checked_at_s": None if name in unsure else known[name].passed_at_s,
                "word": known[name].word if name in known else "",
            }
            for name in pool.nodes
            if name in suspected
        ],
        "wanted": pool.wanted,
        "size_reason": daemon.standby_pools.size_reason(pool),
        "short": pool.short,
        "short_since_s": daemon.standby_pools.short_since_s.get(pool.name),
        "ends_at_s": held.end_at_s if held else None,
    }


def _waiting(daemon: Daemon, job: Job) -> dict[str, Any]:
    return {
        "job": job.ref.address,
        "user": job.user,
        "name": printable(job.name),
        "restart_count": job.restart_count,
        "reason": printable(job.reason),
        "left_out": daemon.exclusions.shown(job),
        **daemon.effective_times.of(job),
    }


@lru_cache(maxsize=512)
def _folded(nodes: tuple[str, ...]) -> str:
    """Fold a running job's nodes; remembered, since they do not change and every snapshot shows them."""
    return fold(nodes)


def _job(daemon: Daemon, job: Job, claim: Claim) -> dict[str, Any]:
    recovery = daemon.recoveries.of_job(job.ref.job_id)
    return {
        "job": job.ref.address,
        "user": job.user,
        "name": printable(job.name),
        "partition": job.partition,
        "nodes": _folded(job.nodes),
        "node_count": len(job.nodes),
        "restart_count": job.restart_count,
        "started_at_s": job.start_at_s,
        "claim": claim.state,
        "mode": claim.own_mode if claim.own_mode in (mode.value for mode in Mode) else None,
        "suspected_at_s": claim.suspected_at_s or None,
        "acts_at_s": claim.acts_at_s or None,
        "still_since_s": claim.still_since_s or None,
        "still": claim.still,
        "lineage": claim.lineage,
        "step": claim.step_now(job.restart_count),
        "told_at_s": claim.at_s or None,
        "resume_step": claim.resume_step,
        "fruitless": claim.fruitless,
        "incident": recovery.incident.id if recovery else claim.incident,
        **daemon.effective_times.of(job),
    }


def write(state_dir: Path, line: bytes, mode: int = 0o644) -> None:
    """Write the snapshot, the whole of it or nothing; `mode` says who may read it."""
    whole_file.write(state_dir / FILE_NAME, line, mode=mode)
