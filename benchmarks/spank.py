"""How long `srun -N4 -n32 true` takes: without the SPANK plugin, with it and unused, with --robust, under srobust run.

The four take turns, so that what else this machine does meets all of them alike. Needs what the plugin is built with.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from lib import Report, Spread, Target, machine, median_interval, show_table, spread, wait_for
from rich.console import Console

from slurm_robust.devcluster.cluster import DevCluster, Spec

SPANK = Path(__file__).resolve().parents[1] / "spank"
STEP = ("-N4", "-n32", "--overlap", "true")
NAMES = ("without", "unused", "robust", "srobust_run")


def build(folder: Path) -> str:
    """The plugin's line of plugstack.conf."""
    subprocess.run(["make", "-s", "-C", SPANK, f"BUILD={folder}/objects"], check=True)
    arguments = f"command={shutil.which('srobust')} python={SPANK}/python exits={folder}/exits"
    return f"optional {folder}/objects/spank_robust.so {arguments}\n"


def launches(rounds: int) -> dict[str, list[float]]:
    """Seconds of every launch, by what it was."""
    with tempfile.TemporaryDirectory(prefix="srobust-spank-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        loaded, conf = build(folder), folder / "plugstack.conf"
        conf.write_text("")
        cluster = DevCluster.up(Spec(nodes=4, slurm_conf_extra=f"PlugStackConfig={conf}"))
        try:
            words = ["sbatch", "--parsable", "-N4", "-n32", "--output=/dev/null", "--wrap", "sleep 3600"]
            job = cluster.run(words).stdout.strip()
            wait_for(lambda: cluster.run(["squeue", "-h", "-t", "R", "-j", job]).stdout, 30, "the job")
            env = {**cluster.env, "SLURM_JOB_ID": job, "SLURM_CLUSTER_NAME": cluster.name}
            env["PWD"] = str(folder)
            ways = {
                "without": ("", ["srun", *STEP]),
                "unused": (loaded, ["srun", *STEP]),
                "robust": (loaded, ["srun", "--robust", *STEP]),
                "srobust_run": ("", ["srobust", "run", f"--robust-folder={folder}", *STEP]),
            }
            took: dict[str, list[float]] = {name: [] for name in NAMES}
            for turn in range(rounds + 1):
                # There and back: a launch after srobust run may find its supervisor still ending.
                for way, (text, command) in sorted(ways.items(), reverse=turn % 2 == 1):
                    conf.write_text(text)
                    began = time.monotonic()
                    subprocess.run(command, env=env, check=True, capture_output=True, cwd=folder)
                    if turn:  # the first of each fills caches
                        took[way].append(time.monotonic() - began)
            cluster.run(["scancel", job])
        finally:
            cluster.down()
    return took


def measure(*, quick: bool) -> Report:
    """All four."""
    report = Report("spank", quick, machine=machine())
    report.machine["load_at_start"] = os.getloadavg()[0]
    took = launches(2 if quick else 20)
    figures: dict[str, Spread | None] = {f"{name}_s": spread(values) for name, values in took.items()}
    # A launch beside its neighbour, not beside the average of a quarter of an hour.
    unused = [(b - a) / a * 100 for a, b in zip(took["without"], took["unused"], strict=True)]
    used = [(b - a) * 1000 for a, b in zip(took["without"], took["robust"], strict=True)]
    run = [(b - a) * 1000 for a, b in zip(took["without"], took["srobust_run"], strict=True)]
    report.figures.update(figures, unused_percent=spread(unused), used_ms=spread(used), run_ms=spread(run))
    for name, limit, unit, values in (
        ("launch with the plugin unused, longer", 1, "%", unused),
        ("launch with --robust, longer", 100, "ms", used),
        ("launch under srobust run, longer", 100, "ms", run),
    ):
        report.targets.append(Target(name, limit, unit, statistics.median(values), median_interval(values)))
    return report


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="two launches of each; only shows that it works")
    args = parser.parse_args()
    report = measure(quick=args.quick)
    if args.json:
        print(report.to_json())
        return
    console = Console()
    show_table(console, "srun -N4 -n32 true, s", ("what", "seconds"), [(n, report.figures[f"{n}_s"]) for n in NAMES])
    report.show(console)


if __name__ == "__main__":
    main()
