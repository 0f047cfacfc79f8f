"""Picks the next step of a recovery from what Slurm shows now. Pure, and level-triggered.

Nothing here remembers how far a recovery came: each call starts from the state of Slurm. After a daemon was killed, or
slurmctld forgot what it had agreed to, the missing step is simply taken (again).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_robust.core.model import REASON_PREFIX, Action, ActionKind
from slurm_robust.policy.cluster.launch_failed import refused_by
from slurm_robust.policy.cluster.node_states import HELD_UP, SILENT, drained_by_us, foreign, quarantine_name
from slurm_robust.policy.cluster.recovery_plan import CLAIM, NODE_FAULT, NODE_LOST, OWNER, Recovery
from slurm_robust.policy.cluster.recovery_view import (
    View,
    ending,
    entered,
    given_back,
    holds,
    in_seat,
    left_out,
    opened,
    outside,
    placed,
    suffices,
    waits,
    wanted,
)
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.values import expand, fold

ENDED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "BOOT_FAIL", "OUT_OF_MEMORY", "NODE_FAIL", "REVOKED")
)
HELD = frozenset(("SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"))
"""Slurm shows one of these instead of PENDING if a job is held, by `scontrol requeuehold` for example."""
RUNS = frozenset(("RUNNING", "STOPPED", "SIGNALING"))
"""States of a job that runs. A job that its user stopped by a signal counts as running, so that it keeps no seat."""
HELD_UP_AFTER_S = 1.5
"""A suspect that alone delays the job's end for so long, after all survivors have ended it, is set DOWN."""
HELD_UP_BY_ALL_AFTER_S = 45.0
"""The same delay for a survivor that stopped responding, for a suspect that was kept in service, and if no survivor
shows how long a job's end takes on this site. It covers Slurm's default KillWait (30 s) and an epilog."""
RENEW_BELOW_S = 60.0
"""A seat that is still needed is renewed when less than this time is left, or less than a third of a short seat."""
ENDS_SOON_S = 90.0
GIVE_UP_AFTER_S = 3600.0
STAYS_UP_AFTER_DOWN_S = 15.0
"""A job that still runs this long after its node went DOWN was submitted with --no-kill."""
MOST_RESTARTS = 4
"""A job that was requeued so often within one recovery is not started in its seat again: the recovery requeues the job
once, and a prolog that fails on a standby node may requeue it once more."""
SOON_S, LATER_S = 1, 121
"""When a requeued job may start: in the next second, which credentials need; or, if the job has to wait longer or to be
let into its seat, after Slurm's own delay, which is shortened as soon as the wait is over."""


@dataclass(frozen=True)
class Do:
    """Carry out this action, then read Slurm again."""

    action: Action


@dataclass(frozen=True)
class KeepWaiting:
    """There is nothing to do until Slurm shows a change."""

    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Stop trying, and tidy up: the next steps are taken with `abort` set."""

    outcome: str
    reason: str


@dataclass(frozen=True)
class Finish:
    """The recovery has ended and left nothing behind: `running`, `ended`, `came_back`, `went_on` or `aborted`.

    `unplanned` is True if the job runs, but not on its planned nodes.
    """

    outcome: str
    reason: str
    unplanned: bool = False


Step = Do | KeepWaiting | GiveUp | Finish


def credential_pause_s(settings: Mapping[str, str]) -> int:
    """Return how many whole seconds must lie between a job's end and its start on the same nodes.

    slurmd up to 22.05 scans its expired jobs at most every two seconds (`_clear_expired_job_states`). A job that starts
    sooner can find its old record at the prolog and a new record at the launch: with PrologFlags=Alloc the launch then
    waits ten seconds for a prolog that never comes, and slurmctld drains the node with `Prolog error`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    old = numbers is None or (int(numbers[1]), int(numbers[2])) < (23, 2)
    waits_for_prolog = {"alloc", "contain", "x11"} & set(settings.get("PrologFlags", "").lower().split(","))
    return 2 if old and waits_for_prolog else 0


