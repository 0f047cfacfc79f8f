"""Who is at fault, in real torch processes over gloo: faults of known truth, captured as the supervisor captures them.

    python benchmarks/localize_real.py [--quick] [--slurm] [--json] [--only NAME …] [--keep DIR]

Each case is a training of its own, a process a rank, with the supervisor's own agents beside it, one a node: they find
the ranks in /proc, py-spy takes the stacks, and `localize` judges what came. Nodes are names, and suspicion comes two
seconds after the fault. With `--slurm` each case is a job of its own on a cluster of this machine: `srobust run` starts
the ranks, suspects by itself and judges. In `exact` all struck nodes are named and no other; a class whose fault is the
program's own names its node or nobody. The table also counts each class's verdicts by grade, and those that are
corroborated: these two are what `policy/` acts on.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import acting
import lib
from campaign.score import Share
from real.cases import CASES, QUICK, Case
from real.stage import Outcome, Stage
from real.under_slurm import SlurmStage, bring_up
from rich.console import Console

from slurm_robust.core.model import Grade

StageOf = Callable[[Case], Stage | SlurmStage]
OUTCOMES = ("exact", "rightly none", "missed", "wrong")
AT_ONCE = 2
"""Cases side by side: most of a case is waiting."""


async def run(cases: Sequence[Case], stage: StageOf, at_once: int) -> tuple[list[Outcome], list[str]]:
    """Play all cases; what could not be played is a line of its own."""
    free = asyncio.Semaphore(at_once)
    failed: list[str] = []

    async def one(case: Case) -> Outcome | None:
        async with free:
            try:
                found = await stage(case).play()
            except TimeoutError as error:
                failed.append(str(error))
                return None
        done = f"{case.name}: {found.how}; {found.told}"
        print(done[:200], file=sys.stderr, flush=True)
        return found

    played = await asyncio.gather(*(one(case) for case in cases))
    return [found for found in played if found is not None], failed


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Named figures: for each class and for all, how many of which outcome."""
    kinds = [*dict.fromkeys(o.case.kind for o in outcomes), "all"]
    table: dict[str, Any] = {}
    for kind in kinds:
        here = [o for o in outcomes if kind in (o.case.kind, "all")]
        counted = Counter(o.how for o in here)
        table[kind] = {"cases": len(here), **{how: counted[how] for how in OUTCOMES}}
        table[kind]["wrong and acted on"] = sum(o.how == "wrong" and o.acted_on for o in here)
        graded = Counter(o.verdict.grade for o in here)
        sure = Counter(o.verdict.grade for o in here if o.verdict.corroborated)
        table[kind]["acted_on_s"] = [round(acting.acted_on_s(o.verdict, o.took_s)) for o in here]
        table[kind]["grades"] = {g.value: {"cases": graded[g], "corroborated": sure[g]} for g in Grade if graded[g]}
    return {
        "classes": table,
        "cases": [
            {"case": o.case.name, "class": o.case.kind, "outcome": o.how, "named": o.named, "told": o.told,
             "grade": o.verdict.grade.value, "corroborated": o.verdict.corroborated,
             "acted_on": o.acted_on, "took_s": round(o.took_s, 1)}
            for o in outcomes
        ],
    }  # fmt: skip


def show(console: Console, found: dict[str, Any]) -> None:
    """The table, for people, and each case that is not right."""
    rows = []
    for kind, counted in found["classes"].items():
        right = Share(counted["exact"] + counted["rightly none"], counted["cases"])
        grades = (f"{n['corroborated']} of {n['cases']} {grade}" for grade, n in counted["grades"].items())
        when = acting.told(counted["acted_on_s"])
        rows.append((kind, counted["cases"], *(counted[how] for how in OUTCOMES), right, ", ".join(grades), when))
    columns = ("class", "cases", *OUTCOMES, "right", "corroborated, by grade", "from the last step to the action")
    lib.show_table(console, "Real ranks over gloo", columns, rows)
    for case in found["cases"]:
        if case["outcome"] in ("wrong", "missed"):
            console.print(f"{case['case']}: {case['outcome']}, named {case['named'] or 'nobody'}: {case['told']}")


def _played(cases: Sequence[Case], folder: Path, args: argparse.Namespace) -> tuple[list[Outcome], list[str]]:
    if not args.slurm:
        return asyncio.run(run(cases, lambda c: Stage(c, folder / c.name, recorder=args.recorder), args.at_once))
    cluster = bring_up()
    try:
        return asyncio.run(run(cases, lambda c: SlurmStage(c, folder / c.name, cluster), args.at_once))
    finally:
        cluster.down()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; exit 1 where one names a wrong node or could not be played."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases", choices=[c.name for c in CASES])
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="cases side by side (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep captures and output here, a folder a case")
    parser.add_argument("--recorder", action="store_true", help="with flight-recorder dumps of gloo's operations")
    parser.add_argument("--slurm", action="store_true", help="each case as a job under `srobust run`")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    args = parser.parse_args(argv)
    if args.slurm and args.recorder:
        parser.error("--slurm has the recorder's dumps anyway: `srobust run` asks for them")
    names = args.only or (QUICK if args.quick else [c.name for c in CASES])
    report = lib.Report("localize_real", args.quick, notes=[lib.CPU_ONLY], machine=lib.machine())
    began_s = time.monotonic()
    cases = [c for c in CASES if c.name in names]
    with tempfile.TemporaryDirectory(prefix="localize-real-") as made:
        folder = args.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes, failed = _played(cases, folder.absolute(), args)
    report.figures = figures(outcomes)
    report.notes += [*failed, f"{len(outcomes)} cases in {time.monotonic() - began_s:.0f} s"]
    if args.json:
        print(report.to_json())
    else:
        console = Console(width=None if sys.stdout.isatty() else 200)
        show(console, report.figures)
        report.show(console)
    return int(bool(failed) or any(o.how == "wrong" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
