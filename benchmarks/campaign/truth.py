"""The truth about a case, and whether what was seen of it can tell.

Asked of the simulated world itself (who entered what, which device ran what), never of the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from campaign.engine import FOREVER_S, World
from campaign.faults import Fault
from campaign.programs import Job

if TYPE_CHECKING:
    from campaign.cases import Case


@dataclass(frozen=True)
class Truth:
    """Who is at fault.

    Attributes:
        ranks: Struck; empty where nobody is to be named.
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
    if fault.kind in ("shape", "order", "lock", "raise"):
        return Truth(why="the program")
    layout = job.layout
    ranks = frozenset(fault.ranks)
    nodes = layout.nodes(ranks)
    around = [layout.nodes(g.ranks) for g in layout.all_groups() if g.kind != "world" and ranks <= set(g.ranks)]
    group = min(around, key=len, default=nodes)
    why = _told_by(world, fault, case)
    return Truth(nodes, ranks, group, bool(why), why)


def _told_by(world: World, fault: Fault, case: Case) -> str:
    if case.signals:
        return "node signals"
    if fault.kind in ("link", "device"):
        return _told_by_groups(world, case) if fault.kind == "link" else _told_by_device(world, fault, case)
    return _told_of_hosts(world, fault, case)


def _told_of_hosts(world: World, fault: Fault, case: Case) -> str:
    if len(fault.looks) < len(fault.ranks):
        return ""  # it did not strike all before the world stood still: they wait like others
    if {e.rank for e in case.exits} >= set(fault.ranks):
        return "exits"
    if case.scenes and _told_by_stacks(fault, case):
        return "stacks"
    return _told_by_recorders(world, fault, case)


def _told_by_stacks(fault: Fault, case: Case) -> bool:
    """Each node that was struck shows it in both of the last captures; a call that all make shows nothing."""
    if fault.kind == "silent":
        return True
    if fault.kind in ("collective", "p2p"):
        return False
    blind = case.eyes.unseen | (frozenset() if fault.kind in ("stopped", "dead") else case.eyes.unread)
    struck_nodes = case.layout.nodes(fault.ranks)
    shown = case.layout.nodes(frozenset(fault.looks) - blind)
    return struck_nodes == shown


def _told_by_recorders(world: World, fault: Fault, case: Case) -> str:
    """Somebody waits for them where they never came, and no missing dump may hide another like them."""
    if not case.recorders:
        return ""
    dumped = {seen.rank for seen in case.recorders}
    hidden = set(range(case.layout.world)) - dumped
    if hidden - set(fault.ranks) and hidden & set(fault.ranks):
        return ""
    missed = {rank for rank in fault.ranks if world.never_entered(rank, dumped)}
    # One that has something open itself may as well wait for others: a circle, and no beginning of it.
    sinks = {r for r in missed if r not in dumped or _idle(world, r)}
    shown = case.layout.nodes(sinks) == case.layout.nodes(fault.ranks)
    return "recorders" if shown else ""


def _idle(world: World, rank: int) -> bool:
    return all(entry.item.done_s < FOREVER_S for entry in world.host_of(rank).entries)


def _told_by_device(world: World, fault: Fault, case: Case) -> str:
    """Its peers completed what it holds, or (where starts are recorded) started what it has not."""
    dumped = {seen.rank for seen in case.recorders}
    if len(dumped) < case.layout.world:
        return ""
    (rank,) = fault.ranks
    for entry in world.hosts[rank].entries:
        op = entry.item.op
        if op is None or entry.item.done_s < FOREVER_S:
            continue
        if op.p2p:
            return ""  # a recorder keeps no counter of what a pair has completed
        others = [item for member, item in op.items.items() if member != rank]
        full = len(op.items) == len(op.members)
        if full and op.root < 0 and others and all(item.done_s < FOREVER_S for item in others):
            return "completed elsewhere"
        started = others and all(item.ready_s < FOREVER_S for item in others)
        if full and case.eyes.timing and started and entry.item.ready_s == FOREVER_S:
            return "started elsewhere"
        return ""
    return ""


def _told_by_groups(world: World, case: Case) -> str:
    """Operations that all have entered and nobody completes, of several groups that share one node."""
    if len(case.recorders) < case.layout.world:
        return ""
    shared: frozenset[str] | None = None
    for op in world.ready_to_fail():
        here = case.layout.nodes(op.everyone)
        shared = here if shared is None else shared & here
    return "groups that share one node" if shared is not None and len(shared) == 1 else ""
