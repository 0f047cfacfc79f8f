"""Timings with known truth for tests: a rank's own work, its noise, and what strikes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from slurm_robust.localize.timings import Collector, StepTimings, Timing

Work = Callable[[int, int], float]


def collect(timings: Iterable[Timing], layout: Mapping[str, int] | None = None) -> StepTimings:
    """The table of these timings."""
    collector = Collector()
    for timing in timings:
        collector.add(timing)
    return collector.table(layout)


def table(
    ranks: int,
    steps: int,
    work: Work = lambda rank, step: 1.0,
    *,
    per_node: int = 4,
    noise: float = 0.005,
    seed: int = 1,
    totals: bool = True,
) -> StepTimings:
    """A table in which all ranks wait for the slowest of each step; `work` gives seconds of a rank in a step."""
    rng = random.Random(seed)
    made = []
    for step in range(steps):
        compute = [work(rank, step) * rng.lognormvariate(0, noise) for rank in range(ranks)]
        total = max(compute) + 0.1
        made += [
            Timing(rank, step, total if totals else None, compute[rank], total - compute[rank], f"n{rank // per_node}")
            for rank in range(ranks)
        ]
    return collect(made)
