"""Benchmarks that measure one thing at growing numbers of ranks, each size in a process of its own."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lib
from rich.console import Console

LARGE = 100_000
"""The size that targets are about."""
Figures = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class ScaleBenchmark:
    """What is measured, and how it is shown.

    Attributes:
        program: The benchmark's file, which is started again for each size; its name is the report's.
        help: Its docstring.
        note: What the figures do not say.
        repeat: Name, default and meaning of its one own option, a number.
        measure: One size's figures, from the number of ranks and that option.
        targets: What the figures should be.
        columns: Heading of the table → key of the figures.
    """

    program: str
    help: str
    note: str
    repeat: tuple[str, int, str]
    measure: Callable[[int, int], dict[str, Any]]
    targets: Callable[[Figures], list[lib.Target]]
    columns: Mapping[str, str]


def growth(figures: Figures, key: str) -> list[lib.Target]:
    """The target on the time a rank: at the largest size about what it is at the smallest."""
    if len(figures) < 2:
        return []
    small, most = (f[key] / f["ranks"] for f in (figures[0], figures[-1]))
    return [lib.Target("time a rank, largest to smallest size", 1.2, "times", round(most / small, 2))]


def run(benchmark: ScaleBenchmark, argv: Sequence[str] | None = None) -> int:
    """Measure each size in a process of its own, and show the figures as a table or as JSON."""
    option, default, meaning = benchmark.repeat
    parser = argparse.ArgumentParser(description=benchmark.help, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", help=f"sizes (default: 1000,10000,{LARGE})")
    parser.add_argument(
        f"--{option}", dest="repeat", type=int, default=default, help=f"{meaning} (default: %(default)s)"
    )
    parser.add_argument("--here", action="store_true", help="in this process, one size, one line of JSON")
    parser.add_argument("--quick", action="store_true", help="1,000 and 4,000 ranks")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    options = parser.parse_args(argv)
    sizes = [int(n) for n in (options.ranks or ("1000,4000" if options.quick else f"1000,10000,{LARGE}")).split(",")]
    if options.here:
        print(json.dumps(benchmark.measure(sizes[0], options.repeat)))
        return 0
    report = lib.Report(Path(benchmark.program).stem, options.quick, notes=[benchmark.note], machine=lib.machine())
    found = []
    for ranks in sizes:
        again = [sys.executable, benchmark.program, "--here", "--ranks", str(ranks), f"--{option}", str(options.repeat)]
        found.append(json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout))
    report.figures = {"sizes": found}
    report.targets = benchmark.targets(found)
    if options.json:
        print(report.to_json())
        return 0
    console = Console()
    rows = [[str(size[key]) for key in benchmark.columns.values()] for size in found]
    lib.show_table(console, "Size", tuple(benchmark.columns), rows)
    report.show(console)
    return 0
