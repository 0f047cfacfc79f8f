"""Step timings of simulated trainings, with a slow machine in them or only what looks like one. One seed, one case.

Imports nothing of `slurm_robust.localize`. Every job has what jobs have whatever its class: GPUs that differ a little,
jitter, warm-up, often garbage collection, checkpoints, uneven stages, uneven sequences, gaps in what was told.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

CLASSES = (
    "slow GPU 3 %",
    "slow GPU 5 %",
    "slow GPU 10 %",
    "slow GPU 30 %",
    "slow node",
    "since a step",
    "now and then",
    "none",
    "slow link",
    "data imbalance",
    "heavy replica",
    "last stage",
    "slow everywhere",
    "totals only",
    "last stage, no layout",
)
BLAMELESS = CLASSES[7:]
"""Classes in which nobody may be named."""
IDENTIFIABLE = 7.0
"""Struck by less than so many standard deviations of what healthy ranks differ by, nobody could tell; such cases of a
class with a slow machine are drawn anew (but for 3 per cent, which are as they come)."""
_TRIES = 200
GAP = math.nan


@dataclass(frozen=True)
class SlowCase:
    """A job's timings and the truth.

    Attributes:
        layout: Sizes by kind, in Megatron's order; `told` whether the judge may know them.
        compute: One row a step, one value a rank, seconds; NaN where nothing was told.
        total: The same, for whole steps.
        nodes: Node of each rank.
        slow: Nodes that are slow.
        what: In words.
    """

    kind: str
    seed: int
    layout: dict[str, int]
    told: bool
    compute: list[list[float]]
    total: list[list[float]]
    nodes: list[str]
    slow: frozenset[str]
    what: str

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.nodes)


@dataclass
class _Job:
    """What a job is like, before anything strikes it."""

    tp: int
    pp: int
    dp: int
    per_node: int
    steps: int
    chips: float
    jitter: float
    lengths: float
    drift: float
    stage: list[float]
    first_slice: float
    pause_chance: float
    pause: float
    together_every: int
    save_every: int
    save_by_all: bool
    warm_up: int
    gaps: float
    communication: float
    effect: dict[int, float] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Tensor, replica, stage."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def lonely(self, node: range) -> bool:
        """Whether half or more of those with the same work are on this node: then nothing tells it from its work."""
        here: dict[tuple[int, int], int] = {}
        for rank in node:
            tensor, _, stage = self.place(rank)
            here[tensor, stage] = here.get((tensor, stage), 0) + 1
        return max(here.values()) * 2 >= self.dp

    def hidden_by(self, steps: int, *, whole_node: bool = False) -> float:
        """Standard deviation of what a healthy rank's median excess shows over so many steps, where it shows best."""
        steady = 1.25 * self.jitter / math.sqrt(steps)
        # Lengths that stay for some steps are more uneven, and average out more slowly.
        moving = 1.25 * self.lengths / (1 - self.drift) / math.sqrt(steps)
        by_role = math.hypot(self.chips, steady, moving) * _against(self.dp)
        by_twins = math.hypot(self.chips, steady) * _against(self.tp) if self.tp > 1 and not whole_node else math.inf
        return min(by_role, by_twins)


def _against(count: int) -> float:
    """The median that a rank is compared with is itself uncertain."""
    return math.sqrt(2 if count == 2 else 1 + 1.57 / (count - 1))


def make_case(kind: str, seed: int, max_ranks: int = 1024) -> SlowCase:
    """The case of this class and seed; the same on every machine."""
    rng = random.Random(f"{kind}:{seed}")
    for _ in range(_TRIES):
        job = _draw(rng, kind, max_ranks)
        found = _struck(rng, job, kind)
        if found is not None:
            return _played(rng, job, kind, seed, found)
    raise RuntimeError(f"no job for {kind}:{seed} in {_TRIES} tries")


def _draw(rng: random.Random, kind: str, max_ranks: int) -> _Job:
    while True:
        tp = rng.choice((1, 1, 2, 4, 8))
        pp = rng.choice((1, 1, 2, 4, 8))
        dp = rng.choice((2, 4, 8, 16, 32, 64, 128))
        if kind in ("last stage", "last stage, no layout"):
            pp = rng.choice((2, 4, 8))
        if 16 <= tp * pp * dp <= max_ranks:
            break
    often = rng.random
    lengths = rng.uniform(0.02, 0.2) if often() < 0.4 else 0.0
    if kind == "data imbalance":
        lengths = rng.uniform(0.08, 0.4)
    stage = [1.0] * pp
    if pp > 1 and (often() < 0.5 or kind.startswith("last stage")):
        stage[-1] = rng.uniform(1.05, 1.4)
    if pp > 1 and often() < 0.3:
        stage[0] = rng.uniform(1.0, 1.06)
    return _Job(
        tp, pp, dp,
        per_node=8 if often() < 0.8 else 4,
        steps=rng.choice((40, 50, 80, 120, 200)),
        chips=rng.uniform(0.001, 0.008),
        jitter=rng.uniform(0.002, 0.02),
        lengths=lengths,
        drift=rng.choice((0.0, 0.0, 0.5)),
        stage=stage,
        first_slice=rng.uniform(0.0, 0.05) if tp > 1 and often() < 0.3 else 0.0,
        pause_chance=rng.uniform(0.005, 0.04) if often() < 0.4 else 0.0,
        pause=rng.uniform(0.1, 1.5),
        together_every=rng.choice((0, 0, 10, 25)),
        save_every=rng.choice((0, 0, 20, 50)),
        save_by_all=often() < 0.5,
        warm_up=rng.choice((0, 1, 3)),
        gaps=rng.choice((0.0, 0.0, 0.02, 0.1)),
        communication=rng.uniform(0.05, 0.4),
    )  # fmt: skip


