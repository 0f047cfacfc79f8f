"""Holds what Slurm shows of a recovery, and what follows at once: is the job placed, is an action done? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_robust.core.model import Action, ActionKind
from slurm_robust.policy.cluster.node_states import OURS, due, in_reservations, is_there, quarantine_name
from slurm_robust.policy.cluster.recovery_plan import OWNER, Recovery
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.values import expand, fold

TRIED_S = 6.0
"""A job that does not start within this time in a seat with fewer nodes than the job had needs more nodes."""
CLOSED_S = 30.0
"""If another job's seat is closed for longer, that job may wait for a node of this seat: neither would ever start."""


@dataclass(frozen=True)
class View:
    """The state of a job's recovery that Slurm shows now, and since when.

    Attributes:
        job: The job; None if Slurm does not know it (any more).
        occupied: Nodes on which other jobs run or end.
        called: Actions that were called at least once, by kind.
        abort: Why the recovery is given up; empty if it is not.
        answered: The state of the answer that the job's AdminComment has for this incident; empty if it has none.
        completing_s: For how long the job has been ending; `alone_s`: for how long only suspects have delayed its end.
        pointed_s: For how long the pending job has been pointed at its seat.
        lost_s: For how long all lost nodes have been DOWN while the job still runs.
        age_s: The age of the recovery.
        start_timeout_s: A seat whose job does not start in this time is deleted.
        may_take_out: False while the breaker is open.
        withdrawn: The job wrote a later claim that asks for nothing: the job has helped itself. (A missing claim means
            nothing: a killed slurmctld forgets comments, too.)
        was_out: A lost node was seen out of service since the recovery began: the job was requeued because of the node,
            even if the node is back by now.
        was_drained: Nodes that this recovery has drained. If such a node is in service again, somebody has resumed it.
        in_quarantine: Suspects that are in quarantine now; suspects that passed their check are not put back.
        settled: A whole second has passed since the job ended, and `pause_s` since its last node ended it. Credentials
            have a resolution of a second, and slurmd refuses a credential that was issued in the second in which the
            old one was revoked.
        pause_s: The site's `credential_pause_s`.
        others: Other jobs that wait or are there with the seat as their reservation.
        hidden: Other jobs of the user that began on the seat's nodes after the seat was opened, without another way to
            these nodes: a job that has started in the seat can leave its reservation at once, or name another
            reservation of its user.
        left: The job was taken out of its seat, and was not let in since. If the job is in the seat again, its user has
            put it there.
        spare: Nodes that could be added to a seat that has too few nodes, best first; empty if the seat has enough.
        awaited: Another node that could be added is at its full check, or waits for the check.
    """

    job: Job | None
    reservations: Mapping[str, Reservation]
    nodes: Mapping[str, Node]
    occupied: frozenset[str] = frozenset()
    called: frozenset[ActionKind] = frozenset()
    abort: str = ""
    answered: str = ""
    completing_s: float = 0.0
    alone_s: float = 0.0
    pointed_s: float = 0.0
    lost_s: float = 0.0
    age_s: float = 0.0
    settled: bool = True
    pause_s: int = 0
    start_timeout_s: float = 120.0
    may_take_out: bool = True
    withdrawn: bool = False
    was_out: bool = False
    was_drained: frozenset[str] = frozenset()
    in_quarantine: frozenset[str] = frozenset()
    now_s: float = 0.0
    others: tuple[Job, ...] = ()
    hidden: tuple[Job, ...] = ()
    left: bool = False
    spare: tuple[str, ...] = ()
    awaited: bool = False


def entered(r: Recovery, view: View) -> tuple[Job, ...]:
    """Return other jobs that have started in the seat: nobody but their user can have sent them there."""
    seat = view.reservations.get(r.seat)
    shown = (o for o in view.others if seat is not None and is_there(o) and o.start_at_s >= seat.start_at_s)
    return (*shown, *view.hidden)