def next_step(r: Recovery, view: View) -> Step:  # noqa: PLR0911 (a list of cases, each with its step)
    """Return what to do now for this recovery."""
    job = view.job
    if job is None or job.state in ENDED:
        state = job.state if job is not None else "gone"
        return _tidy(r, view) or Finish(
            "ended", "the job was cancelled" if state == "CANCELLED" else f"the job ended by itself ({state})"
        )
    if view.abort:
        return _abandon(r, view, job)
    again = job.state in RUNS and job.restart_count > r.restart
    if not again and (taken := entered(r, view)):
        return GiveUp("aborted", f"job {taken[0].ref.address} has started in its seat")
    if view.age_s > GIVE_UP_AFTER_S:
        return GiveUp("aborted", f"not back after {GIVE_UP_AFTER_S / 60:.0f} min")
    if job.completing or job.state == "COMPLETING":
        return _while_completing(r, view, job)
    if job.state == "PENDING" or job.state in HELD:
        return _while_pending(r, view, job)
    if job.state not in RUNS:
        return KeepWaiting(f"the job is {job.state}")
    if again:
        wrong = outside(r, job)
        where = f"the job runs again, on {fold(job.nodes)}{f', {wrong}' if wrong else ''}"
        return _tidy(r, view) or Finish("running", where, bool(wrong))
    if r.kind == NODE_LOST:
        return _while_node_is_silent(r, view)
    if view.withdrawn and r.kind != NODE_FAULT:  # nobody asked: the fault is there all the same
        return GiveUp("aborted", "the job does not ask any more")
    unanswered = r.kind == CLAIM and view.answered != "accepted"
    last = _do(r, ActionKind.ANSWER) if unanswered else _requeue(r, view)
    return _set_suspects_aside(r, view) or _stays_in_service(r, view) or _seat(r, view) or last


def _requeue(r: Recovery, view: View) -> Do:
    """Return the requeue, which also says when the job may run again, so that the job cannot start elsewhere before."""
    return Do(replace(_do(r, ActionKind.REQUEUE).action, args=_waits(r, view)))


def _waits(r: Recovery, view: View) -> dict[str, object]:
    """Return how a job waits until it is let into its seat: Slurm can only let in all jobs of its user together."""
    point = _do(r, ActionKind.POINT_JOB_AT_SEAT).action
    where = {name: value for name, value in point.args.items() if name != "reservation"}
    return {**where, "start_in_s": LATER_S if r.seat or view.pause_s else SOON_S}


def _starts(r: Recovery, view: View) -> Action:
    """Return the call that lets the user into the seat and starts the job there; outside if the seat is too small."""
    point = _do(r, ActionKind.POINT_JOB_AT_SEAT).action
    args = dict(point.args)
    if r.seat and suffices(r, view):
        args |= {"user": r.user, "open_until_s": r.open_until_s}
    elif r.seat:
        args.pop("reservation", None)
    if given_back(r, view):
        args["exclude"] = fold(sorted(left_out(r, view)))
    return replace(point, args=args)


def _do(r: Recovery, kind: ActionKind, target: str = "") -> Do:
    for action in r.actions:
        if action.kind == kind and (not target or action.target == target):
            return Do(action)
    return Do(Action(kind, target or r.job.address, r.reason))


def _set_suspects_aside(r: Recovery, view: View) -> Step | None:
    if not view.may_take_out:
        return None
    if undrained := _undrained(r, view):
        return Do(undrained[0])
    for action in r.actions:
        node = view.nodes.get(action.target)
        if action.kind is not ActionKind.QUARANTINE or node is None or foreign(node) or node.drained:
            continue
        if node.name in view.in_quarantine and quarantine_name(node.name) not in view.reservations:
            return Do(action)
    return None


def _undrained(r: Recovery, view: View) -> list[Action]:
    """Return drains that are still to be made. If slurmctld forgets a drain, it is repeated with the breaker's."""
    drains = ((action, view.nodes.get(action.target)) for action in r.actions if action.kind is ActionKind.DRAIN)
    return [
        action
        for action, node in drains
        if node is not None and not node.drained and not foreign(node) and node.name not in view.was_drained
    ]


def _stays_in_service(r: Recovery, view: View) -> GiveUp | None:
    """Give up on a job that did not ask to move, if the breaker keeps its node in service: the next would follow."""
    if r.kind == NODE_FAULT and not view.may_take_out and (undrained := _undrained(r, view)):
        names = ", ".join(action.target for action in undrained)
        return GiveUp("aborted", f"the breaker is open: {names} may not be drained, and the job is not moved")
    return None


def _seat(r: Recovery, view: View) -> Step | None:
    if not r.seat:
        return None
    seat = view.reservations.get(r.seat)
    # A seat of the same job with other nodes is from an earlier decision and is changed; one that ends soon is renewed.
    # Seats are short, so that the nodes are free again soon after a daemon that died for good.
    lasts = seat is not None and seat.end_at_s - view.now_s > min(RENEW_BELOW_S, r.seat_min * 20.0)
    if lasts and holds(r, view):
        return None
    create = _do(r, ActionKind.CREATE_SEAT).action
    return Do(replace(create, args={**create.args, "nodes": fold(wanted(r, view))}))


def _close(r: Recovery, view: View) -> Step | None:
    """Take away a seat that ends, or that was opened in vain since the job needs more nodes or other nodes.

    A closed seat follows. A node is never added to an open seat: a job of the user that came to that node just before
    would look like a job that came through the seat.
    """
    seat = view.reservations.get(r.seat)
    in_vain = opened(seat) and not (suffices(r, view) and holds(r, view))
    return _take_away(r, view) if ending(seat) or in_vain else None


