"""Plans a recovery: from a claim, or a node failure that the daemon saw, to the actions that bring the job back. Pure.

The order is that of the seat protocol: suspects quarantined, seat reserved, claim answered, job requeued plainly (the
delay of about two minutes that Slurm adds is the dead man's switch), pointed at its seat, and taken out once it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_robust.config.site import Config
from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind, JobRef, Plan, Road
from slurm_robust.core.text import first_sentence, shortened
from slurm_robust.marks.claim import Claim
from slurm_robust.marks.remedy import Remedy, tagged
from slurm_robust.policy.cluster.node_states import (
    OURS,
    QUARANTINE_PREFIX,
    Cluster,
    candidates,
    foreign,
    in_reservations,
    merge,
    quarantine_name,
)
from slurm_robust.slurm.client import Job, Reservation
from slurm_robust.slurm.values import expand, fold

SEAT_FLAGS = ("IGNORE_JOBS", "OVERLAP", "NO_HOLD_JOBS_AFTER_END")
"""Not FLEX: a user's jobs in such a seat, which overlaps others, could start on nodes of any reservation."""
QUARANTINE_FLAGS = ("IGNORE_JOBS", "OVERLAP", "NO_HOLD_JOBS_AFTER_END")
"""A quarantine that ends must not leave a recheck held: without a daemon nobody would release or cancel the recheck."""
SEAT_LASTS_MIN = 3
"""Seats last a bit longer than Slurm's own delay after a requeue, and are renewed while they are needed."""
RECHECK_REASON = "only suspected so far: a full check decides"
MAX_DRAIN_REASON_CHARS = 200
"""Of a node's reason: `sinfo -R` and Slurm's own mails show no more."""
MIN_RUN_S = 600.0
"""If a maintenance window comes, a job is only started again on nodes where it can run this long before it."""
WINDOW_MARGIN_S = 60.0
"""Kept free between the job's new end and a coming window."""
OPEN_SEAT_MARGIN_S = 7200.0
"""An open seat ends this long after its job must have ended: Slurm ends a job that is in a seat when the seat ends."""

CLAIM = "claim"
NODE_LOST = "node_lost"
NODE_FAULT = "node_fault"
OWNER = "owner"
_OF_ALL = 5
"""A user's seats in all may be this many times the number of seats that may bring no new step."""
_NODES_A_SEAT = 50
"""One more seat a day for so many nodes: three times the 6.5 failures of 1,000 node-days that Kokolis et al. report
(Revisiting Reliability in Large-Scale Machine Learning Research Clusters, 2024)."""
REPORT = "report"
"""The kind of an incident without a recovery: the job has a plan of its own, for which it does not need the daemon."""


@dataclass(frozen=True)
class Usage:
    """Seats given so far: active now, and to this user and this job within the last day.

    Attributes:
        user_fruitless: Seats among `user_day` that have ended and brought no new step.
        job_fruitless: The job's last seats in a row that brought no new step.
        user_nodes: How many nodes the user's running jobs have; `job_nodes`: how many nodes this job has.
        barred: Why no claim of this user is accepted now; empty if claims are accepted.
    """

    active: int = 0
    user_day: int = 0
    user_fruitless: int = 0
    job_day: int = 0
    job_fruitless: int = 0
    user_nodes: int = 0
    job_nodes: int = 0
    barred: str = ""


@dataclass(frozen=True)
class Refusal:
    """The reason why nothing is done; `cap` is set if it is one of the site's caps on seats."""

    reason: str
    cap: bool = False


@dataclass(frozen=True)
class Recovery:
    """The decided recovery of one job, with all that is needed to continue it after the daemon was killed.

    Attributes:
        kind: `claim` (the job asked), `node_lost` (the daemon saw its node fail), `node_fault` (its node
            marked a fault of its own), `owner` (the user's own daemon).
        restart: Restart count of the attempt that failed; a higher one means that the job was requeued.
        bad: Nodes that the next attempt must not use.
        kept: Nodes of the job that the next attempt uses again.
        standby: Nodes that replace the bad ones.
        seat: Name of the reservation, empty if there is none.
        exclude: The job's exclusions, the user's own and the daemon's, folded.
        own_exclude: The user's own exclusions.
        size: How many nodes the job had; 0 in rows of older daemons.
        open_until_s: When the seat ends at the latest, once the user is let in; 0 if the job has no time limit.
        own_reservation: The job's own reservation, which the job gets back when it leaves the seat.
        time_limit_min: The time limit to set (the time that was left); None to leave the limit as it is.
        requeued: The job had requeued itself before its claim was read.
    """

    kind: str
    job: JobRef
    user: str
    restart: int
    bad: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    seat: str = ""
    seat_min: int = 10
    size: int = 0
    open_until_s: float = 0.0
    exclude: str = ""
    own_exclude: str = ""
    own_reservation: str = ""
    time_limit_min: int | None = None
    reason: str = ""
    actions: tuple[Action, ...] = ()
    requeued: bool = False

    @property
    def seat_nodes(self) -> tuple[str, ...]:
        """Every node that the seat holds, sorted."""
        return tuple(sorted({*self.kept, *self.standby}))

    @property
    def plan(self) -> Plan:
        """The plan that this recovery carries out."""
        alone = Road.PLAIN_REQUEUE if self.requeued else Road.OWNER_REQUEUE
        return Plan(Road.SEAT if self.seat else alone, self.reason, self.bad)