@dataclass(frozen=True)
class _Struck:
    """Ranks, by how much, from which step, in bursts of how many steps (0: all the time), in words."""

    ranks: frozenset[int] = frozenset()
    effect: float = 0.0
    first: int = 0
    burst: int = 0
    what: str = ""


def _struck(rng: random.Random, job: _Job, kind: str) -> _Struck | None:
    """Whom it strikes; None if this job hides it, or cannot have it."""
    rank = rng.randrange(1, job.world)
    one = frozenset({rank})
    node = range(rank // job.per_node * job.per_node, min(job.world, (rank // job.per_node + 1) * job.per_node))
    limit, found = IDENTIFIABLE * job.hidden_by(job.steps), _Struck(what=kind)
    if kind.startswith("slow GPU"):
        found = _Struck(one, int(kind.split()[2]) / 100, what=f"rank {rank}")
        limit = 0.0 if found.effect < 0.05 else limit
    elif kind == "slow node":
        found = _Struck(frozenset(node), rng.choice((0.05, 0.1, 0.3)), what=f"node of rank {rank}")
        limit = IDENTIFIABLE * job.hidden_by(job.steps, whole_node=True)
        limit = math.inf if len(node) * 8 > job.world or job.lonely(node) else limit
    elif kind == "since a step":
        found = _Struck(one, rng.choice((0.1, 0.2, 0.3)), rng.randrange(job.steps // 4, job.steps * 2 // 3))
        limit = IDENTIFIABLE * job.hidden_by(job.steps // 4)
    elif kind == "now and then":
        found = _Struck(one, rng.choice((0.15, 0.3, 0.5)), 0, rng.randrange(3, 8), f"rank {rank} in bursts")
        seldom = job.pause_chance > 0.02 or job.steps < 80
        limit = math.inf if seldom else 8 * (job.lengths * (job.tp == 1) + job.jitter)
    elif kind == "heavy replica":
        replica = rng.randrange(job.dp)
        ranks = frozenset(r for r in range(job.world) if job.place(r)[1] == replica)
        found = _Struck(ranks, rng.uniform(0.05, 0.3), what=f"replica {replica}")
        limit = math.inf if job.tp * job.pp < 2 * job.per_node or job.dp < 4 else 0.0
    return found if found.effect >= limit or not found.ranks else None


def _played(rng: random.Random, job: _Job, kind: str, seed: int, struck: _Struck) -> SlowCase:
    ranks, effect, first, burst = struck.ranks, struck.effect, struck.first, struck.burst
    world = job.world
    nodes = [f"n{rank // job.per_node:04d}" for rank in range(world)]
    apart = [rng.gauss(1, job.chips) for _ in range(world)]
    slower_at = rng.randrange(5, job.steps - 5) if kind == "slow everywhere" else job.steps
    link = rng.uniform(0.2, 3.0) if kind == "slow link" else 0.0
    hot = _hot(rng, job.steps, burst)
    compute, total = [], []
    lengths = [1.0] * job.dp
    for step in range(job.steps):
        lengths = [
            math.exp(job.drift * math.log(old) + rng.gauss(0, job.lengths)) if job.lengths else 1.0 for old in lengths
        ]
        everybody = _everybody(rng, job, step) * (1.3 if step >= slower_at else 1.0)
        row = []
        for rank in range(world):
            tensor, replica, stage = job.place(rank)
            value = apart[rank] * lengths[replica] * job.stage[stage] * everybody * rng.lognormvariate(0, job.jitter)
            if tensor == 0:
                value *= 1 + job.first_slice
            if rank in ranks and step >= first and (not burst or hot[step]):
                value *= 1 + effect
            if job.pause_chance and rng.random() < job.pause_chance:
                value += job.pause * rng.uniform(0.5, 1.5)
            if rank == 0 and job.save_every and not job.save_by_all and step % job.save_every == job.save_every - 1:
                value += 2.0
            row.append(value)
        if step < job.warm_up:
            row = [value * rng.uniform(2, 8) for value in row]
        whole = max(row) * (1 + job.communication * (1 + link))
        gap = [rng.random() < job.gaps for _ in row] if job.gaps else [False] * world
        compute.append([GAP if kind == "totals only" or lost else v for v, lost in zip(row, gap, strict=True)])
        total.append([GAP if lost else whole * rng.gauss(1, 0.0005) for lost in gap])
    slow = frozenset(nodes[rank] for rank in ranks) if kind not in BLAMELESS else frozenset()
    since = f" from step {first}" if first else ""
    what = f"{struck.what or 'rank ' + str(min(ranks))} {effect:.0%}{since}" if ranks else kind
    sizes = {"tp": job.tp, "pp": job.pp, "dp": job.dp}
    return SlowCase(kind, seed, sizes, "no layout" not in kind, compute, total, nodes, slow, what)


def _everybody(rng: random.Random, job: _Job, step: int) -> float:
    """What strikes all ranks of a step alike."""
    factor = 1.0
    if job.together_every and step % job.together_every == 0:
        factor *= 1.2
    if job.save_every and job.save_by_all and step % job.save_every == job.save_every - 1:
        factor *= rng.uniform(1.5, 4)
    return factor


def _hot(rng: random.Random, steps: int, burst: int) -> list[bool]:
    """A third of the steps, in bursts."""
    if not burst:
        return [False] * steps
    found: list[bool] = []
    runs: Iterator[bool] = iter([])
    while len(found) < steps:
        runs = iter([False] * rng.randrange(burst, 3 * burst) + [True] * burst)
        found.extend(runs)
    return found[:steps]
