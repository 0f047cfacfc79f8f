"""The truth about a case, and whether what was seen of it can tell.

Asked of the simulated world itself (who entered what, which device ran what), never of the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from campaign.engine import World
from campaign.faults import IN_PROGRAM, Fault
from campaign.parts import FOREVER_S, Op
from campaign.programs import Job

if TYPE_CHECKING:
    from campaign.cases import Case


@dataclass(frozen=True)
class Truth:
    """Who is at fault.

    Attributes:
        ranks: Struck; empty if nobody is to be named.
        group_nodes: Nodes of the smallest parallel group that holds all of them: naming these is right too.
        identifiable: What was seen names the nodes to somebody who reads it perfectly.
        why: By what.
    """

    nodes: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    group_nodes: frozenset[str] = frozenset()
    identifiable: bool = False
    why: str = ""


def truth_of(job: Job, world: World, fault: Fault, case: Case) -> Truth:
    """The truth about a case whose world stands still."""
    if fault.kind in IN_PROGRAM or fault.kind in ("lock", "raise"):
        return Truth(why="the program")
    layout = job.layout
    ranks = frozenset(fault.ranks)
    nodes = layout.nodes(ranks)
    around = [layout.nodes(g.ranks) for g in layout.all_groups() if g.kind != "world" and ranks <= set(g.ranks)]
    group = min(around, key=len, default=nodes)
    why = _told_by(world, fault, case)
    return Truth(nodes, ranks, group, bool(why), why)


def _told_by(world: World, fault: Fault, case: Case) -> str:
    if fault.reported:
        return "node reports"
    if fault.kind in ("link", "device"):
        # A host that its dead device has stopped before the next operation never comes to it, as one that is held.
        device = fault.kind == "device"
        by_host = _told_by_recorders(world, fault, case) if device else ""
        return by_host or (_told_by_device(world, fault, case) if device else "") or _told_by_groups(world, case)
    return _told_of_hosts(world, fault, case)


def _told_of_hosts(world: World, fault: Fault, case: Case) -> str:
    if len(fault.looks) < len(fault.ranks):
        return ""  # it did not strike all before the world stood still: they wait like others
    if {e.rank for e in case.exits} >= set(fault.ranks):
        return "exits"
    if case.scenes and _told_by_stacks(world, fault, case):
        return "stacks"
    return _told_by_recorders(world, fault, case)


def _told_by_stacks(world: World, fault: Fault, case: Case) -> bool:
    """Each node that was struck shows it in both of the last captures; a call that all make shows nothing."""
    if fault.kind == "silent":
        return True
    if fault.kind in ("collective", "p2p"):
        return False
    at_work = fault.kind == "gil" and any(look.cpu > 0 for look in fault.looks.values())
    elsewhere = any(world.host_of(rank).act.kind != "load" for rank in fault.looks)
    if at_work and elsewhere and len(case.scenes) < 3:
        return (
            False  # a thread at work that was met twice at one place looks the same: the main thread's place must tell
        )
    blind = case.eyes.unseen | (frozenset() if fault.kind in ("stopped", "dead") else case.eyes.unread)
    struck_nodes = case.layout.nodes(fault.ranks)
    shown = case.layout.nodes(frozenset(fault.looks) - blind)
    return struck_nodes == shown


def _told_by_recorders(world: World, fault: Fault, case: Case) -> str:
    """Somebody waits for them where they never came, and they have nothing open: their own dumps tell both.

    That a dump is missing tells nothing: the process may be gone, and the file may be lost.
    """
    dumped = {seen.rank for seen in case.recorders}
    # One that has something open itself may as well wait for others: a circle, and no beginning of it.
    sinks = {r for r in fault.ranks if r in dumped and _idle(world, r) and world.never_entered(r, dumped)}
    shown = case.layout.nodes(sinks) == case.layout.nodes(fault.ranks)
    return "recorders" if shown else ""


def _idle(world: World, rank: int) -> bool:
    return all(entry.item.done_s < FOREVER_S for entry in world.host_of(rank).entries)


def _told_by_device(world: World, fault: Fault, case: Case) -> str:
    """Its peers completed what it holds, or (where starts are recorded) started what is next on it and never began."""
    dumped = {seen.rank for seen in case.recorders}
    (rank,) = fault.ranks
    for entry in world.hosts[rank].entries:
        op = entry.item.op
        if op is None or entry.item.done_s < FOREVER_S:
            continue
        if rank not in dumped or op.root >= 0 or len(op.items) < len(op.members):
            return ""
        others = {member: item for member, item in op.items.items() if member != rank}
        done = [member for member, item in others.items() if item.done_s < FOREVER_S]
        if not op.p2p and len(done) == len(others):
            return "completed elsewhere" if dumped.intersection(done) else ""
        started = all(item.ready_s < FOREVER_S for item in others.values()) and entry.item.ready_s == FOREVER_S
        next_on_all = _open_pair(world, op) if op.p2p else _next_on_all(world, op)
        told = case.eyes.timing and started and next_on_all and dumped >= set(op.everyone)
        return "started elsewhere" if told else ""
    return ""


def _told_by_groups(world: World, case: Case) -> str:
    """Operations that all have entered as the first that is open on each, and nobody completes, share one node."""
    if len(case.recorders) < case.layout.world:
        return ""
    shared: frozenset[str] | None = None
    for op in world.ops():
        if op.root >= 0 or not (_open_pair(world, op) if op.p2p else _next_on_all(world, op)):
            continue
        here = case.layout.nodes(op.everyone)
        shared = here if shared is None else shared & here
    return "operations that share one node" if shared is not None and len(shared) == 1 else ""


def _next_on_all(world: World, op: Op) -> bool:
    entered = len(op.items) == len(op.members)
    return entered and all(world.next_of(member) is item for member, item in op.items.items())


def _open_pair(world: World, op: Op) -> bool:
    """Both ends have one of these next; a recorder does not number them so that one could tell which."""
    next_ops = [item.op for item in map(world.next_of, op.members) if item is not None]
    return len(next_ops) == 2 and all(found is not None and found.members == op.members for found in next_ops)
