"""What supervision costs: a training's steps, a node's memory, and the supervisor's processor where nodes are many.

    python benchmarks/supervision.py [--json] [--quick] [--only call,steady,train,nodes,crowd]

* `call`: one `progress.step(n, loss=…, grad_norm=…)`.
* `steady`, `train`: steps of a loop of fixed work, and of `examples/train.py`, with supervision and without, in turns
  within one run (see step_time.py).
* `nodes`: a real Slurm of 64 nodes on this machine, a small Python rank on each: start of the watch step, a capture of
  all stacks, memory and processor time of an agent (see many_nodes.py).
* `crowd`: 2,048 agents of 8 ranks, played by one process, on one real supervisor (see crowd.py).

Needs Slurm's daemons and commands. Takes about ten minutes; with --quick half a minute, for figures that only show
that it works.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import crowd
import many_nodes
import step_time
from lib import Report, Spread, Target, machine, show_table, spread
from rich.console import Console

from slurm_robust import progress

NODE_CORES = 64
"""A small node of eight GPUs. What our processes take there is spread over these; a rank never waits for more."""
PARTS = ("call", "steady", "train", "nodes", "crowd")
REAL_STEP_S = 0.1
"""A short step of a real training; the cost of one call is set against it."""


def call_ns(rounds: int, calls: int) -> Spread:
    """Time of one `progress.step` with loss and gradient norm, nanoseconds."""
    return _call_ns(lambda n: progress.step(n, loss=2.5, grad_norm=1.5), rounds, calls)


def timing_ns(rounds: int, calls: int) -> Spread:
    """Time of one `progress.timing`, nanoseconds."""
    return _call_ns(lambda _: progress.timing(compute_s=0.5), rounds, calls)


def _call_ns(call: Callable[[int], None], rounds: int, calls: int) -> Spread:
    """The loop around it, and a call that does nothing, are taken off."""
    progress.step(0, loss=1.0, grad_norm=1.0)  # makes the page
    if progress.find(os.getpid()) is None:
        raise RuntimeError("progress reports nothing here: SROBUST_PROGRESS=0, or no memfd can be made")
    found = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        for n in range(calls):
            call(n)
        middle = time.perf_counter_ns()
        for n in range(calls):
            _nothing(n)
        found.append(((middle - began) - (time.perf_counter_ns() - middle)) / calls)
    measured = spread(found)
    assert measured is not None
    return measured


def _nothing(_: int) -> None:
    """What calling costs by itself."""


def measure(parts: set[str], *, quick: bool) -> Report:
    """Run the parts asked for."""
    report = Report("supervision", quick, machine=machine())
    figures: dict[str, Any] = report.figures
    if "call" in parts:
        figures["progress_step_ns"] = call_ns(5, 20_000 if quick else 200_000)
        figures["progress_timing_ns"] = timing_ns(5, 20_000 if quick else 200_000)
    if "crowd" in parts:
        agents, seconds = (128, 2.0) if quick else (2048, 20.0)
        figures["crowd_agents"], figures["crowd_ranks"] = agents, agents * 8
        # `train_2` is an agent that speaks at every tick, the most that it ever does.
        for name, rate, phase in (("train_1", 1, "train"), ("train_2", 2, "train"), ("checkpoint_1", 1, "checkpoint"),
                                  ("timed_1", 1, "timed")):  # fmt: skip
            if not quick or name in ("train_1", "timed_1"):
                figures[f"crowd_{name}_a_second"] = crowd.measure(agents, 8, rate=rate, seconds=seconds, phase=phase)
    if "nodes" in parts:
        many = many_nodes.measure(4 if quick else 64, 1, 1 if quick else 5)
        figures["many_nodes"] = {
            **dataclasses.asdict(many),
            **{key: spread(getattr(many, key)) for key in ("watch_start_s", "ranks_known_s", "capture_s")},
        }
    for program in ("steady", "train"):
        if program in parts:
            figures[f"step_time_{program}"] = step_time.measure(program, 2 if quick else 60)
    _judge(report)
    return report


def _judge(report: Report) -> None:
    f = report.figures
    many: dict[str, Any] = f.get("many_nodes", {})
    step: step_time.StepTime | None = f.get("step_time_steady", f.get("step_time_train"))
    busiest = [f[k].cpu_share for k in f if k.startswith("crowd_") and k.endswith("_a_second")]
    call: Spread | None = f.get("progress_step_ns")
    on_call = call.median / (REAL_STEP_S * 1e9) * 100 if call else None
    report.targets += [
        Target(
            "step longer with supervision, by the clock",
            0.1,
            "%",
            step.overhead_percent if step else None,
            (step.overhead_low_percent, step.overhead_high_percent) if step else None,
        ),
        Target(
            f"ours on a node with {NODE_CORES} cores, all of them busy",
            0.1,
            "%",
            (step.agent_share + step.supervisor_share) / NODE_CORES * 100 if step else None,
        ),
        Target(f"one call a step of {REAL_STEP_S * 1000:g} ms", 0.1, "%", on_call),
        Target("agent, resident on its node", 30, "MiB", many.get("agent_peak_mib")),
        Target(f"supervisor of {f.get('crowd_ranks', 16384):,} ranks", 1, "core", max(busiest, default=None)),
    ]
    if step is not None and (step.noise_percent or 0) > 1:
        report.notes.append(
            f"Neighbouring windows without supervision differ by {step.noise_percent:.1f} % (interquartile range): "
            "this machine was too busy with other work for the clock to show a tenth of a percent."
        )


def rows(report: Report) -> list[tuple[str, str]]:
    """The figures, for people."""
    f, out = report.figures, list[tuple[str, str]]()
    for name in ("step", "timing"):
        if call := f.get(f"progress_{name}_ns"):
            out.append((f"one progress.{name} call, ns", f"{call.median:.0f} ({call.min:.0f} – {call.max:.0f})"))
    for program, step in ((p, f[f"step_time_{p}"]) for p in ("steady", "train") if f"step_time_{p}" in f):
        clock = f"{step.overhead_low_percent:+.2f} to {step.overhead_high_percent:+.2f}"
        cpu = f"{step.cpu_low_percent:+.2f} to {step.cpu_high_percent:+.2f}"
        noise = "–" if step.noise_percent is None else f"{step.noise_percent:.2f}"
        out += [
            (f"{program}: step of {step.step_ms:.2f} ms, % longer", f"{step.overhead_percent:+.2f} (95 %: {clock})"),
            (f"{program}: its processor time, % more", f"{step.cpu_percent:+.2f} (95 %: {cpu})"),
            (f"{program}: noise between windows without, %", f"{noise} ({step.pairs} pairs)"),
            (f"{program}: agent, % of a core", f"{step.agent_share * 100:.2f}"),
            (f"{program}: supervisor's side, % of a core", f"{step.supervisor_share * 100:.2f}"),
        ]
    if many := f.get("many_nodes"):
        out += [
            (f"watch step on {many['nodes']} nodes, s", f"{many['watch_start_s']}"),
            (f"all {many['ranks']} ranks known, s", f"{many['ranks_known_s']}"),
            ("capture of all stacks, s", f"{many['capture_s']}"),
            ("agent, share of memory (PSS), MiB", f"{many['agent_pss_mib']:.1f}"),
            ("agent, resident, MiB", f"{many['agent_rss_mib']:.1f}"),
            ("agent, resident at its highest, MiB", f"{many['agent_peak_mib']:.1f}"),
            ("agent at rest, % of a core", f"{many['agent_cpu_share'] * 100:.2f}"),
        ]
    for key in (k for k in f if k.startswith("crowd_") and k.endswith("_a_second")):
        what = f"{f['crowd_agents']:,} agents, {f[key].messages_per_s:,.0f} messages/s, {key.split('_')[1]}"
        out += [
            (f"{what}: supervisor, % of a core", f"{f[key].cpu_share * 100:.1f}"),
            (f"{what}: one look, ms", f"{f[key].look_ms:.1f}"),
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
    report = measure(parts, quick=args.quick)
    if args.json:
        print(report.to_json())
        return
    console = Console()
    show_table(console, "Supervision", ("what", "measured"), rows(report))
    report.show(console)


if __name__ == "__main__":
    main()
