"""How long it takes to judge the step timings of many ranks, and how much memory.

    python benchmarks/slow_scale.py [--quick] [--json] [--ranks 1000,10000,100000] [--steps 50]

Each size runs in a process of its own on one core. The timings are invented: tensor groups of eight ranks, pipelines of
five stages, sequences that differ by a tenth between replicas (so that both comparisons are made), one value in a
hundred missing, and one rank that is ten per cent slower than its peers. Only the judging is timed, not the making or
the reading of the timings.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import lib
import numpy as np
from rich.console import Console

from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.slow.timings import StepTimings

TP, PP = 8, 5
RANKS_PER_NODE = 8
LARGE = 100_000
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
    large = next((f for f in figures if f["ranks"] == LARGE), {})
    found = [
        lib.Target("judge the timings of 100,000 ranks", 2.0, "s", large.get("judge_s")),
        lib.Target("memory for it", 1024, "MiB", large.get("peak_mib")),
        lib.Target("sizes with a wrong verdict", 0, "", sum(not f["right"] for f in figures)),
    ]
    if len(figures) > 1:
        times = [f["judge_s"] / f["ranks"] for f in (figures[0], figures[-1])]
        found.append(lib.Target("time a rank, largest to smallest size", 1.2, "times", round(times[1] / times[0], 2)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", help="sizes, multiples of 40 (default: 1000,10000,100000)")
    parser.add_argument("--steps", type=int, default=50, help="steps (default: %(default)s)")
    parser.add_argument("--here", action="store_true", help="in this process, one size, one line of JSON")
    parser.add_argument("--quick", action="store_true", help="1,000 and 4,000 ranks")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    options = parser.parse_args(argv)
    sizes = [int(n) for n in (options.ranks or ("1000,4000" if options.quick else f"1000,10000,{LARGE}")).split(",")]
    if options.here:
        print(json.dumps(measure(sizes[0], options.steps)))
        return 0
    report = lib.Report("slow_scale", options.quick, notes=[NOTE], machine=lib.machine())
    found = []
    for ranks in sizes:
        argv = [sys.executable, __file__, "--here", "--ranks", str(ranks), "--steps", str(options.steps)]
        found.append(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))
    report.figures = {"sizes": found}
    report.targets = targets(found)
    if options.json:
        print(report.to_json())
        return 0
    console = Console()
    columns = {"ranks": "ranks", "steps": "steps", "judge s": "judge_s", "peak MiB": "peak_mib", "right": "right"}
    lib.show_table(console, "Size", tuple(columns), [[str(size[key]) for key in columns.values()] for size in found])
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
