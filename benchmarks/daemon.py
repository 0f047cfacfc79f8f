"""What does the daemon cost on a large site, what does it ask of slurmctld, and how soon does it decide a storm?

    python benchmarks/daemon.py [--json] [--quick] [--only idle,trainings,incidents,storm] [--nodes 1000,10000]

On a real slurmctld of so many nodes, with 220 supervised jobs and 649 that wait:

* `idle`: nothing is under way. The daemon's share counts its commands (scontrol, squeue), its HTTP side and pyslurm.
* `trainings`: nothing is wrong, and every supervised job tells once a minute how it gets on.
* `incidents`: 20 recoveries are open, whose jobs take minutes to end.
* `storm`: 200 jobs ask within a minute.

With both ways to ask Slurm where pyslurm is installed. Takes about a quarter of an hour; with --quick half a minute,
for figures that only show that it works. Needs Slurm's daemons and commands.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from large_slurm import claim, large_slurm, progress, submit
from lib import Report, Spread, Target, machine, show_table, spread, wait_for
from many_nodes import memory_mib
from rich.console import Console

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.devcluster.cluster import DevCluster

PARTS = ("idle", "trainings", "incidents", "storm")
SITES = (1000, 10_000)
_TICKS = os.sysconf("SC_CLK_TCK")
TELL_S = 60.0
"""Between two reports of a job: the default of `supervise.report_interval_s`."""
_BOUND_S = 10.0
"""Each claim of a storm is to be decided within this time."""
_DECIDED_S = 300.0
_STORM_S = 120.0
"""What is not decided so long after the last claim counts as undecided, and as late."""


@dataclasses.dataclass(frozen=True)
class Size:
    """How much of everything one run has."""

    supervised: int = 220
    others: int = 649
    incidents: int = 20
    storm: int = 200
    storm_s: float = 60.0
    settle_s: float = 20.0
    window_s: float = 60.0


FULL = Size()
QUICK = Size(supervised=8, others=2, incidents=2, storm=6, storm_s=2.0, settle_s=1.0, window_s=2.0)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of the daemon with all its children, and of slurmctld, over one window; shares in percent of a core.

    Attributes:
        own_percent: Of the daemon's process alone.
        daemon_percent: With its commands, its HTTP side and the process that runs pyslurm.
        slurmctld_percent: In the same time.
        calls_a_second: Calls to Slurm.
        pss_mib: Memory of its own, and its share of what others use too: daemon, HTTP side and pyslurm's process.
        rss_mib: Resident size of the daemon's process.
    """

    own_percent: float
    daemon_percent: float
    slurmctld_percent: float
    calls_a_second: float
    pss_mib: float
    rss_mib: float


def processor_s(pid: int, *, reaped: bool = False) -> float:
    """Processor seconds of a process so far, with those of its ended threads; `reaped`: of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = (13, 14) if reaped else (11, 12)
    return (int(fields[user]) + int(fields[system])) / _TICKS


def children(pid: int) -> list[int]:
    """Its children that still run, whichever of its threads started them."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def measured(cluster: DevCluster, window_s: float) -> Cost:
    """What daemon and slurmctld need in this time."""
    daemon, slurmctld = cluster.daemon_pid, cluster.slurmctld_pid
    assert daemon is not None
    assert slurmctld is not None
    # The HTTP side, and pyslurm's process; commands come and go.
    names = (b"http", b"pyslurm_worker")
    lasting = [p for p in children(daemon) if any(name in Path(f"/proc/{p}/cmdline").read_bytes() for name in names)]

    def now() -> tuple[float, float, float, float]:
        others = processor_s(daemon, reaped=True) + sum(map(processor_s, lasting))
        return time.monotonic(), processor_s(daemon), others, processor_s(slurmctld)

    before, first = now(), state(cluster)
    time.sleep(window_s)
    after = now()
    # A state that does not change is published every few seconds only.
    last = wait_for(lambda: found if (found := state(cluster))["at_s"] > first["at_s"] else None, 30, "a state")
    took_s, own_s, others_s, slurmctld_s = (b - a for a, b in zip(before, after, strict=True))
    share = 100 / took_s
    memory = [memory_mib(pid) for pid in (daemon, *lasting)]
    return Cost(
        own_s * share,
        (own_s + others_s) * share,
        slurmctld_s * share,
        (last["slurm_calls"] - first["slurm_calls"]) / (last["at_s"] - first["at_s"]),
        sum(pss for pss, _, _ in memory),
        memory[0][1],
    )


