"""What checkpoints cost: the step that stands still for one, verifying them, loading them again.

    python benchmarks/checkpoint.py [--json] [--quick] [--only stall,beside,verify,restart] [--gb 0.5,2] [--large]

* `stall`: `Checkpointer`, `torch.save`, and `torch.distributed.checkpoint` (DCP) as it comes and at its best, each
  beside a plain copy of the same state into memory that is there already, in the moment before. torch has one thread,
  as torchrun gives it; the plain copy has as many as ours takes, and so has DCP where its name says "more threads".
* `beside`: how much longer the steps of a training take, at one size: the one that saves, and all of them until the
  save is on the disk. Copies may go on until the optimizer is called, where a way allows for that.
* `verify`: reading, sealing and choosing checkpoints, beside `cat` and `stat`.
* `restart`: loading from the memory that the node's agent keeps, and from files.

A size that this machine has no memory for is left out, and said so.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from ckpt import beside, memory, restarts, stall, verify
from ckpt.ways import ASYNC, COPY, COPY_ALONE, OURS, threads
from lib import Report, Target, machine, show_table, spread
from rich.console import Console

PARTS = ("stall", "beside", "verify", "restart")
STALL_RATIO, DCP_RATIO, CAT_SHARE, LOOKUP_S = 1.2, 0.5, 0.8, 1.0
BEYOND_BUFFERS_MIB = 64
"""The persister's own memory, and the trainer's plan."""
LARGE_GB = 8.0
SPARE_BYTES = 1 << 30
Row = tuple[Any, ...]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stalls(report: Report, gb: float, rounds: int, where: Path) -> tuple[list[Row], list[Row]]:
    """One size of the state; rows of two tables for people."""
    state_bytes, found = stall.measure(int(gb * 1e9), rounds, where, _say)
    rows, others = [], []
    for way, told in found.items():
        extra = told.extra_bytes / state_bytes
        figures = {
            "stall_s": spread(told.stall_s),
            "copies": spread(told.copies),
            "cpu_s": spread(told.cpu_s),
            "call_s": spread(told.call_s),
            "written_s": spread(told.written_s),
            "extra_states": round(extra, 3),
        }
        report.figures[f"{gb:g} GB, {way}"] = figures
        written = None if way in (COPY, COPY_ALONE) else figures["written_s"]
        rows.append((f"{gb:g} GB: {way}", _ms(told.stall_s), figures["copies"], _ms(told.cpu_s), _ms(told.call_s)))
        others.append((f"{gb:g} GB: {way}", written, f"{extra:.2f}"))
    best = stall.best(found)
    report.figures[f"{gb:g} GB, DCP's best"] = best
    beyond_mib = (found[OURS].extra_bytes - 2 * state_bytes) / (1 << 20)
    report.targets += [
        Target(f"stall, {gb:g} GB, against a copy", STALL_RATIO, "×", stall.ratio(found, OURS, COPY)),
        Target(f"stall, {gb:g} GB, against DCP's {best}", DCP_RATIO, "×", stall.ratio(found, OURS, best)),
        Target(f"memory beyond two buffers, {gb:g} GB", BEYOND_BUFFERS_MIB, "MiB", beyond_mib),
    ]
    return rows, others


def _ms(values_s: list[float]) -> str:
    """In milliseconds, for people."""
    found = spread(1000 * value for value in values_s)
    return f"{found.median:,.0f} ({found.min:,.0f} – {found.max:,.0f})" if found else ""


def besides(report: Report, gb: float, rounds: int, where: Path) -> list[Row]:
    """Steps with a save among them; rows for people."""
    compared = beside.COMPARED[:2] if report.quick else beside.COMPARED
    rows, found = [], beside.measure(int(gb * 1e9), rounds, where, _say, compared)
    for way, told in found.items():
        first_s, all_s = [one.first_s for one in told], [one.all_s for one in told]
        plain_s = [one.plain_s for one in told]
        report.figures[f"beside, {gb:g} GB, {way}"] = {
            "step_s": spread(plain_s),
            "first_s": spread(first_s),
            "all_s": spread(all_s),
        }
        rows.append((f"{gb:g} GB: {way}", _ms(plain_s), _ms(first_s), _ms(all_s)))
    return rows


def verifying(report: Report, gb: float, rounds: int, where: Path) -> list[tuple[str, list[Row]]]:
    """All of verify; titles and rows for people."""
    tables: list[tuple[str, list[Row]]] = []
    medians: dict[tuple[str, str], float] = {}
    for part, took in verify.measure(gb, rounds, where, _say).items():
        found = {what: spread(values) for what, values in took.items()}
        report.figures[part] = {f"{what}, s": told for what, told in found.items()}
        medians |= {(part, what): told.median for what, told in found.items() if told}
        first = medians[part, next(iter(took))]
        tables.append((part, [(what, told, f"{medians[part, what] / first:.2f}") for what, told in found.items()]))
    cat = medians[verify.ONE, verify.CAT]
    ratios = {what: value / cat for (part, what), value in medians.items() if part == verify.ONE}
    report.figures["seconds of cat's, one file"] = {what: round(value, 3) for what, value in ratios.items()}
    report.targets += [
        Target("verify, sealed: of what cat takes", 1 / CAT_SHARE, "×", ratios[verify.VERIFY]),
        Target("lookup among 10,000 files", LOOKUP_S, "s", medians[verify.LOOKUP, verify.LATEST]),
    ]
    report.notes.append(f"verify: files of {gb:g} GB; in memory but for the part that says otherwise")
    report.notes.append("srobust ckpt: with the start of Python; cat: with its own")
    return tables


def loading(report: Report, gb: float, rounds: int, where: Path) -> list[Row]:
    """One size of restart."""
    took = restarts.measure(int(gb * 1e9), rounds, where, _say)
    found = {source: spread(values) for source, values in took.items()}
    report.figures[f"{gb:g} GB, restart"] = {f"{source}_s": told for source, told in found.items()}
    return [(f"{gb:g} GB: from {source}", told) for source, told in found.items()]


def _sizes(args: argparse.Namespace, report: Report) -> list[float]:
    """The sizes that memory allows."""
    asked = [0.02] if args.quick else [*args.gb, *([LARGE_GB] if args.large else [])]
    found = []
    for gb in asked:
        needed, left = stall.needed_bytes(int(gb * 1e9)) + SPARE_BYTES, memory.available_bytes()
        if needed <= left:
            found.append(gb)
        else:
            report.notes.append(f"{gb:g} GB is left out: it takes {needed / 1e9:.0f} GB, {left / 1e9:.0f} GB are there")
            _say(report.notes[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument("--quick", action="store_true", help="small files, a round or two: only shows that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--gb", default="0.5,2", type=lambda text: [float(size) for size in text.split(",")])
    parser.add_argument("--large", action="store_true", help=f"{LARGE_GB:g} GB, too: takes about 80 GB of memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where checkpoints go")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    return args


def main() -> None:
    """Measure, and print tables or JSON."""
    args = _arguments()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # files are removed, processes ended
    report = Report("checkpoint", args.quick, machine=machine())
    report.notes = [
        "Tensors on the CPU: nothing here covers a GPU's copy.",
        f"One rank. The disk is {args.dir}'s; files are read back from the page cache.",
        f"{threads()} threads copy for ours, for the plain copy and for DCP with more threads; elsewhere one.",
        "torch.save and DCP do not flush, read back or digest what they wrote; ours does.",
    ]
    rounds = 2 if args.quick else args.rounds
    sizes = _sizes(args, report)
    stood: list[Row] = []
    others: list[Row] = []
    loaded: list[Row] = []
    verified: list[tuple[str, list[Row]]] = []
    if "stall" in args.only:
        for gb in sizes:
            rows, more = stalls(report, gb, 1 if args.quick else rounds, args.dir)
            stood, others = stood + rows, others + more
        report.notes.append(f"DCP's best is chosen of {len(ASYNC)} ways, after the fact.")
    trained = (
        besides(report, sizes[0], 1 if args.quick else rounds, args.dir) if "beside" in args.only and sizes else []
    )
    if "verify" in args.only:
        verified = verifying(report, 0.05 if args.quick else max(args.gb), rounds, args.dir)
    if "restart" in args.only:
        for gb in sizes:
            loaded += loading(report, gb, 1 if args.quick else 3, args.dir)
    if args.json:
        print(report.to_json())
        return
    console = Console(width=max(120, Console().width))
    report.show(console)
    if stood:
        columns = ("way", "ms", "copies", "processor, ms", "the call, ms")
        show_table(console, "The step stands still; median (least – most)", columns, stood)
        show_table(console, "And else", ("way", "on the disk after, s", "extra memory, states"), others)
    if trained:
        columns = ("way", "a step, ms", "the one that saves: longer by, ms", "all until it is written: longer by, ms")
        show_table(console, "Beside a training", columns, trained)
    for part, found in verified:
        show_table(console, f"{part}: median (least – most)", ("what", "s", "× the first"), found)
    if loaded:
        show_table(console, "Restart: median (least – most)", ("a state of", "loaded in, s"), loaded)


if __name__ == "__main__":
    main()