def check_claim(job: Job, claim: Claim, usage: Usage, config: Config) -> Refusal | None:
    """Refuse a claim that its job may not make, or makes too often; None if it is accepted."""
    foreign_nodes = sorted(set(claim.evict) - set(job.nodes))
    if job.state != "RUNNING" or job.completing:
        return Refusal(f"job {job.ref.address} is not running")
    if claim.restart != job.restart_count:
        return Refusal(f"the claim is of attempt {claim.restart}, and attempt {job.restart_count} is running")
    if job.hetjob_id or job.ref.het_offset is not None:
        return Refusal("het jobs are only alerted on: a component cannot be requeued by itself")
    if not job.requeueable:
        return Refusal("Slurm requeues batch jobs only, and not those that were submitted with --no-requeue")
    if foreign_nodes:
        return Refusal(f"the claim names nodes that are not the job's own: {shortened(', '.join(foreign_nodes), 100)}")
    return _check_conduct(usage, config.supervise.fruitless_attempts) or check_caps(usage, config)


def _check_conduct(usage: Usage, limit: int) -> Refusal | None:
    """Refuse a job whose last seats in a row brought no new step: it must not use up the seats of its user."""
    if usage.barred:
        return Refusal(usage.barred)
    seats = usage.job_fruitless
    if seats < limit:
        return None
    return Refusal(f"{seats} seats in a row brought the job no new step (limit {limit}, supervise.fruitless_attempts)")


def check_caps(usage: Usage, config: Config) -> Refusal | None:
    """Refuse if the site's caps on seats are reached.

    Large jobs fail more often, so a day's caps grow with the nodes. The strict cap of a user counts only seats that
    brought no new step. Jobs could tell of steps that they did not make, so all seats of a user are bounded, too.
    """
    seat = config.seat
    user_most = _OF_ALL * seat.max_per_user_day + usage.user_nodes // _NODES_A_SEAT
    job_most = seat.max_per_job_day + usage.job_nodes // _NODES_A_SEAT
    why = ""
    if usage.active >= seat.max_active:
        why = f"{usage.active} seats are active, and seat.max_active is {seat.max_active}"
    elif usage.user_fruitless >= seat.max_per_user_day:
        why = f"{usage.user_fruitless} seats of the user brought no new step within a day"
        why += f", and seat.max_per_user_day is {seat.max_per_user_day}"
    elif usage.user_day >= user_most:
        why = f"the user had {usage.user_day} seats in a day, and {_OF_ALL} times seat.max_per_user_day, with one more"
        why += f" for each {_NODES_A_SEAT} nodes of the user's jobs, is {user_most}"
    elif usage.job_day >= job_most:
        why = f"the job had {usage.job_day} seats in a day, and seat.max_per_job_day, with one more for each"
        why += f" {_NODES_A_SEAT} of its nodes, is {job_most}"
    return Refusal(why, cap=True) if why else None


@dataclass(frozen=True)
class RecoveryRequest:
    """The request for a recovery.

    Attributes:
        kind: `claim`, `node_lost` or `node_fault`.
        job: The job as slurmctld shows it.
        evict: Nodes of the job that the next attempt must not use, already checked to be nodes of the job.
        why: The reason; it goes into Slurm's reasons.
        suspects_to: What happens to the evicted nodes: `quarantine`, `drain`, or empty for nothing.
        incident: The job's own name for the incident; the answer repeats the name.
        earlier: Nodes that earlier recoveries of this job, and not the user, excluded. They are given back once they
            are neither quarantined nor out of service, and are the last choice as replacements.
        remedy: What repairs the evicted nodes, if they are drained.
        requeued: The job had requeued itself before its claim was read.
        lost: Nodes that did not respond in an earlier recovery of this attempt: they are replaced, but not blamed.
    """

    kind: str
    job: Job
    evict: Sequence[str]
    why: str
    suspects_to: str = "quarantine"
    incident: str = ""
    earlier: frozenset[str] = frozenset()
    remedy: Remedy | None = None
    requeued: bool = False
    lost: Sequence[str] = ()