def state(cluster: DevCluster) -> dict[str, Any]:
    """What the daemon has published."""
    path = cluster.layout.state / "srobustd" / "state.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def decided(cluster: DevCluster) -> dict[str, tuple[float, str]]:
    """By incident: seconds from the claim to the daemon's decision, and what was decided."""
    journal = Journal.open(cluster.layout.state / "srobustd", read_only=True)
    try:
        rows = journal.incidents()
    finally:
        journal.close()
    return {
        row.incident.id: (
            row.incident.opened_at_s - row.claimed_at_s,
            "refused" if row.outcome == "refused" else "plan",
        )
        for row in rows
    }


@contextlib.contextmanager
def telling(cluster: DevCluster, jobs: list[int]) -> Iterator[None]:
    """Meanwhile every job tells of its progress, evenly over each minute."""
    over = threading.Event()

    def tell() -> None:
        began_s = time.time()
        for step in itertools.count(1):
            number = (step - 1) % len(jobs)
            if over.wait(max(0.0, began_s + step * TELL_S / len(jobs) - time.time())):
                return
            progress(cluster, jobs[number], number, step)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def slurmctld_alone(cluster: DevCluster, window_s: float) -> float:
    """Percent of a core, without any daemon."""
    pid = cluster.slurmctld_pid
    assert pid is not None
    began_s, before_s = time.monotonic(), processor_s(pid)
    time.sleep(window_s)
    return (processor_s(pid) - before_s) / (time.monotonic() - began_s) * 100


def storm(cluster: DevCluster, jobs: list[int], size: Size) -> dict[str, Any]:
    """So many claims in so many seconds: how soon each was decided."""
    began_s, numbers = time.monotonic(), range(size.incidents, size.incidents + size.storm)
    for place, number in enumerate(numbers):
        time.sleep(max(0.0, began_s + place * size.storm_s / size.storm - time.monotonic()))
        claim(cluster, jobs[number], number)
    claimed_s = time.monotonic() - began_s
    wanted = {f"i-{number}" for number in numbers}
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: wanted <= decided(cluster).keys(), _STORM_S, f"{size.storm} decisions", poll_s=1.0)
    found = {key: value for key, value in decided(cluster).items() if key in wanted}
    took: Spread | None = spread(s for s, _ in found.values())
    late = sum(1 for s, _ in found.values() if s > _BOUND_S) + len(wanted) - len(found)
    planned = sum(1 for _, what in found.values() if what == "plan")
    return {"claims": size.storm, "claimed_in_s": claimed_s, "decided_s": took, "late": late, "planned": planned} | {
        "undecided": len(wanted) - len(found)
    }


def site(nodes: int, backend: str, parts: set[str], size: Size, folder: Path) -> dict[str, Any]:
    """One Slurm of so many nodes, and everything that is measured there."""
    config = {
        "slurm": {"backend": backend, "timeout_s": 30},
        # No claim of the storm is refused by a cap: each is planned, and carried out.
        "seat": {"max_active": 1000, "max_per_user_day": 10_000, "max_per_job_day": 100},
        "quarantine": {"recheck_command": ["/bin/true"]},
        # They are made once an hour, and would fall into one of the windows: `benchmarks/report.py` measures them.
        "daemon": {"http": {"report_every_h": 0}},
    }
    found: dict[str, Any] = {"nodes": nodes, "backend": backend, "supervised": size.supervised, "others": size.others}
    with large_slurm(nodes, folder, config) as cluster:
        jobs = submit(cluster, size.supervised, size.others)
        found["slurmctld_alone_percent"] = slurmctld_alone(cluster, size.window_s / 2)
        cluster.start_daemon()
        path = cluster.layout.state / "srobustd" / "state.json"
        wait_for(lambda: path.exists() and len(state(cluster)["jobs"]) == len(jobs), 120, "the daemon", poll_s=0.5)
        if "idle" in parts:
            time.sleep(size.settle_s)
            found["idle"] = measured(cluster, size.window_s)
        if "trainings" in parts:
            with telling(cluster, jobs):
                time.sleep(size.settle_s)
                found["trainings"] = measured(cluster, size.window_s)
        if "incidents" in parts:
            for number in range(size.incidents):
                claim(cluster, jobs[number], number)
            wait_for(lambda: len(decided(cluster)) >= size.incidents, _DECIDED_S, "the plans", poll_s=1.0)
            time.sleep(size.settle_s)
            found["incidents"] = measured(cluster, size.window_s)
        if "storm" in parts:
            found["storm"] = storm(cluster, jobs, size)
    return found


