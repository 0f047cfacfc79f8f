"""What the benchmarks share: the machine in words, figures with their spread, targets, tables and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

import slurm_robust
from slurm_robust.devcluster.machine import search_path

ROOT = Path(__file__).resolve().parents[1]
CPU_ONLY = "The ranks are processes on CPUs: these figures say nothing of GPUs, NCCL or real networks."
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing."""

    min: float
    median: float
    max: float
    n: int

    def __str__(self) -> str:
        if self.n == 1:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.min:.2f} – {self.max:.2f})"


def spread(values: Iterable[float]) -> Spread | None:
    """Minimum, median and maximum; None if nothing was measured."""
    known = sorted(values)
    if not known:
        return None
    return Spread(round(known[0], 6), round(statistics.median(known), 6), round(known[-1], 6), len(known))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from the values' order alone."""
    ordered, n = sorted(values), len(values)
    below = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return ordered[below], ordered[n - 1 - below]


@dataclasses.dataclass(frozen=True)
class Target:
    """One of the design's targets beside what was measured.

    Attributes:
        name: Of what.
        limit: It is to be at most this.
        unit: Of both.
        figure: None if this run did not measure it.
        interval: Where the figure may as well lie, given the noise; None if that was not asked.
    """

    name: str
    limit: float
    unit: str
    figure: float | None
    interval: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        """Whether it is met; None if it was not measured, or not sharply enough to tell."""
        if self.figure is None or (self.interval and self.interval[0] <= self.limit < self.interval[1]):
            return None
        return self.figure <= self.limit

    @property
    def verdict(self) -> str:
        """The same, for people."""
        if self.met is None:
            return "not measured" if self.figure is None else "cannot tell"
        return "met" if self.met else "NOT met"


@dataclasses.dataclass
class Report:
    """What a benchmark found."""

    benchmark: str
    quick: bool
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    targets: list[Target] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=lambda: [CPU_ONLY])
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """One object of named figures."""
        targets = [{**dataclasses.asdict(t), "met": t.met} for t in self.targets]
        shown = {
            "benchmark": self.benchmark,
            "quick": self.quick,
            "machine": {**self.machine, "load_at_end": os.getloadavg()[0]},
            "targets": targets,
            "figures": self.figures,
            "notes": self.notes,
        }
        return json.dumps(shown, indent=1, default=_plain)

    def show(self, console: Console) -> None:
        """Print machine, targets and notes, for people."""
        m = self.machine
        console.print(f"{m['date']}: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['system']}; ", end="")
        console.print(f"Python {m['python']}, torch {m['torch']}, {m['slurm']}, slurm-robust {m['slurm_robust']}")
        console.print(f"load average {m['load_at_start']:.2f} before, {os.getloadavg()[0]:.2f} after")
        rows = [
            (
                t.name,
                f"≤ {t.limit:g} {t.unit}",
                _figure(t),
                {True: "met", False: "NOT met", None: "not measured"}[t.met],
            )
            for t in self.targets
        ]
        show_table(console, "Targets", ("what", "target", "measured", ""), rows)
        for note in self.notes:
            console.print(f"* {note}")


def _figure(target: Target) -> str:
    if target.figure is None:
        return ""
    around = "" if target.interval is None else f" ({target.interval[0]:+.2f} to {target.interval[1]:+.2f})"
    return f"{target.figure:.3g}{around} {target.unit}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{value!r} is no figure")


def show_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people; the first column is text, the others are numbers."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    console.print(table)


def machine() -> dict[str, Any]:
    """What this ran on, and when."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20)) if memory else None,
        "gpus": 0,
        "system": f"{_os_release()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "slurm": _output([shutil.which("slurmctld", path=search_path()) or "slurmctld", "-V"]) or "no Slurm",
        "slurm_robust": f"{slurm_robust.__version__} {_commit()}".strip(),
        "load_at_start": os.getloadavg()[0],
    }


def _commit() -> str:
    return _output(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])


def _os_release() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def first_job_id() -> str:
    """A line for slurm.conf: trainings choose ports by their job id, and several clusters may share this machine."""
    return f"FirstJobId={random.randrange(1000, 60000)}\n"


def wait_for(seen: Callable[[], T | None], timeout_s: float, what: str, *, poll_s: float = 0.05) -> T:
    """Poll until there is something, and return it.

    Raises:
        TimeoutError: there was nothing in `timeout_s`; names what was awaited.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = seen()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(poll_s)


def each(values: Iterable[Mapping[str, float]], key: str) -> Spread | None:
    """The spread of one named measurement over repeats; those that lack it do not count."""
    return spread(v[key] for v in values if key in v)