def plan(request: RecoveryRequest, cluster: Cluster, config: Config, now_s: float) -> Recovery | Refusal:
    """Decide how a job comes back, with every action that this needs, before anything is done.

    The plan says which nodes are used again and which nodes replace the lost ones. It is refused if a coming
    reservation leaves too little time.
    """
    job = request.job
    left_s = None if job.time_limit_s is None else job.time_limit_s - max(0.0, now_s - job.start_at_s)
    if left_s is not None and left_s < WINDOW_MARGIN_S:
        return Refusal("less than a minute of the job's time limit is left")
    until_s = now_s + (left_s if left_s is not None else 365 * 86400.0)
    survivors = _survivors(request, cluster, now_s)
    quarantined = in_reservations(cluster.reservations, QUARANTINE_PREFIX)
    kept = tuple(n for n in survivors if n not in quarantined)
    missing = max(job.num_nodes, len(job.nodes)) - len(kept)
    own, excluded = exclusions(job, cluster, request.earlier)
    lost = [n for n in job.nodes if n not in kept]
    asks = replace(job, exclude=excluded)
    free = candidates(asks, lost, cluster, config, until_s) if missing > 0 else []
    if missing > len(free):
        # Another job suspects these: better than to wait, but no better than a node that nobody suspects.
        again = [n for n in survivors if n in quarantined][: missing - len(free)]
        kept, missing = tuple(sorted((*kept, *again))), missing - len(again)
    if not kept and not free:  # without any node there is no seat, and nobody would look again
        free = candidates(asks, lost, replace(cluster, withheld=frozenset()), config, until_s)
    standby = tuple(sorted(sorted(free, key=request.earlier.__contains__)[: max(0, missing)]))
    if not kept and not standby:
        return Refusal("no node is left for the job, and none of the same kind is free")
    coming = _next_window(job, (*kept, *standby), cluster.reservations, now_s)
    window = coming if coming is not None and coming.start_at_s < until_s + WINDOW_MARGIN_S else None
    fits_s = math.inf if window is None else window.start_at_s - now_s - WINDOW_MARGIN_S
    if window is not None and fits_s < MIN_RUN_S:
        minutes = max(0, window.start_at_s - now_s) / 60
        return Refusal(f"reservation {window.name} begins in {minutes:.0f} min on its nodes")
    seat_min, reason = min(config.seat.duration_min, SEAT_LASTS_MIN), request.why
    limit_min = None if left_s is None else max(1, math.ceil(left_s / 60))
    if window is not None:
        limit_min = int(fits_s // 60)
        seat_min = max(1, min(seat_min, limit_min))
        reason = f"{reason}; time limit lowered to {limit_min} min before reservation {window.name}"
    if missing > len(standby):
        reason = f"{reason}; {missing - len(standby)} node(s) of the same kind are missing, the job waits for them"
    bad = tuple(sorted(set(request.evict)))
    recovery = Recovery(
        kind=request.kind,
        job=job.ref,
        user=job.user,
        restart=job.restart_count,
        bad=bad,
        kept=kept,
        standby=standby,
        seat=f"{config.seat.prefix}-{job.ref.job_id}",
        seat_min=seat_min,
        size=max(job.num_nodes, len(job.nodes)),
        open_until_s=_open_until_s(left_s, coming, now_s),
        exclude=merge(excluded, bad),
        own_exclude=own,
        own_reservation=",".join(name for name in job.reservation.split(",") if not name.startswith(OURS)),
        time_limit_min=limit_min,
        reason=reason,
        requeued=request.requeued,
    )
    return _with_actions(recovery, cluster, request)


def _survivors(request: RecoveryRequest, cluster: Cluster, now_s: float) -> tuple[str, ...]:
    """Return nodes of the job that the next attempt uses again."""
    # A slurmctld that has just begun has heard of no node: what was not known to be unfit is not left out for that.
    known = {n: cluster.nodes[n] for n in request.job.nodes if n in cluster.nodes}
    unfit = {n for n, node in known.items() if not node.usable and (node.drained or node.state != "UNKNOWN")}
    under_maintenance = in_reservations(r for r in cluster.reservations if "MAINT" in r.flags and r.start_at_s <= now_s)
    return tuple(sorted({*request.job.nodes} - {*request.evict, *request.lost} - unfit - under_maintenance))


def exclusions(job: Job, cluster: Cluster, earlier: frozenset[str]) -> tuple[str, str]:
    """Return the exclusions of the user, and the exclusions of the user and the daemon that still hold; both folded."""
    now, quarantined = frozenset(expand(job.exclude or "")), in_reservations(cluster.reservations, QUARANTINE_PREFIX)
    back = {n for n in earlier - quarantined if n in cluster.nodes and cluster.nodes[n].usable}
    return fold(sorted(now - earlier)), fold(sorted(now - back))


def plan_late(request: RecoveryRequest, cluster: Cluster) -> Recovery:
    """Return a recovery that deals only with the suspects of a job that requeued itself: nothing is done to the job.

    The job runs again, or has ended.

    The job runs again, or has ended.
    """
    job, bad = request.job, tuple(sorted(set(request.evict)))
    late = Recovery(CLAIM, job.ref, job.user, job.restart_count, bad=bad, reason=request.why, requeued=True)
    return replace(late, actions=tuple(_suspects_aside(late, cluster, request)))


def plan_owner(job: Job, evict: Sequence[str], why: str) -> Recovery:
    """Return the recovery that needs only the owner's rights: requeue, exclude, start now. No drain, no reservation."""
    address = job.ref.address
    exclude = merge(job.exclude or "", evict)
    actions = (
        Action(ActionKind.REQUEUE, address, why),
        Action(ActionKind.POINT_JOB_AT_SEAT, address, "exclude the suspects and start now", {"exclude": exclude}),
        Action(ActionKind.WAIT_RUNNING, address, "until Slurm starts it"),
    )
    return Recovery(
        OWNER,
        job.ref,
        job.user,
        job.restart_count,
        bad=tuple(sorted(evict)),
        kept=tuple(sorted(set(job.nodes) - set(evict))),
        exclude=exclude,
        own_exclude=job.exclude or "",
        own_reservation=job.reservation,
        reason=why,
        actions=actions,
    )


def _next_window(
    job: Job, nodes: Sequence[str], reservations: Sequence[Reservation], now_s: float
) -> Reservation | None:
    """Return the first coming reservation of others on these nodes; None if there is none."""
    coming = [
        r
        for r in reservations
        if r.start_at_s > now_s
        and not r.name.startswith(OURS)
        and r.name not in job.reservation.split(",")
        and set(expand(r.nodes)) & set(nodes)
    ]
    return min(coming, key=lambda r: r.start_at_s, default=None)


def _open_until_s(left_s: float | None, coming: Reservation | None, now_s: float) -> float:
    """Return when an open seat is to end, 0 for never; the job's own end is before the reservation that is coming."""
    ends_s = [now_s + left_s + OPEN_SEAT_MARGIN_S] if left_s is not None else []
    ends_s += [coming.start_at_s - 1.0] if coming is not None else []
    return min(ends_s, default=0.0)


def _suspects_aside(r: Recovery, cluster: Cluster, request: RecoveryRequest) -> list[Action]:
    """Return the actions that take the evicted nodes out of service."""
    address, actions, suspects_to = r.job.address, list[Action](), request.suspects_to
    for name in r.bad:
        node = cluster.nodes.get(name)
        if node is None or foreign(node) or not suspects_to:
            continue
        reason = tagged(f"{REASON_PREFIX} {first_sentence(r.reason)}", request.remedy, MAX_DRAIN_REASON_CHARS)
        if suspects_to == "drain":
            actions.append(Action(ActionKind.DRAIN, name, reason))
        else:
            args = {"reservation": quarantine_name(name)}
            actions.append(Action(ActionKind.QUARANTINE, name, f"{REASON_PREFIX} suspect of job {address}", args))
    return actions


def _with_actions(r: Recovery, cluster: Cluster, request: RecoveryRequest) -> Recovery:
    address, actions = r.job.address, _suspects_aside(r, cluster, request)
    suspects = [a.target for a in actions]
    seat = {"nodes": fold(r.seat_nodes), "user": r.user, "minutes": r.seat_min}
    actions.append(Action(ActionKind.CREATE_SEAT, r.seat, "hold the job's nodes", seat))
    if r.kind == CLAIM:
        answer = {
            "state": "accepted",
            "incident": request.incident,
            "road": r.plan.road.value,
            "standby": list(r.standby),
        }
        actions.append(Action(ActionKind.ANSWER, address, r.reason, answer))
    if r.kind in (CLAIM, NODE_FAULT) and not r.requeued:
        actions.append(Action(ActionKind.REQUEUE, address, r.reason))
    point = {"exclude": r.exclude, "reservation": r.seat, "time_limit_min": r.time_limit_min}
    actions += [
        Action(ActionKind.POINT_JOB_AT_SEAT, address, "exclusions, seat and start time in one update", point),
        Action(ActionKind.WAIT_RUNNING, address, "until Slurm starts it"),
        Action(ActionKind.LEAVE_SEAT, address, "back to the job's own", {"reservation": r.own_reservation}),
        Action(ActionKind.DELETE_SEAT, r.seat, "nobody needs it any more"),
    ]
    if request.suspects_to == "quarantine":
        actions += [Action(ActionKind.RECHECK, name, RECHECK_REASON) for name in suspects]
    return replace(r, actions=tuple(actions))