def fit_again(bad: Iterable[str], nodes: Mapping[str, Node], in_quarantine: frozenset[str]) -> frozenset[str]:
    """Return the nodes of `bad` that are usable and not in quarantine."""
    known = (nodes[n] for n in bad if n in nodes and n not in in_quarantine)
    return frozenset(n.name for n in known if n.usable)


def given_back(r: Recovery, view: View) -> frozenset[str]:
    """Return suspects that the waiting job may use again, because its seat has fewer nodes than the job needs."""
    if view.awaited or not missing(r, view.job, view.nodes):
        return frozenset()
    return fit_again(r.bad, view.nodes, view.in_quarantine) - {*expand(r.own_exclude)}


def left_out(r: Recovery, view: View) -> frozenset[str]:
    """Return the nodes that the job is to leave out now."""
    return frozenset(expand(r.exclude)) - given_back(r, view)


def missing(r: Recovery, job: Job | None, nodes: Mapping[str, Node]) -> int:
    """Return how many nodes the waiting job needs beyond those of the planned seat; 0 if the seat has enough.

    A job that has run shows how many nodes it had, which may be more than it needs (`-N2-4`), or the number that its
    user wrote since.
    """
    if job is None or not r.seat or job.state != "PENDING" or job.completing:
        return 0
    out = sum(n in nodes and (nodes[n].drained or nodes[n].state == "DOWN") for n in r.seat_nodes)
    return max(0, min(job.num_nodes, r.size or job.num_nodes) - len(r.seat_nodes) + out)


def wanted(r: Recovery, view: View) -> tuple[str, ...]:
    """Return the nodes that the seat is to have now, sorted: those of the plan and, as soon as they suffice, others.

    The added nodes are spare nodes, and suspects that were given back and that nobody else uses, has reserved or has in
    a seat.
    """
    short, seat = missing(r, view.job, view.nodes), view.reservations.get(r.seat)
    if not short:
        return r.seat_nodes
    own, seats = (r.seat, *r.own_reservation.split(",")), f"{r.seat.rpartition('-')[0]}-"
    others = [o for o in view.reservations.values() if o.name not in own]
    held = [o for o in others if o.name.startswith(seats) and (opened(o) or view.now_s < o.start_at_s + CLOSED_S)]
    # A reservation that begins after the job must have ended, such as an announced maintenance, takes no node from it.
    soon = [o for o in due(others, r.open_until_s or math.inf) if not o.name.startswith(OURS)]
    taken = view.occupied | in_reservations((*held, *soon))
    more = [n for n in (expand(seat.nodes) if seat else ()) if n in view.nodes and view.nodes[n].usable]
    more = list(dict.fromkeys((*more, *view.spare, *sorted(given_back(r, view)))))
    more = [n for n in more if n not in r.seat_nodes and n not in taken]
    return tuple(sorted((*r.seat_nodes, *more[:short]))) if len(more) >= short else r.seat_nodes


def suffices(r: Recovery, view: View) -> bool:
    """Return whether the job may start on the nodes that its seat is to have (else it waits outside).

    So the seat is open only while the job starts: every job of its user could start there. If the seat has fewer nodes
    than the job had, only Slurm can tell whether they are enough, within `TRIED_S`.
    """
    enough = missing(r, view.job, view.nodes) <= len(wanted(r, view)) - len(r.seat_nodes)
    return enough or view.pointed_s < TRIED_S


def opened(seat: Reservation | None) -> bool:
    """Return whether the job's user was let into the seat."""
    return seat is not None and any(flag.startswith("PURGE_COMP") for flag in seat.flags)


def ending(seat: Reservation | None) -> bool:
    """Return whether the seat was closed because of other jobs in it; such a seat is FLEX, and is not opened again."""
    return seat is not None and "FLEX" in seat.flags


