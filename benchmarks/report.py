"""How long does a report of a month of 10,000 nodes and 500,000 jobs take, and how much memory?

    python benchmarks/report.py [--json] [--quick] [--only report,dashboard] [--nodes 10000] [--jobs 500000]

* `report`: a simulated month with known truth becomes a journal, incident folders, and a stand-in for sacct. Then
  `srobust report` runs as people run it, each time as a new process: page, JSON, and the summary. Memory is the highest
  resident size of the process by the kernel's account. The counts of the JSON are compared with the truth.
* `dashboard`: page and live update of so many nodes, by dashboard.py.

What a real slurmdbd needs for its answers comes on top. Takes five minutes; with --quick half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lib import Report, Target, machine, show_table, spread
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

PARTS = ("report", "dashboard")
TRAININGS = ((1024, 2), (512, 2), (256, 4), (128, 8), (64, 16), (32, 32), (8, 64), (4, 92))
"""Nodes of the supervised trainings, and how many have so many: 220 on 8,048 nodes."""
_SINCE, _UNTIL = "2026-03-01T00:00:00Z", "2026-03-31T00:00:00Z"
SHAPES = {"page": ("--out", "month.html"), "json": ("--json",), "markdown": ("--markdown",), "summary": ()}


def made(folder: Path, nodes: int, jobs: int) -> dict[str, float]:
    """Write the month into this folder; what is true of it."""
    from report_month import make  # noqa: PLC0415 (loads the simulation, there)

    sizes = tuple(n for n, times in TRAININGS for _ in range(times)) if nodes >= 10_000 else (nodes // 2, nodes // 4)
    return make(folder.resolve(), nodes, jobs, sizes, seed=19)


def run(folder: Path, options: tuple[str, ...]) -> dict[str, float]:
    """One report: seconds, processor seconds and memory of the process; what it printed stands in `stdout`."""
    words = ("report", "--config", str(folder / "robust.yaml"), "--journal", str(folder / "state"))
    argv = [sys.executable, "-m", "slurm_robust.cli.main", *words, "--since", _SINCE, "--until", _UNTIL, *options]
    began_s = time.monotonic()
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(argv, cwd=folder, stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - began_s
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)}: {(folder / 'stderr').read_text()[-3000:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"took_s": took_s, "processor_s": cpu_s, "memory_mib": usage.ru_maxrss / 1024}


def beside_truth(found: dict[str, Any], truth: dict[str, float]) -> dict[str, dict[str, float]]:
    """What the report says, and what is true."""
    sections, numbers = found["sections"], found["numbers"]
    states = [row for row in sections["jobs"]["rows"] if row["by"] == "state"]
    said = {
        "runs": sum(row["runs"] for row in states),
        "gpu_hours": sum(row["hours"] for row in states),
        "incidents": numbers["incidents"],
        "ettr": numbers["ettr"],
    }
    return {name: {"report": value, "truth": truth[name]} for name, value in said.items()}


def reports(folder: Path, truth: dict[str, float], repeats: int) -> dict[str, Any]:
    """Every shape of the report: how long, how much memory, and whether it is right."""
    found: dict[str, Any] = {"month": truth}
    for shape, options in SHAPES.items():
        runs = [run(folder, options) for _ in range(repeats if shape == "page" else 1)]
        found[shape] = {name: spread(one[name] for one in runs) for name in runs[0]}
        if shape == "json":
            whole = json.loads((folder / "stdout").read_text())
            found["beside_truth"] = beside_truth(whole, truth)
            found["doubts"] = whole["doubts"]
    found["page_mib"] = (folder / "month.html").stat().st_size / (1 << 20)
    return found


def dashboard(nodes: int, *, quick: bool) -> dict[str, Any]:
    """What dashboard.py says of so many nodes."""
    program = Path(__file__).with_name("dashboard.py")
    options = ["--json", f"--nodes={nodes}", *(["--quick"] if quick else [])]
    done = subprocess.run([sys.executable, str(program), *options], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["figures"][str(nodes)]
    return found


def judge(report: Report) -> None:
    """The targets."""
    month, side = report.figures.get("report"), report.figures.get("dashboard")
    runs = [month[shape] for shape in SHAPES] if month else []
    report.targets = [
        Target("report as a page, median", 20, "s", month and month["page"]["took_s"].median),
        Target("memory, the highest of all", 1024, "MiB", max((one["memory_mib"].max for one in runs), default=None)),
        Target("dashboard's page, median", 50, "ms", side and side["page_ms"]["median"]),
        Target("live update, the last of those who watch", 1000, "ms", side and side["change_ms"]["max"]),
    ]


def show(report: Report, console: Console) -> None:
    """The figures, for people."""
    month, side = report.figures.get("report"), report.figures.get("dashboard")
    if month:
        rows = [(shape, *(month[shape][name] for name in ("took_s", "processor_s", "memory_mib"))) for shape in SHAPES]
        show_table(console, "srobust report", ("as", "seconds", "of a processor", "MiB"), rows)
        said = [(name, *(f"{value:,.6g}" for value in both.values())) for name, both in month["beside_truth"].items()]
        show_table(console, "Is it right?", ("what", "report", "truth"), said)
        facts = ", ".join(f"{value:,.6g} {name}" for name, value in month["month"].items())
        console.print(f"The month: {facts}. The page has {month['page_mib']:.2f} MiB. Doubts: {month['doubts']}")
    if side:
        show_table(console, "Dashboard", ("what", "figure"), [(k, json.dumps(v)) for k, v in side.items()])
    report.show(console)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="small; the figures only show that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=0, help="default: 10000")
    parser.add_argument("--jobs", type=int, default=0, help="default: 500000")
    parser.add_argument("--folder", type=Path, help="an empty one, which stays, to look at the files and reports")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    nodes, jobs = args.nodes or (50 if args.quick else 10_000), args.jobs or (400 if args.quick else 500_000)
    report = Report("report", args.quick, machine=machine(), notes=["What slurmdbd itself needs is not in it."])
    if "report" in parts:
        with contextlib.ExitStack() as stack:
            folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srobust-report-")))
            Console(stderr=True).print(f"writing a month of {nodes:,} nodes and {jobs:,} jobs …")
            # By another process: the memory of this one would count as that of its children.
            with ProcessPoolExecutor(1) as other:
                truth = other.submit(made, folder, nodes, jobs).result()
            report.figures["report"] = reports(folder.resolve(), truth, 1 if args.quick else 3)
    if "dashboard" in parts:
        report.figures["dashboard"] = dashboard(nodes, quick=args.quick)
    judge(report)
    if args.json:
        print(report.to_json())
        return
    show(report, Console())


if __name__ == "__main__":
    main()