def judge(report: Report, largest: int) -> None:
    """The targets, at the largest site."""
    found = [s for s in report.figures["sites"] if s["nodes"] == largest]
    for one in found:
        where = f"{one['nodes']:,} nodes, {one['backend']}"
        idle, busy, stormy = one.get("idle"), one.get("incidents"), one.get("storm", {})
        telling_cost = one.get("trainings")
        took = math.inf if stormy.get("undecided") else stormy["decided_s"].max if stormy else None
        heaviest = max((cost.pss_mib for cost in (idle, busy) if cost), default=None)
        report.targets += [
            Target(f"{where}: daemon with its commands, idle, of a core", 5, "%", idle and idle.daemon_percent),
            Target(f"{where}: the same with trainings", 5, "%", telling_cost and telling_cost.daemon_percent),
            Target(f"{where}: the same with {FULL.incidents} incidents", 5, "%", busy and busy.daemon_percent),
            Target(f"{where}: memory (PSS)", 150, "MiB", heaviest),
            Target(f"{where}: a storm of {FULL.storm} claims, the last decision", _BOUND_S, "s", took),
        ]


def rows(report: Report) -> list[list[str]]:
    """The figures, for people."""
    sites = report.figures["sites"]
    out = [["slurmctld alone, % of a core", *(f"{s['slurmctld_alone_percent']:.1f}" for s in sites)]]
    for part, what in (("idle", "idle"), ("trainings", "trainings that report"), ("incidents", "incidents under way")):
        for name, unit in (
            ("daemon_percent", "daemon with its commands, % of a core"),
            ("own_percent", "the daemon's process alone, % of a core"),
            ("slurmctld_percent", "slurmctld beside it, % of a core"),
            ("calls_a_second", "calls to Slurm a second"),
            ("pss_mib", "memory (PSS), MiB"),
            ("rss_mib", "memory (RSS of the daemon's process), MiB"),
        ):
            figures = [getattr(s[part], name) if part in s else None for s in sites]
            out.append([f"{what}: {unit}", *("" if f is None else f"{f:.1f}" for f in figures)])
    names = ("decided_s", "late", "undecided", "planned", "claimed_in_s")
    return out + [[f"storm: {name}", *(str(s.get("storm", {}).get(name, "")) for s in sites)] for name in names]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="small and short; the figures only show that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    parser.add_argument("--nodes", default="", help="sizes, with commas (default: 1000,10000)")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    sizes = [int(word) for word in args.nodes.split(",")] if args.nodes else [100] if args.quick else list(SITES)
    here = importlib.util.find_spec("pyslurm") is not None
    report = Report("daemon", args.quick, machine=machine(), notes=[])
    report.figures["sites"] = []
    if not here:
        report.notes.append("pyslurm is not installed here: only Slurm's commands were measured.")
    with tempfile.TemporaryDirectory(prefix="srobust-daemon-") as folder:
        Path(folder).chmod(0o755)
        for nodes in sizes:
            for backend in ("commands", "pyslurm") if here else ("commands",):
                Console(stderr=True).print(f"{nodes:,} nodes, {backend} …")
                size = QUICK if args.quick else FULL
                report.figures["sites"].append(site(nodes, backend, parts, size, Path(folder)))
    judge(report, max(SITES))
    if args.json:
        print(report.to_json())
        return
    names = [f"{s['nodes']:,} nodes, {s['backend']}" for s in report.figures["sites"]]
    show_table(Console(), "The daemon on a large site", ("what", *names), rows(report))
    report.show(Console())


if __name__ == "__main__":
    main()
