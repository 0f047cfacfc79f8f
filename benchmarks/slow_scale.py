"""How long it takes to judge the step timings of many ranks, and how much memory.

    python benchmarks/slow_scale.py [--quick] [--json] [--ranks 1000,10000,100000] [--steps 50]

Each size, a multiple of 40, runs in a process of its own on one core. The timings are invented: tensor groups of eight
ranks, pipelines of five stages, sequences that differ by a tenth between replicas (so that both comparisons are made),
one value in a hundred missing, and one rank that is ten per cent slower than its peers. Only the judging is timed, not
the making or the reading of the timings.
"""

from __future__ import annotations

import resource
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import lib
import numpy as np
import scale

from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.timings import StepTimings

TP, PP = 8, 5
RANKS_PER_NODE = 8
NOTE = "Processor time of one core; invented timings."


def timings(ranks: int, steps: int) -> StepTimings:
    """So many ranks and steps; the rank in the middle is slow."""
    random = np.random.default_rng(1)
    rank = np.arange(ranks)
    replica, stage = rank // TP % (ranks // (TP * PP)), rank // (ranks // PP)
    work = (1 + 0.005 * random.standard_normal(ranks)) * np.where(stage == PP - 1, 1.2, 1.0)
    work[ranks // 2] *= 1.1
    lengths = np.exp(0.1 * random.standard_normal((steps, ranks // (TP * PP))))
    table = work * lengths[:, replica] * np.exp(0.01 * random.standard_normal((steps, ranks)))
    table[random.random((steps, ranks)) < 0.01] = np.nan
    nodes = {number: f"n{number // RANKS_PER_NODE:05}" for number in range(ranks)}
    compute = tuple(array("d", row.tobytes()) for row in table)
    return StepTimings(tuple(range(ranks)), tuple(range(steps)), nodes, compute, compute)


def measure(ranks: int, steps: int) -> dict[str, object]:
    """One size, in this process."""
    made = timings(ranks, steps)
    judge_timings(timings(1000, 50), {"tp": TP, "pp": PP})  # loads what is to be loaded
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    started = time.process_time()
    verdict = judge_timings(made, {"tp": TP, "pp": PP})
    return {
        "ranks": ranks,
        "steps": steps,
        "judge_s": round(time.process_time() - started, 3),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "before_mib": before_mib,
        "named": [list(suspect.ranks) for suspect in verdict.suspects],
        "right": [suspect.ranks for suspect in verdict.suspects] == [(ranks // 2,)],
    }


def targets(figures: Sequence[Mapping[str, Any]]) -> list[lib.Target]:
    """Of the largest size, where it was measured."""
    large = next((f for f in figures if f["ranks"] == scale.LARGE), {})
    found = [
        lib.Target("judge the timings of 100,000 ranks", 2.0, "s", large.get("judge_s")),
        lib.Target("memory for it", 1024, "MiB", large.get("peak_mib")),
        lib.Target("sizes with a wrong verdict", 0, "", sum(not f["right"] for f in figures)),
    ]
    return [*found, *scale.growth(figures, "judge_s")]


BENCHMARK = scale.ScaleBenchmark(
    __file__,
    __doc__,
    NOTE,
    ("steps", 50, "steps"),
    measure,
    targets,
    {"ranks": "ranks", "steps": "steps", "judge s": "judge_s", "peak MiB": "peak_mib", "right": "right"},
)


if __name__ == "__main__":
    sys.exit(scale.run(BENCHMARK))