def _take_away(r: Recovery, view: View) -> Step | None:
    """Tidy up a seat whose job has not started. An open seat is closed first, before the jobs are read again.

    Once the seat is gone, a job of the user that came through the seat looks like a job that Slurm started there later.
    """
    step, seat = _tidy(r, view), view.reservations.get(r.seat)
    deletes = isinstance(step, Do) and step.action.kind is ActionKind.DELETE_SEAT
    return (_closed(r, view, "its job has left it") if deletes and opened(seat) else None) or step


def _tidy(r: Recovery, view: View) -> Step | None:
    """Take the job, and every other job, out of the seat, and delete the seat; the other jobs go on without it."""
    if not r.seat:
        return None
    if view.job is not None and view.job.state not in ENDED and in_seat(r, view.job):
        closed = _closed(r, view, f"job {view.job.ref.address} is in it") if view.left else None
        return closed or _do(r, ActionKind.LEAVE_SEAT)
    if r.seat not in view.reservations:
        return None
    return _others_out(r, view) if view.others else _do(r, ActionKind.DELETE_SEAT)


def _others_out(r: Recovery, view: View) -> Step:
    """Take the other jobs out of the seat: Slurm deletes no reservation that a job stands in."""
    if closed := _closed(r, view, f"job {view.others[0].ref.address} is in it"):
        return closed
    if (other := next((o.ref for o in view.others if not o.hetjob_id), None)) is not None:
        rest = other.array_job_id is not None and other.array_task_id is None
        args = {"reservation": "", **({"rest": True} if rest else {})}
        return Do(Action(ActionKind.LEAVE_SEAT, other.address, f"{r.seat} is another job's", args))
    return KeepWaiting(f"{r.seat} ends within a minute: no part of a het job can be taken out")


def _closed(r: Recovery, view: View, why: str) -> Do | None:
    """Close the seat, once, before jobs are taken out: their user could put jobs in faster, also the seat's own job."""
    seat = view.reservations.get(r.seat)
    if seat is None or seat.end_at_s - view.now_s <= ENDS_SOON_S:
        return None
    why = f"{why}: it is closed, and ends within a minute"
    return Do(Action(ActionKind.DELETE_SEAT, r.seat, why, {"close": True}))


def of_another(r: Recovery, step: Do) -> bool:
    """Return whether the step takes another job out of the seat."""
    return step.action.kind is ActionKind.LEAVE_SEAT and step.action.target != r.job.address


def _abandon(r: Recovery, view: View, job: Job) -> Step:
    if tidy := _take_away(r, view):
        return tidy
    waits = job.state in RUNS and not job.completing and job.restart_count == r.restart
    if r.kind == CLAIM and waits and not view.withdrawn and view.answered != "refused":
        # It waits for the daemon, and must be told to help itself.
        incident = _do(r, ActionKind.ANSWER).action.args.get("incident", "")
        return Do(Action(ActionKind.ANSWER, r.job.address, view.abort, {"state": "refused", "incident": incident}))
    return Finish("aborted", view.abort)


def _while_completing(r: Recovery, view: View, job: Job) -> Step:
    holding = set(job.nodes)  # of a job that ends, Slurm shows the nodes that have not ended it yet
    suspects = {n for n in holding if n in r.bad or (n in view.nodes and "NOT_RESPONDING" in view.nodes[n].flags)}
    if step := _seat(r, view) or _point_early(r, view, job):
        return step
    if not holding or suspects != holding:
        return KeepWaiting(f"ending on {len(holding)} node(s)")
    for name in sorted(holding):
        node = view.nodes.get(name)
        if node is None or foreign(node) or node.state == "DOWN" or name in view.occupied or not view.may_take_out:
            continue
        silent = "NOT_RESPONDING" in node.flags
        # A survivor may only be restarting its slurmd, and be back within seconds. And a job that makes its own end
        # slow takes no suspect out that the bounds on claims keep in service.
        out = node.drained or name in view.in_quarantine
        soon = name in r.bad and (silent or (r.kept and out))
        limit_s = HELD_UP_AFTER_S if soon else HELD_UP_BY_ALL_AFTER_S
        if view.alone_s >= limit_s and r.kind != OWNER:
            reason = f"{REASON_PREFIX} {HELD_UP} {r.job.address} for {view.completing_s:.0f} s"
            return Do(Action(ActionKind.SET_DOWN, name, reason + (f", and {SILENT}" if silent else "")))
    return KeepWaiting(f"only the suspects {', '.join(sorted(holding))} delay the job's end")


