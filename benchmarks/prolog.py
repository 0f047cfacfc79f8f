"""What the node checks cost a job's start: the prolog as slurmd runs it, beside the interpreters that it is made of.

    python benchmarks/prolog.py                             # about a minute
    python benchmarks/prolog.py --gpucm VENV/bin/health_checks   # beside checks of facebookresearch/gcm that overlap

The commands are run in turn, round after round, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lib import ROOT, Report, Target, machine, show_table, spread
from rich.console import Console

sys.path.append(str(ROOT / "tests"))
from fake_gpus import compile_fake

WARM_MS, COLD_MS = 30.0, 120.0
LOG_LINES = 5000
"""As many as a kernel log of this machine's kind holds some weeks after boot."""


class Case(NamedTuple):
    """One command.

    Attributes:
        argv: What is run.
        before: Done before each run, not timed.
        codes: Exit codes that are well.
    """

    name: str
    argv: list[str]
    before: Callable[[], None] = lambda: None
    codes: tuple[int, ...] = (0,)


class Site:
    """A node with a kernel log and eight H100 that NVML makes up, and the scripts with their settings."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        log = folder / "kmsg"
        log.write_text("".join(f"[{n:5d}.000000] usb 1-1: message {n}\n" for n in range(LOG_LINES)))
        self.config = folder / "robust.yaml"
        library = compile_fake(folder)
        (folder / "scenario").write_text("gpus=8\n")
        self.config.write_text(
            f"nodecheck: {{kmsg: {log}, cache_dir: {self.cache}, nvml_library: {library}, deadline_s: 30, "
            "disable: [matmul, bandwidth, collective]}\n"
        )
        settings = {"SROBUST_PYTHON": sys.executable, "SROBUST_CODE": str(ROOT), "SROBUST_CONFIG": str(self.config)}
        self.settings = folder / "env"
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def forget(self, *names: str) -> Callable[[], None]:
        """Takes away what is kept: these files, or all."""

        def do() -> None:
            for path in self.cache.glob("*") if not names else map(self.cache.joinpath, names):
                path.unlink(missing_ok=True)

        return do


def cases(site: Site, gpucm: str | None) -> list[Case]:
    """What is compared."""
    prolog = [str(ROOT / "prolog/srobust-prolog"), str(site.settings)]
    check = ["-m", "slurm_robust.nodecheck", "--config", str(site.config), "--stage", "full"]
    found = [
        Case("bash -c true", ["bash", "-c", "true"]),
        Case("python -c pass", [sys.executable, "-c", "pass"]),
        Case("python -I -S -c pass", [sys.executable, "-I", "-S", "-c", "pass"]),
        Case("prolog, fresh verdict (warm)", prolog),
        Case("prolog, whole look, settings kept", prolog, site.forget("fresh")),
        Case("prolog, nothing kept (cold)", prolog, site.forget()),
        Case("epilog", [str(ROOT / "epilog/srobust-epilog"), str(site.settings)]),
        Case("health check", [str(ROOT / "prolog/srobust-healthcheck"), str(site.settings)]),
        Case(
            "srobust check --stage full, without torch",
            [sys.executable, *check],
            codes=(0, 1, 3),
        ),
    ]
    if gpucm:
        common = ["bench", "prolog", "--sink", "do_nothing"]
        disk = ["--volume", "/", "--usage-critical-threshold", "99", "--usage-warning-threshold", "98"]
        theirs = {
            "check-syslogs xid": ["check-syslogs", "xid", *common],
            "check-storage disk-usage": ["check-storage", "disk-usage", *common, *disk],
            "check-storage mounted-directory": ["check-storage", "mounted-directory", *common, "--directory", "/"],
            "check-process check-zombie": ["check-process", "check-zombie", *common],
            "check-node uptime": ["check-node", "uptime", *common],
        }
        # An exit code of theirs is a verdict on this machine, and no matter here.
        found += [Case(f"gpucm {name}", [gpucm, *argv], codes=tuple(range(256))) for name, argv in theirs.items()]
    return found


def once(case: Case) -> tuple[float, float]:
    """Run it: wall milliseconds, processor milliseconds."""
    case.before()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    env = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "42", "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(case.argv, env=env, cwd="/", capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in case.codes:
        raise SystemExit(f"{case.name}: exit code {done.returncode}: {done.stderr[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return wall_s * 1000, cpu_s * 1000


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="two rounds: only shows that it works")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gpucm", metavar="FILE", help="`health_checks` of an environment that has gpucm")
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    report = Report("prolog", args.quick, machine=machine(), notes=[])
    # Settings of a real site lie below folders of root's alone, and the scripts need fewer processes to see that.
    place = "/var/lib" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="srobust-prolog-", dir=place) as folder:
        site = Site(Path(folder))
        chosen = cases(site, args.gpucm)
        wall: dict[str, list[float]] = {case.name: [] for case in chosen}
        cpu: dict[str, list[float]] = {case.name: [] for case in chosen}
        for round_ in range(rounds + 1):
            for case in chosen:
                if case.name.startswith("prolog, fresh"):
                    once(case)  # leaves the verdict that the next one believes
                if case.name.startswith("gpucm") and round_ > 3:
                    continue
                took = once(case)
                if round_:  # the first round fills the page cache
                    wall[case.name].append(took[0])
                    cpu[case.name].append(took[1])
    rows = []
    for name, values in wall.items():
        report.figures[name] = {"wall_ms": spread(values), "cpu_ms": spread(cpu[name])}
        rows.append((name, str(spread(values)), str(spread(cpu[name]))))
    medians = {name: found.median for name, values in wall.items() if (found := spread(values))}
    report.targets = [
        Target("prolog, warm", WARM_MS, "ms", medians["prolog, fresh verdict (warm)"]),
        Target("prolog, cold", COLD_MS, "ms", medians["prolog, nothing kept (cold)"]),
    ]
    report.notes.append("cold: no verdict, no settings, no state; the files themselves are in memory in all runs")
    if not args.gpucm:
        report.notes.append("gpucm was not named with --gpucm: not compared")
    else:
        report.notes.append("gpucm: one process a check; only these five overlap and run without its GPUs and tools")
    if args.json:
        print(report.to_json())
    else:
        console = Console()
        report.show(console)
        show_table(console, "Milliseconds: median (least – most)", ("command", "wall", "processor"), rows)


if __name__ == "__main__":
    main()
