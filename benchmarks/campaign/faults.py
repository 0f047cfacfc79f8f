"""What can go wrong, as events: when it strikes, what it does to hosts, devices and paths, and how a struck host looks.

A fault decides only what its own ranks do. Where all the others come to stand is the simulator's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from campaign.engine import World
from campaign.parts import Act, Host, Op
from campaign.pipelines import loads
from campaign.programs import Job


@dataclass(frozen=True)
class Look:
    """How a struck rank's processes look from outside.

    Attributes:
        state: Of the training process, as /proc tells it.
        cpu: Share of a CPU that it uses.
        worker: What its data loader's worker does (`places.WORKER`); empty: waits for work.
        holder: A side thread that holds the GIL.
        gone: No process is left.
    """

    state: str = "S"
    wchan: str = ""
    cpu: float = 0.0
    worker: str = ""
    worker_state: str = "S"
    worker_wchan: str = ""
    holder: bool = False
    gone: bool = False


@dataclass
class Fault:
    """One fault of a case.

    Attributes:
        kind: loader, file, gil, stopped, dead, collective, p2p, device, link, silent, lock, raise, or of `IN_PROGRAM`.
        ranks: Whom it strikes.
        step: In which step.
        nth: At its how many-th fitting action in that step.
        inside: (device) in an operation that its peers complete all the same.
        reported: The struck nodes notice it, and their services report it.
        struck_s: When it struck the first; negative until then.
        looks: By rank, from then on.
    """

    kind: str
    ranks: tuple[int, ...]
    step: int
    nth: int
    inside: bool = False
    reported: bool = False
    struck_s: float = -1.0
    looks: dict[int, Look] = field(default_factory=dict)


_STRIKES_AT: dict[str, tuple[str, ...]] = {
    "loader": ("load",),
    "file": ("load", "comm", "kernel"),
    "collective": ("comm",),
    "p2p": ("pair",),
    # Where all ranks come by, after the step's last collective: none waits for another that is already held.
    "lock": ("step",),
    "raise": ("step",),
}
_ANY = ("load", "comm", "kernel", "pair", "sync", "wait")
IN_PROGRAM = frozenset({"shape", "order", "mixed", "skipped", "twice"})
"""The program itself is another one on the ranks that these strike: see `wrong_program`."""
_OTHERS = {
    "tp": (("tp.forward", "all_reduce"), ("sp.gather", "_all_gather_base"), ("sp.scatter", "_reduce_scatter_base")),
    "dp": (("dp.reduce", "_reduce_scatter_base"), ("dp.gather", "_all_gather_base")),
}
"""Collectives of one group, each with its place in the program: one is entered in place of another."""
TOGETHER = frozenset({"silent"})
APART = frozenset({"silent", "link", "device"})
"""What these do to a rank depends on more than its place in its replica."""
"""A node's ranks stop at one moment, wherever they are; other faults meet each rank at its own next action."""
_STORAGE_WAITS = ("nfs_wait_bit_killable", "rpc_wait_bit_killable", "folio_wait_bit_common", "cl_sync_io_wait")


def can_strike(job: Job, kind: str, rank: int) -> bool:
    """Whether this rank ever does what the fault needs."""
    if kind == "loader":
        return job.framework != "megatron" or loads(job, rank)
    if kind == "p2p":
        return job.framework == "megatron" and job.layout.pp > 1
    return kind != "collective" or job.layout.world > 1


def arm(world: World, fault: Fault, rng: random.Random) -> None:
    """Let it happen when its time comes."""
    if fault.kind in IN_PROGRAM:
        return  # in the program itself: see `wrong_program`
    look = _look(fault.kind, rng)
    seen = dict.fromkeys(fault.ranks, 0)
    kinds = _STRIKES_AT.get(fault.kind, _ANY)

    def watch(world: World, host: Host, act: Act) -> bool:
        if host.step < fault.step or act.kind not in kinds:
            return False
        if act.kind == "comm" and len(world.layout.group(act.group, host.rank).ranks) < 2:
            return False
        seen[host.rank] += 1
        if seen[host.rank] <= fault.nth and kinds != ("step",):
            return False
        if fault.struck_s < 0:
            fault.struck_s = world.now_s
        return _strike(world, fault, host, look)

    for rank in fault.ranks:
        if rank in world.hosts:
            world.watches[rank] = watch


