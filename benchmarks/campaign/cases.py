"""Cases: a job, a fault in it, eyes on it, and the truth. One seed, one case."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from campaign import node_reports
from campaign.alike import reduced
from campaign.engine import World
from campaign.faults import APART, IN_PROGRAM, Fault, Look, arm, can_strike, settle, wrong_program
from campaign.jobs import draw_job, draw_pause
from campaign.layout import Layout
from campaign.node_reports import NodeReport
from campaign.parts import Act
from campaign.programs import Job, program
from campaign.scene import Eyes, RecorderView, Scene, look_at, recorders_of
from campaign.truth import Truth, truth_of

CLASSES = ("single rank", "single node", "two nodes", "whole group", "link", "code", "code like a group", "no fault",
           "unidentifiable")  # fmt: skip
BLAMELESS = ("code", "code like a group", "no fault", "unidentifiable")
"""Classes in which nobody may be named."""
BY_EVICTION = ("code like a group",)
"""Of those, classes in which a name counts only where its node would be evicted: a wrong shape looks like a link."""
_ANY_EVIDENCE = ("code", "code like a group", "no fault")
"""Classes whose cases count whatever the evidence can tell."""
_RANK_FAULTS = ("loader", "file", "gil", "stopped", "dead", "collective", "p2p", "device")
_NODE_FAULTS = ("silent", "stopped", "loader", "file", "dead")
_KINDS = {
    "single rank": _RANK_FAULTS,
    "single node": _NODE_FAULTS,
    "two nodes": _NODE_FAULTS,
    "whole group": ("loader", "file", "stopped", "gil"),
    "link": ("link",),
    "code": ("shape", "order", "lock", "raise"),
    "code like a group": ("mixed", "mixed", "skipped", "twice", "shape"),
    "no fault": ("evaluate", "save", "compile"),
    "unidentifiable": ("link", "device", "collective", "p2p", "gil"),
}
_TRIES = 60
_LATER, _LATER_S = 4, 15.0
_RAISED = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 57, in main',
    "TypeError: forward() got an unexpected keyword argument 'packed_seq_params'",
)


@dataclass(frozen=True)
class ExitView:
    """A rank that ended, as its launcher tells."""

    rank: int
    at_s: float
    code: int | None
    signal: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """Everything that was seen of one job, and the truth about it."""

    seed: int
    kind: str
    """Its class."""
    what: str
    """The fault."""
    job: Job
    truth: Truth
    eyes: Eyes
    scenes: tuple[Scene, ...] = ()
    recorders: tuple[RecorderView, ...] = ()
    later: tuple[Scene, ...] = ()
    """Further looks, of a job that was watched for longer."""
    recorders_later: tuple[RecorderView, ...] = ()
    exits: tuple[ExitView, ...] = ()
    reports: tuple[NodeReport, ...] = ()
    told_layout: Mapping[str, int] = field(default_factory=dict)
    progress: bool = True

    @property
    def layout(self) -> Layout:
        """Of its job."""
        return self.job.layout

    def __str__(self) -> str:
        s = self.layout
        shape = f"{self.job.framework} tp={s.tp} cp={s.cp} pp={s.pp} dp={s.dp} ep={s.ep}, {s.per_node} a node"
        had = "+".join(n for n, x in (("stacks", self.scenes), ("recorder", self.recorders)) if x)
        return f"{self.kind}/{self.what} seed {self.seed}: {shape}; {had}; truth {sorted(self.truth.nodes) or 'nobody'}"


def make_case(kind: str, seed: int, max_ranks: int = 4096, *, whole: bool = False, longer: bool = False) -> Case:
    """The case of this class and seed. With `whole` each rank is simulated, which gives the same case, slowly.

    With `longer` the job is looked at again, as its supervisor would go on doing; everything else is the same.

    Raises:
        LookupError: no job was found in which the fault strikes and the evidence fits the class.
    """
    for attempt in range(_TRIES):
        rng = random.Random(f"{kind}/{seed}/{attempt}")
        case = _try(kind, seed, rng, max_ranks, whole=whole, longer=longer)
        if case is not None:
            return case
    raise LookupError(f"{kind} {seed}: no case in {_TRIES} tries")


def _try(kind: str, seed: int, rng: random.Random, max_ranks: int, *, whole: bool, longer: bool) -> Case | None:
    what = rng.choice(_KINDS[kind])
    if kind == "no fault":
        pause = draw_pause(rng)
        job = draw_job(rng, max_ranks, pauses=(pause,))
        world = _world(job, None, whole=whole)
        world.run(rng.uniform(500, 800))
        return _seen(Case(seed, kind, pause.place, job, Truth(), _eyes(rng, job)), world, None, rng, longer=longer)
    job = draw_job(rng, max_ranks, framework="megatron" if what == "p2p" or kind == "code like a group" else "")
    if kind == "code like a group":
        job = replace(job, depth=0)  # hosts sleep in their collectives: their stacks show what each waits in
    ranks = _victims(kind, what, job, rng)
    if not ranks:
        return None
    fault = Fault(
        what, ranks, step=1, nth=int(rng.random() ** 2 * 12), inside=what == "device" and rng.random() < 0.3,
        reported=what in ("device", "link") and kind != "unidentifiable" and _reported(rng),
    )  # fmt: skip
    world = _world(job, fault, whole=whole)
    arm(world, fault, rng)
    world.run(100.0)  # a few simulated steps take seconds: the world has come to a standstill
    if _went_on(world, job):
        return None
    world.run(world.now_s + rng.uniform(30, 300))
    settle(world, fault)
    case = _seen(Case(seed, kind, what, job, Truth(), _eyes(rng, job)), world, fault, rng, longer=longer)
    case = replace(case, truth=truth_of(case.job, world, fault, case))
    # Where the evidence cannot tell, nobody may be named: those cases are a class of their own.
    wanted = kind != "unidentifiable"
    return case if kind in _ANY_EVIDENCE or case.truth.identifiable == wanted else None


def _world(job: Job, fault: Fault | None, *, whole: bool) -> World:
    def programs(rank: int) -> Iterator[Act]:
        right = program(job, rank)
        wrong = fault is not None and fault.kind in IN_PROGRAM
        return wrong_program(right, fault, rank) if fault is not None and wrong else right

    struck = fault.ranks if fault is not None else ()
    apart = fault is not None and fault.kind in APART
    cast = None if whole else reduced(job.layout, struck, apart=apart)
    return World(job.layout, programs, job.depth, cast)


def _went_on(world: World, job: Job) -> bool:
    """The fault never struck, or held nobody: every rank came to its end."""
    return all(host.step >= job.steps for host in world.hosts.values())


def _victims(kind: str, what: str, job: Job, rng: random.Random) -> tuple[int, ...]:
    layout = job.layout
    able = [rank for rank in range(layout.world) if can_strike(job, what, rank)]
    nodes = sorted({layout.node(rank) for rank in able})
    if not able:
        return ()
    if kind == "code":
        whose = rng.choice(("all", "odd", "one")) if what in ("shape", "order") else "all"
        some = able if whose == "all" else able[1::2] if whose == "odd" else [rng.choice(able)]
        # Every rank wrong in the same way is right: at least one differs.
        return tuple(some if what in ("lock", "raise") or len(some) < layout.world else able[: layout.world // 2])
    if kind in ("whole group", "code like a group"):
        return _in_group(kind, job, able, rng)
    if kind in ("single node", "two nodes") or what == "link":
        count = 2 if kind == "two nodes" else 1
        if len(nodes) < count or 5 * count > 2 * layout.world // layout.per_node:
            return ()
        chosen = set(rng.sample(nodes, count))
        return tuple(rank for rank in able if layout.node(rank) in chosen)
    return (rng.choice(able),)


def _in_group(kind: str, job: Job, able: list[int], rng: random.Random) -> tuple[int, ...]:
    layout = job.layout
    if kind == "code like a group":
        group = layout.group(rng.choice(("tp", "dp")), rng.choice(able))
        return group.ranks[: len(group.ranks) // 2] if rng.random() < 0.25 else (rng.choice(group.ranks),)
    group = layout.group(rng.choice(("tp", "pp", "dp", "ep", "mp")), rng.choice(able))
    members = tuple(rank for rank in group.ranks if rank in set(able))
    few = len(layout.nodes(members)) <= 0.4 * layout.world / layout.per_node
    return members if len(members) > 1 and few else ()


def _eyes(rng: random.Random, job: Job) -> Eyes:
    world = job.layout.world
    share = 0.0 if rng.random() < 0.5 else rng.uniform(0.0, 0.1)
    lost = frozenset(r for r in range(world) if rng.random() < share)
    half = frozenset(r for r in lost if rng.random() < 0.5)
    undumped = frozenset(r for r in range(world) if rng.random() < share)
    source = rng.choice(("site", "checkout"))
    busy = rng.choices(("nobody", "first", "all"), (8, 1, 1))[0]
    return Eyes(half, lost - half, undumped, source, rng.random() < 0.4, rng.randint(5, 90_000), busy)


def _seen(case: Case, world: World, fault: Fault | None, rng: random.Random, *, longer: bool) -> Case:
    looks: dict[int, Look] = fault.looks if fault is not None else {}
    gathered = rng.choices(("stacks", "both", "recorder"), (4, 5, 1))[0]
    if case.job.depth == 0:
        gathered = "stacks"  # gloo
    rounds, every_s = rng.choice((2, 3, 4)), rng.choice((5.0, 10.0, 45.0))
    first_s = world.now_s
    recorders: tuple[RecorderView, ...] = ()
    if gathered == "recorder" and case.kind == "no fault":
        gathered = "both"  # a recorder alone cannot tell an evaluation from a hang
    if gathered != "stacks":
        silent = {r for r, look in looks.items() if look.gone or look.state == "T" or "freez" in look.wchan}
        dumped = [r for r in range(case.layout.world) if r not in silent and r not in case.eyes.undumped]
        recorders = tuple(recorders_of(world, dumped, case.eyes))
    scenes = []
    for number in range(rounds):
        world.run(first_s + number * every_s)
        scenes.append(look_at(world, case.job, looks, case.eyes))
    later, recorders_later = (), ()
    if longer and gathered != "recorder":
        later = tuple(_looked_again(case, world, looks))
        recorders_later = tuple(recorders_of(world, [r.rank for r in recorders], case.eyes))
    exits = _exits(fault, rng)
    if gathered == "recorder" or (exits and fault is not None and fault.kind == "raise"):
        scenes = []
    return replace(
        case,
        scenes=tuple(scenes),
        recorders=recorders if case.what != "raise" else (),
        later=later,
        recorders_later=recorders_later if case.what != "raise" else (),
        exits=exits,
        reports=_reports(case, fault, first_s, rng),
        told_layout=_told(case.layout, rng),
        progress=rng.random() < 0.8,
    )


def _looked_again(case: Case, world: World, looks: dict[int, Look]) -> Iterator[Scene]:
    """Further looks, as many and as far apart as a verdict needs that rests on time."""
    began_s = world.now_s
    for number in range(1, _LATER + 1):
        world.run(began_s + number * _LATER_S)
        yield look_at(world, case.job, looks, case.eyes)


def _exits(fault: Fault | None, rng: random.Random) -> tuple[ExitView, ...]:
    if fault is None or fault.kind not in ("dead", "raise"):
        return ()
    if fault.kind == "raise":
        return tuple(ExitView(r, fault.struck_s + rng.uniform(0, 2), 1, 0, _RAISED) for r in fault.ranks)
    if rng.random() < 0.4:
        return ()  # nobody waited for the process: it is only gone
    signal = rng.choice((9, 7, 11))
    return tuple(ExitView(r, fault.struck_s + rng.uniform(0, 0.5), None, signal, ()) for r in fault.ranks)


def _reported(rng: random.Random) -> bool:
    return rng.random() < node_reports.SEEN_BY_GPU_OR_PORT and rng.random() >= node_reports.WITHOUT_SERVICE


def _reports(case: Case, fault: Fault | None, now_s: float, rng: random.Random) -> tuple[NodeReport, ...]:
    """What the nodes' own services tell, and what of it has nothing to do with the fault."""
    struck = case.layout.nodes(fault.ranks) if fault is not None and case.kind not in _ANY_EVIDENCE else frozenset()
    at_s = fault.struck_s if fault is not None and fault.struck_s >= 0 else now_s - 60.0
    others = sorted(case.layout.nodes(range(case.layout.world)) - struck)
    found: list[NodeReport] = []
    if fault is not None and fault.reported:
        found += node_reports.of_fault(fault.kind, struck, at_s, rng)
    elif fault is not None and fault.kind in ("file", "dead") and rng.random() < node_reports.SEEN_OF_HOST:
        served = [node for node in sorted(struck) if rng.random() >= node_reports.WITHOUT_SERVICE]
        found += node_reports.of_fault(fault.kind, served, at_s, rng)
    if fault is not None and fault.kind == "link" and others and rng.random() < node_reports.NEIGHBOUR:
        found += node_reports.of_neighbour(rng.choice(others), at_s, rng)
    if others and rng.random() < node_reports.STRAY:
        found += node_reports.of_bystander(rng.choice(others), at_s, rng)
    return tuple(sorted(found, key=lambda report: report.at_s))


def _told(layout: Layout, rng: random.Random) -> Mapping[str, int]:
    """The layout that the user gives: mostly right, often none, sometimes wrong."""
    right = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp, "ep": layout.ep}
    drawn = rng.random()
    if drawn < 0.6:
        return right
    if drawn < 0.85:
        return {}
    return {**right, "tp": layout.pp, "pp": layout.tp} if layout.tp != layout.pp else {**right, "dp": layout.dp + 1}
