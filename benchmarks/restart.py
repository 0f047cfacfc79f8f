"""How long a broken training stands still: each road back, beside what plain Slurm does, from one run.

    python benchmarks/restart.py [--json] [--quick] [--repeats N] [--only plain,bare,spare,seat,…]

* `plain`: `scontrol requeue` of a job that nobody supervises, while another job waits for the same nodes. Once.
* `bare`, `spare`: a bare `srun` of the program inside an allocation; then our way inside it, onto a spare node.
* `in_place`, `warm`: a data loader hangs, and the step starts anew on the same nodes: cold, and with `--robust-warm`.
* `seat`: our way through claim, daemon, standby and seat. Also where ranks ignore SIGTERM (`sigterm`), where the epilog
  takes 15 s (`epilog`), where the suspect's node is frozen, slurmd and all (`frozen`), and on a Slurm whose prolog does
  not run at allocation (`no_alloc`: PrologFlags without Alloc, as Slurm has it by default).

Every cluster is a devcluster: a real slurmctld, a real slurmd for each node, real torch ranks (gloo), all on this
machine. The fault is one rank in D state; strong and weak evidence is acted on after 5 s (by default 75 and 300 s).
Times are the incident's own, as in incident.json and `srobust incidents --json`; `ranks_started` is the last rank's
first instruction, which the ranks write down themselves.

Our own share is what we add beyond suspicion and corroboration: from the decision to the last rank's first instruction,
less a bare `srun` start of the same program. It contains what Slurm needs to end the job and start it again. Imports,
process groups, checkpoint and first step are the program's.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import orders
import roads
from lib import Report, Spread, Target, machine, show_table, spread
from rich.console import Console
from roads import Run, Setting
from training import TIMELINE

PARTS = (
    "plain", "bare", "spare", "in_place", "warm", "seat", "sigterm", "epilog", "frozen", "no_alloc", "orders",
)  # fmt: skip
SEATS = ("seat", "sigterm", "epilog", "frozen", "no_alloc")
EPILOG_S = 15.0
TITLES = {
    "spare": "spare in the allocation",
    "in_place": "in place, cold",
    "warm": "in place, warm",
    "seat": "seat",
    "sigterm": "seat, ranks ignore SIGTERM",
    "epilog": f"seat, epilog of {EPILOG_S:g} s",
    "frozen": "seat, node frozen",
    "no_alloc": "seat, no prolog at allocation",
}
# Quicker to suspect than a site would want it; the order of things is the same.
_HASTY = {"suspicion_floor_s": 1.0, "corroborate_after_s": 1.2, "tick_s": 0.25}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(runs: Sequence[Run], bare: Spread | None) -> dict[str, Any]:
    """The repeats of one road, and what the targets are about."""
    times = [r.times for r in runs]
    known = [key for key in TIMELINE if all(key in t for t in times)]
    steps = {other: spread(t[other] - t[one] for t in times) for one, other in itertools.pairwise(known)}
    decision_to_ranks = [t["ranks_started"] - t["decided"] for t in times if "ranks_started" in t]
    return {
        "repeats": [dataclasses.asdict(r) for r in runs],
        "breakdown": steps,
        "fault_to_suspected_s": spread(t["suspected"] - t["fault"] for t in times if "suspected" in t),
        "fault_to_decided_s": spread(t["decided"] - t["fault"] for t in times),
        "suspicion_limit_s": spread(r.suspicion_limit_s for r in runs if r.suspicion_limit_s is not None),
        "beyond_suspicion_limit_s": spread(
            r.times["suspected"] - r.times["fault"] - r.suspicion_limit_s
            for r in runs
            if r.suspicion_limit_s is not None and "suspected" in r.times
        ),
        "corroboration_s": spread(t["decided"] - t["suspected"] for t in times if "suspected" in t),
        "decision_to_running_s": spread(t["running"] - t["decided"] for t in times),
        "decision_to_ranks_started_s": spread(decision_to_ranks),
        "step_gone_to_ranks_started_s": spread(
            t["ranks_started"] - t["stopped"] for t in times if {"stopped", "ranks_started"} <= set(t)
        ),
        "own_share_s": spread(d - bare.median for d in decision_to_ranks) if bare else None,
        "fault_to_first_new_step_s": spread(t["first_new_step"] - t["fault"] for t in times),
        "decision_to_first_new_step_s": spread(t["first_new_step"] - t["decided"] for t in times),
        "warm_saved_s": spread(r.warm_saved_s for r in runs if r.warm_saved_s is not None),
        "queued_job_took_nodes": sum(bool(r.queued_job_took_nodes) for r in runs),
    }


def measure(parts: set[str], *, quick: bool, repeats: int) -> Report:
    """Bring up the clusters that the parts need, one after the other, and run them."""
    setting = Setting(ranks=2, repeats=1, supervise=_HASTY) if quick else Setting(repeats=repeats)
    report = Report("restart", quick, machine=machine())
    runs: dict[str, list[Run]] = {}
    bare: list[float] = []
    again = functools.partial(roads.repeated, setting.repeats, say=_say)
    report.figures["ranks"], report.figures["repeats"] = setting.ranks, setting.repeats
    if parts & {"plain", "bare", "spare", "in_place", "warm", "seat", "sigterm"}:
        with roads.cluster_for(setting, standby=1 if parts & {"seat", "sigterm"} else 0) as cluster:
            report.figures["proctrack"] = cluster.record.settings.proctrack
            report.figures["auth"] = cluster.record.settings.auth
            if parts & {"bare", "spare", "seat"}:
                bare = roads.bare_start(cluster, setting)
                _say(f"bare start: {bare}")
            ways: dict[str, Callable[[int], Run]] = {
                "spare": lambda n: roads.in_allocation(cluster, setting, f"spare{n}"),
                "in_place": lambda n: roads.in_place(cluster, setting, f"in_place{n}", warm=False),
                "warm": lambda n: roads.in_place(cluster, setting, f"warm{n}", warm=True),
                "seat": lambda n: roads.seat(cluster, setting, f"seat{n}"),
                "sigterm": lambda n: roads.seat(cluster, setting, f"sigterm{n}", IGNORE_SIGTERM="1"),
            }
            for name, one in ways.items():
                if name in parts:
                    runs[name] = again(one=one, what=name)
            if "plain" in parts:
                report.figures["plain_requeue"] = roads.plain_requeue(cluster, setting)
                _say(f"plain requeue: {report.figures['plain_requeue']}")
    if "epilog" in parts:
        with roads.cluster_for(setting, epilog_sleep_s=EPILOG_S) as cluster:
            runs["epilog"] = again(one=lambda n: roads.seat(cluster, setting, f"epilog{n}"), what="epilog")
    if "no_alloc" in parts:
        with roads.cluster_for(setting, alloc=False) as cluster:
            runs["no_alloc"] = again(one=lambda n: roads.seat(cluster, setting, f"plain{n}"), what="no_alloc")
    if "orders" in parts:
        with roads.cluster_for(setting, alloc=False) as cluster:
            report.figures["orders"] = found = orders.summary(orders.compare(cluster, setting))
        _say(f"orders: {found}")
    if "frozen" in parts:
        runs["frozen"] = again(one=lambda _: _frozen(setting), what="frozen")
    report.figures["bare_start_s"] = bare_s = spread(bare)
    report.figures["roads"] = {name: summary(found, bare_s) for name, found in runs.items() if found}
    report.figures["failed_runs"] = {n: setting.repeats - len(r) for n, r in runs.items() if len(r) < setting.repeats}
    report.notes += [f"{TITLES[name]}: a run failed, its words are on stderr" for name in report.figures["failed_runs"]]
    _judge(report)
    return report


def _frozen(setting: Setting) -> Run:
    """A cluster of its own each time: its frozen node is set DOWN and drained."""
    with roads.cluster_for(setting) as cluster:
        return roads.seat(cluster, setting, "frozen", freeze=True)


def _median(figures: dict[str, Any], road: str, what: str) -> float | None:
    found = figures["roads"].get(road, {}).get(what)
    return None if found is None else found.median


def _judge(report: Report) -> None:
    f = report.figures
    bare, plain = f["bare_start_s"], f.get("plain_requeue", {}).get("decision_to_running_s")
    for name in SEATS:
        running = _median(f, name, "decision_to_running_s")
        if running is not None and plain is not None:
            f["roads"][name]["ratio_to_plain_requeue"] = round(running / plain, 5)
    for name, part in (("seat", 60), ("no_alloc", 100)):
        ratio = f["roads"].get(name, {}).get("ratio_to_plain_requeue")
        what = f"{TITLES[name]}: decision → running, × plain requeue"
        report.targets.append(Target(what, round(1 / part, 4), "", ratio))
    started = _median(f, "spare", "step_gone_to_ranks_started_s")
    report.targets.append(
        Target("spare: step gone → ranks started", round(bare.median + 1, 2) if bare else 1, "s", started)
    )
    if "warm" in f["roads"]:
        what = f"{TITLES['warm']}: decided → first new step"
        report.targets.append(Target(what, 1.5, "s", _median(f, "warm", "decision_to_first_new_step_s")))
    report.targets += [
        Target(f"{TITLES[name]}: our own share", 3, "s", _median(f, name, "own_share_s"))
        for name in ("spare", "seat", "sigterm", "no_alloc")
    ]
    for name in ("spare", "seat"):
        beyond = _median(f, name, "beyond_suspicion_limit_s")
        # The story says the limit to a tenth of a second.
        around = None if beyond is None else (beyond - 0.05, beyond + 0.05)
        report.targets += [
            Target(f"{TITLES[name]}: suspected, beyond 3 × p99 + 2 s", 0, "s", beyond, around),
            Target(f"{TITLES[name]}: suspected → decided", 10, "s", _median(f, name, "corroboration_s")),
        ]


def show(report: Report, console: Console) -> None:
    """The tables, for people."""
    f = report.figures
    names = list(f["roads"])
    if plain := f.get("plain_requeue"):
        took = "took its nodes" if plain["queued_job_took_nodes"] else "did not take its nodes"
        console.print(
            f"Plain scontrol requeue: {plain['decision_to_running_s']:.1f} s to RUNNING; a queued job {took}."
        )
    for order, found in f.get("orders", {}).items():
        console.print(
            f"Requeued and placed by {order}, calls alone: {found['requeue_to_script_s']} s to the script, "
            f"{found['in_seat']} of {found['requeue_to_script_s'].n} in the seat."
        )
    console.print(f"Bare srun start to the last rank's first instruction: {f['bare_start_s']} s")
    rows: list[Sequence[Any]] = [
        (f"… → {key.replace('_', ' ')}", *(f["roads"][name]["breakdown"].get(key) for name in names))
        for key in TIMELINE[1:]
    ]
    for key, title in (
        ("decision_to_running_s", "decision → running"),
        ("own_share_s", "our own share"),
        ("decision_to_first_new_step_s", "decision → first new step"),
        ("warm_saved_s", "spent beforehand by warm processes"),
        ("fault_to_first_new_step_s", "fault → first new step"),
        ("ratio_to_plain_requeue", "decision → running, × plain requeue"),
        ("queued_job_took_nodes", "runs in which a queued job took nodes"),
    ):
        rows.append((title, *(f["roads"][name].get(key) for name in names)))
    show_table(console, "Seconds, median (least – most)", ("since the one before", *(TITLES[n] for n in names)), rows)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument(
        "--quick", action="store_true", help="two ranks, one repeat, hasty suspicion: shows that it works"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of everything but the plain requeue (default: 3)")
    parser.add_argument(
        "--only", default="", help=f"parts, with commas (default: all; with --quick: spare): {', '.join(PARTS)}"
    )
    args = parser.parse_args()
    parts = set((args.only or ("spare" if args.quick else ",".join(PARTS))).split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    report = measure(parts, quick=args.quick, repeats=args.repeats)
    if args.json:
        print(report.to_json())
    else:
        console = Console(width=200)
        show(report, console)
        report.show(console)
    sys.exit(1 if report.figures["failed_runs"] else 0)


if __name__ == "__main__":
    main()