def _point_early(r: Recovery, view: View, job: Job) -> Do | None:
    """Delay, once, a job that was requeued without us while it still ends: afterwards it could start anywhere."""
    known = not _requeued_by_others(r, view) and job.restart_count > r.restart
    if not known or waits(r, view) or ActionKind.POINT_JOB_AT_SEAT in view.called:
        return None
    return Do(replace(_do(r, ActionKind.POINT_JOB_AT_SEAT).action, args=_waits(r, view)))


def _while_pending(r: Recovery, view: View, job: Job) -> Step:
    if wrong := _not_ours(r, view, job):
        return wrong
    if r.kind != OWNER and (step := _drain_lost(r, view) or _set_suspects_aside(r, view) or _close(r, view)):
        return step
    # If jobs share nodes, a closed seat does not keep anything free, and would keep its own job out.
    shared = not suffices(r, view) and view.occupied.intersection(r.seat_nodes)
    if r.kind != OWNER and (step := _take_away(r, view) if shared else _seat(r, view)):
        return step
    # Also one that was placed with its requeue: Slurm's scheduler does not run because a start time has come.
    first = ActionKind.POINT_JOB_AT_SEAT not in view.called
    if (first or not placed(r, view) or job.reason == "BeginTime") and view.settled:
        return Do(_starts(r, view))
    if back := given_back(r, view) & set(expand(job.exclude or "")):
        return Do(lift(r.job.address, back, job))
    return KeepWaiting(f"waiting to start: {job.reason}")


def lift(address: str, back: Iterable[str], job: Job) -> Action:
    """Remove these nodes from a waiting job's exclusions."""
    names, now = sorted(back), expand(job.exclude or "")
    why = f"{fold(names)} may be used again: otherwise the job could wait for ever"
    return Action(ActionKind.LIFT_EXCLUDE, address, why, {"exclude": fold(sorted({*now} - {*names}))})


def _not_ours(r: Recovery, view: View, job: Job) -> Step | None:
    """Give up on a job that somebody else has requeued or holds; end a hold that our own prolog caused, once."""
    if others := _requeued_by_others(r, view):
        return GiveUp("aborted", others)
    node = refused_by(job, view.nodes)
    if node is not None and ActionKind.RELEASE_JOB not in view.called:
        why = f"held because {node.name} refused to start it, which is drained ({node.reason})"
        return Do(Action(ActionKind.RELEASE_JOB, r.job.address, why))
    held = job.state in HELD or job.reason.startswith(("JobHeld", "launch_failed")) or "held" in job.reason.lower()
    if held:
        return GiveUp("aborted", f"the job is held ({job.reason}): a person releases it (scontrol release)")
    if view.pointed_s > view.start_timeout_s and not view.awaited:
        return GiveUp("not_started", f"no start within {view.start_timeout_s:.0f} s; Slurm says: {job.reason}")
    return None


def _requeued_by_others(r: Recovery, view: View) -> str:
    """Return why the job's requeue was not made by this recovery; empty if it was."""
    if view.job is not None and view.job.restart_count > r.restart + MOST_RESTARTS:
        return f"the job was requeued {view.job.restart_count - r.restart} times since"
    if r.requeued:
        again = view.job is not None and view.job.restart_count > r.restart + 1
        return "the job was requeued once more, and not by itself" if again else ""
    if r.kind != NODE_LOST:
        somebody = "somebody else requeued the job, and its delay is not the daemon's to shorten"
        return "" if ActionKind.REQUEUE in view.called else somebody
    down = any(view.nodes[n].drained for n in r.bad if n in view.nodes)
    no_cause = "the job was requeued, and Slurm has not shown its node out of service"
    return "" if down or view.was_out else no_cause


def _drain_lost(r: Recovery, view: View) -> Step | None:
    """Drain a node that died while the daemon watched, so that it does not come back by itself."""
    if r.kind != NODE_LOST or not view.may_take_out:
        return None
    for node in (view.nodes[n] for n in r.bad if n in view.nodes):
        if node.state == "DOWN" and not foreign(node) and not drained_by_us(node):
            reason = f"{REASON_PREFIX} stopped responding while job {r.job.address} ran on it"
            return Do(Action(ActionKind.DRAIN, node.name, reason))
    return None


def _while_node_is_silent(r: Recovery, view: View) -> Step:
    lost = [view.nodes[n] for n in r.bad if n in view.nodes]
    # A slurmctld that has just begun knows of no node whether it answers.
    if not any(n.drained or "NOT_RESPONDING" in n.flags or n.state == "UNKNOWN" for n in lost):
        return _tidy(r, view) or Finish("came_back", "its node answers again")
    if view.lost_s > STAYS_UP_AFTER_DOWN_S:
        return _tidy(r, view) or Finish("went_on", "the job went on without the node (--no-kill)")
    return _seat(r, view) or KeepWaiting("waiting for Slurm to give the node up")