def in_seat(r: Recovery, job: Job) -> bool:
    """Return whether the job waits for its seat or runs there: a job may name several reservations."""
    return bool(r.seat) and r.seat in job.reservation.split(",")


def pointed(r: Recovery, view: View) -> bool:
    """Return whether the pending job is in its seat and let into it, has its exclusions, and no old node request."""
    seat = view.reservations.get(r.seat)
    let_in = not r.seat or seat is None or not seat.users or r.user in seat.users
    return let_in and view.job is not None and in_seat(r, view.job) and waits(r, view)


def waits(r: Recovery, view: View) -> bool:
    """Return whether the requeued job has exclusions and no old request for nodes; its start time is set with them."""
    job = view.job
    return job is not None and not job.req_nodes and left_out(r, view) <= set(expand(job.exclude or ""))


def placed(r: Recovery, view: View) -> bool:
    """Return whether the job can start only as planned; an owner's recovery has exclusions, and no seat.

    While the seat has too few nodes the job is not pointed at it: other nodes may suffice for the job.
    """
    if r.kind != OWNER:
        return pointed(r, view) if suffices(r, view) else waits(r, view)
    job = view.job
    return job is not None and not job.req_nodes and set(expand(r.exclude)) <= set(expand(job.exclude or ""))


def outside(r: Recovery, job: Job) -> str:
    """Return how the nodes on which Slurm shows the job differ from the plan; empty if it runs as planned.

    If the seat has fewer nodes than the job needs, the job may run on any nodes.
    """
    nodes = frozenset(job.nodes)
    if r.seat and len(r.seat_nodes) < len(nodes):
        return ""
    if left := sorted(nodes.intersection(r.bad)):
        return f"although it was to leave {fold(left)} out"
    return f"outside its seat, which is {fold(r.seat_nodes)}" if r.seat and not nodes.issubset(r.seat_nodes) else ""


def forgotten(r: Recovery, job: Job) -> bool:
    """Return whether Slurm shows a time before the recovery's end, though the job was seen running again."""
    earlier = job.state == "RUNNING" and job.restart_count <= r.restart
    halfway = job.state == "PENDING" and job.restart_count == r.restart + 1
    return earlier or halfway or in_seat(r, job)


def holds(r: Recovery, view: View) -> bool:
    """Return whether the seat is there, with all nodes that it is to have and no other node."""
    seat = view.reservations.get(r.seat)
    return seat is not None and set(expand(seat.nodes)) == {*wanted(r, view)}


def shown(r: Recovery, action: Action, view: View) -> bool:
    """Return whether Slurm shows that the action took effect."""
    job, node = view.job, view.nodes.get(action.target)
    running = job is not None and job.state == "RUNNING" and not job.completing and job.restart_count > r.restart
    checks = {
        ActionKind.QUARANTINE: lambda: quarantine_name(action.target) in view.reservations,
        ActionKind.DRAIN: lambda: node is not None and node.drained,
        ActionKind.SET_DOWN: lambda: node is not None and node.state == "DOWN",
        ActionKind.CREATE_SEAT: lambda: holds(r, view),
        ActionKind.ANSWER: lambda: view.answered == action.args.get("state"),
        ActionKind.REQUEUE: lambda: job is not None and job.restart_count > r.restart,
        ActionKind.POINT_JOB_AT_SEAT: lambda: job is not None and (running or placed(r, view)),
        ActionKind.LIFT_EXCLUDE: lambda: (
            running or (job is not None and not given_back(r, view) & set(expand(job.exclude or "")))
        ),
        ActionKind.WAIT_RUNNING: lambda: running,
        ActionKind.LEAVE_SEAT: lambda: job is None or not in_seat(r, job),
        ActionKind.RELEASE_JOB: lambda: job is not None and (running or job.priority > 0),
        ActionKind.DELETE_SEAT: lambda: r.seat not in view.reservations,
    }
    check = checks.get(action.kind)
    return check is not None and check()