def settle(world: World, fault: Fault) -> None:
    """The looks of those that were not simulated are the looks of whoever stood for them."""
    struck = {rank: fault.looks.get(world.cast.stands_for[rank]) for rank in fault.ranks}
    fault.looks = {rank: look for rank, look in struck.items() if look is not None}


def _strike(world: World, fault: Fault, host: Host, look: Look) -> bool:
    """Do it; True if the host goes no further."""
    if fault.kind == "device":
        host.device_stops_at = len(host.items)
        host.stops_inside = fault.inside
        del world.watches[host.rank]
        return False
    if fault.kind == "link":
        _cut(world, {world.layout.node(rank) for rank in fault.ranks})
        for rank in fault.ranks:
            world.watches.pop(rank, None)
        return False
    struck = [world.hosts[r] for r in fault.ranks if r in world.hosts] if fault.kind in TOGETHER else [host]
    for one in struck:
        one.stuck = True
        fault.looks[one.rank] = look
        if look.gone:
            one.dead_s = world.now_s
    if fault.kind == "silent":
        world.silent_nodes |= {world.layout.node(rank) for rank in fault.ranks}
    if fault.kind == "file":
        host.act = Act("file", "index" if host.act.kind == "load" else "user")
    elif fault.kind == "lock":
        host.act = Act("cpu", "user.lock")
    return True


def _cut(world: World, nodes: set[str]) -> None:
    """From now on nothing gets from these nodes to others."""
    crossing: dict[tuple[int, ...], bool] = {}

    def broken(op: Op) -> bool:
        known = crossing.get(op.members)
        if known is None:
            there = world.layout.nodes(op.everyone)
            known = crossing[op.members] = bool(there & nodes) and bool(there - nodes)
        return known

    world.broken = broken


def _look(kind: str, rng: random.Random) -> Look:
    looks: dict[str, Callable[[], Look]] = {
        "loader": lambda: _loader(rng),
        "file": lambda: Look(rng.choice("DDS"), rng.choice(_STORAGE_WAITS)),
        "gil": lambda: Look("S", "futex_wait_queue", rng.choice((0.0, 1.0)), holder=True),
        "stopped": lambda: rng.choice((Look("T"), Look("S", "do_freezer_trap"))),
        "dead": lambda: Look(gone=True),
        "silent": lambda: Look(gone=True),
        "raise": lambda: Look(gone=True),
        "collective": lambda: Look("S", rng.choice(("", "futex_wait_queue", "poll_schedule_timeout")), 0.0),
        "p2p": lambda: Look("S", "futex_wait_queue", 0.0),
        "lock": lambda: Look("S", "futex_wait_queue"),
    }
    return looks[kind]() if kind in looks else Look()


def _loader(rng: random.Random) -> Look:
    worker, state, wchan = rng.choice((
        ("lock", "S", "futex_wait_queue"),
        ("fetch", "S", "futex_wait_queue"),
        ("http", "S", "wait_woken"),
        ("read", "D", rng.choice(_STORAGE_WAITS)),
        ("fetch", "T", ""),
    ))  # fmt: skip
    return Look("S", "poll_schedule_timeout", worker=worker, worker_state=state, worker_wchan=wchan)


def wrong_program(program: Iterator[Act], fault: Fault, rank: int) -> Iterator[Act]:
    """The same program with the fault in its code, where it strikes this rank."""
    step, seen = 0, 0
    in_group = fault.kind in ("mixed", "skipped", "twice")
    for act in program:
        step += act.kind == "step"
        fits = act.kind == "comm" and step == fault.step and act.root < 0 and (not in_group or act.group in _OTHERS)
        seen += fits
        if fits and seen == fault.nth + 1 and rank in fault.ranks:
            yield from _wrong(act, fault)
        else:
            yield act


def _wrong(act: Act, fault: Fault) -> Iterator[Act]:
    """What the program does in place of this collective."""
    if fault.kind == "shape":
        yield replace(act, size=act.size + 8)
    elif fault.kind == "order":
        yield Act("comm", "barrier", 0.001, act.group, "all_reduce_barrier", 1)
        yield act
    elif fault.kind == "twice":
        yield act
        yield act
    elif fault.kind == "mixed":
        others = [(place, op) for place, op in _OTHERS[act.group] if op != act.op]
        place, op = others[fault.nth % len(others)]
        yield replace(act, place=place, op=op)
