"""How soon does a job leave a node whose GPU is lost, and what does the service that tells it cost?

    python benchmarks/nodewatch.py [--json] [--quick] [--only live,sources,rest,flood]

* `live`: on a devcluster a rank stays in D state, as one whose GPU has left the bus does. At that moment its node's
  kernel log says so (XID 79), or says nothing: then the hang is found by the silence of the ranks. Rounds of both
  alternate.
* `sources`: from an event to the file of findings: a line of the kernel log, a link that the kernel takes away, GPUs
  that NVML does not find any more. No job.
* `rest`, `flood`: processor time and memory of one service, at rest and while 10⁶ lines come.

Takes about a quarter of an hour; with --quick two, for figures that only show that it works. Needs root (a network
namespace) and Slurm's daemons and commands.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import nodewatch_service as service
from lib import Report, Target, first_job_id, machine, show_table, spread, wait_for
from rich.console import Console
from roads import PATIENCE
from training import Training

from slurm_robust.devcluster.cluster import DevCluster, Spec

PARTS = ("live", "sources", "rest", "flood")
RANKS = 3
STEPS = 100_000
FAULT_STEP = 13
PATIENCE_S = 120.0
_DEAD_MOUNT = {"kind": "dead_mount", "rank": 1, "step": FAULT_STEP}
_FORGOTTEN_S = 6.0
"""A job that starts sooner on the node that was left is told of the fault before it: it has no other prolog here."""
BYTEROBUST = {"kmsg": 2.0, "nvml": 10.0, "link": 30.0}
"""Seconds between two looks, ByteRobust (SOSP 2025), section 4.1: host, GPU, network."""
POLL_OF_A_FILE_S = 0.25
"""A devcluster has a plain file for a kernel log, and looks at it four times a second; /dev/kmsg wakes its reader."""


def one_round(cluster: DevCluster, number: int, *, told: bool, whole: bool) -> dict[str, float]:
    """Break a training once; seconds from the fault to the signal, the decision, the stop and (`whole`) the resumption.

    The signal is the supervisor's own line of it.
    """
    job = Training(cluster, f"{'told' if told else 'silent'}-{number}")
    own = f"-N{RANKS} -n{RANKS} --robust-checkpoint-dir={job.folder}/ck"
    job.submit(f"srobust run {own} {job.program(STEPS)}", RANKS + 1, fault=_DEAD_MOUNT, gpus=2)
    try:
        wait_for(lambda: "\nfault: " in job.output(), PATIENCE_S, "the fault", poll_s=0.01)
        victim, at_s = job.state()[1][1], time.time()
        if told:
            at_s = time.time()
            # Another card each time: the same one twice within minutes is one finding.
            cluster.add_kmsg(victim, f"NVRM: Xid (PCI:0000:{number:02x}:00): 79, pid=1, GPU has fallen off the bus.")
        decided = job.hears("decided", PATIENCE_S)
        wait_for(lambda: "stopped" in job.incident_times(), PATIENCE_S, "the end of the step")
        began_s = at_s if told else job.struck_at_s()
        found = {"decided_s": decided["at_s"] - began_s, "stopped_s": job.incident_times()["stopped"] - began_s}
        if whole:
            job.hears("resumed", PATIENCE_S)
            found["resumed_s"] = job.incident_times()["first_new_step"] - began_s
        if told:
            found["signal_s"] = job.told("node-fault")[0]["at_s"] - began_s
        left = decided["evict"]
        if left != [victim]:
            raise RuntimeError(f"round {number}: {left or 'no node'} was left, and {victim} had the fault")
        return found
    finally:
        job.cancel()
        time.sleep(_FORGOTTEN_S)


def live(count: int, baseline: int, console: Console) -> dict[str, Any]:
    """Rounds of both kinds, in turn."""
    keys = ("signal_s", "decided_s", "stopped_s", "resumed_s")
    told, silent = list[dict[str, float]](), list[dict[str, float]]()
    spec = Spec(
        nodes=RANKS + 1,
        gpus_per_node=2,
        nodewatch=True,
        prolog=False,
        slurm_conf_extra=first_job_id(),
        robust_yaml={"supervise": PATIENCE},
    )
    cluster = DevCluster.up(spec)
    try:
        for number in range(count):
            told.append(one_round(cluster, number, told=True, whole=number < baseline))
            console.print(f"told {number + 1}/{count}: decided after {told[-1]['decided_s']:.2f} s")
            if len(silent) < baseline and number % max(1, count // baseline) == 0:
                silent.append(one_round(cluster, number, told=False, whole=True))
                console.print(f"silent {len(silent)}/{baseline}: decided after {silent[-1]['decided_s']:.2f} s")
    finally:
        cluster.down()
    return {
        kind: {key: spread(one[key] for one in rounds if key in one) for key in keys if key in rounds[0]}
        for kind, rounds in (("told", told), ("silent", silent))
    }


def measure(parts: set[str], folder: Path, console: Console, *, quick: bool) -> Report:
    """Run the parts asked for."""
    report = Report("nodewatch", quick, machine=machine())
    report.notes.append(
        f"The kernel log of `live` is a plain file, looked at every {POLL_OF_A_FILE_S:g} s: /dev/kmsg wakes at once."
    )
    report.notes.append(f"A silence is acted on after {PATIENCE['strong_patience_s']:g} s here, after 75 s by default.")
    figures = report.figures
    if "sources" in parts:
        figures["sources"] = {
            name: spread(values) for name, values in service.event_to_finding(folder, 3 if quick else 20).items()
        }
    if "rest" in parts:
        figures["rest"] = service.at_rest(folder / "rest", 5.0 if quick else 120.0)
    if "flood" in parts:
        figures["flood"] = service.in_flood(folder / "flood", 20_000 if quick else 1_000_000)
    if "live" in parts:
        figures["live"] = live(2 if quick else 30, 1 if quick else 6, console)
    _judge(report)
    return report


def _judge(report: Report) -> None:
    told = report.figures.get("live", {}).get("told", {})
    rest: service.Cost | None = report.figures.get("rest")
    flood: service.Flood | None = report.figures.get("flood")
    signal, decided = told.get("signal_s"), told.get("decided_s")
    report.targets += [
        Target("kernel log → signal at the supervisor, median", 1, "s", signal and signal.median),
        Target("kernel log → decision, median", 2, "s", decided and decided.median),
        Target("kernel log → decision, worst", 3, "s", decided and decided.max),
        Target("the service at rest, of a core", 0.1, "%", rest and rest.cpu_percent),
        Target("the service at rest, memory of its own (PSS)", 30, "MiB", rest and rest.pss_mib),
        Target("the service in a flood, memory of its own (PSS)", 60, "MiB", flood and flood.cost.pss_mib),
    ]


def rows(report: Report) -> list[tuple[str, str]]:
    """The figures, for people."""
    out = list[tuple[str, str]]()
    for kind, what in (("told", "XID 79 in the kernel log"), ("silent", "the same, left to hang detection")):
        for key, value in report.figures.get("live", {}).get(kind, {}).items():
            out.append((f"{what} → {key.removesuffix('_s')}, s", f"{value}"))
    for name, value in report.figures.get("sources", {}).items():
        out.append((f"{name}: event → file, s (ByteRobust looks every {BYTEROBUST[name]:g} s)", f"{value}"))
    if rest := report.figures.get("rest"):
        out += [("at rest, % of a core", f"{rest.cpu_percent:.3f}"), ("at rest, PSS, MiB", f"{rest.pss_mib:.1f}")]
    if flood := report.figures.get("flood"):
        out += [
            (f"{flood.lines:,} lines: until all are judged, s", f"{flood.took_s:.1f}"),
            ("processor time meanwhile, s", f"{flood.cpu_s:.1f}"),
            ("most memory, PSS, MiB", f"{flood.cost.pss_mib:.1f}"),
            ("the XID at the end → file, s", f"{flood.last_s:.2f}"),
        ]
    return out


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="small and short; the figures only show that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    console = Console(stderr=True)
    with service.scratch() as folder:
        report = measure(parts, folder, console, quick=args.quick)
    if args.json:
        print(report.to_json())
        return
    show_table(Console(), "Node watch", ("what", "measured"), rows(report))
    report.show(Console())


if __name__ == "__main__":
    main()
