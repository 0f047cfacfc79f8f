"""Which machine is slow? Simulated step timings of known truth, and how often the answer is right.

The timings are simulated (`benchmarks/campaign/slow.py`). A seed range gives the same numbers on every machine;
thresholds of `localize/slow/` are chosen on seeds below 100,000 and reported on seeds from there on.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import lib
from campaign import score
from campaign.score import Answer
from campaign.slow import BLAMELESS, CLASSES, SlowCase, make_case
from rich.console import Console

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.slow.judge import judge_timings
from slurm_robust.localize.timings import StepTimings

REPORTED_FROM = 100_000
QUICK_CASES, QUICK_RANKS = 4, 64
WITH_TARGET = ("slow GPU 5 %", "slow GPU 10 %", "slow GPU 30 %", "slow node", "since a step", "now and then")
NOTES = (
    "The timings are simulated; no GPU, NCCL or network.",
    "Struck jobs have an effect of at least 7 standard deviations of what healthy ranks differ by (3 %: as they come).",
    "Fixed seeds: the same numbers on every machine.",
)
OURS, BASELINE = "slurm-robust", "slowest mean, 5 % above the median of all"


def verdict_of(case: SlowCase) -> Verdict:
    """What is said of a case."""
    ranks = tuple(range(case.world))
    timings = StepTimings(
        ranks,
        tuple(range(len(case.compute))),
        dict(enumerate(case.nodes)),
        tuple(array("d", row) for row in case.total),
        tuple(array("d", row) for row in case.compute),
    )
    return judge_timings(timings, case.layout if case.told else {})


def slowest_mean(case: SlowCase) -> frozenset[str]:
    """The usual dashboard: the rank whose mean compute time is highest, where it is 5 % above the others' median."""
    means = {}
    for rank in range(case.world):
        known = [row[rank] for row in case.compute if row[rank] == row[rank]]
        if known:
            means[rank] = sum(known) / len(known)
    if not means:
        return frozenset()
    worst = max(means, key=lambda rank: means[rank])
    return frozenset({case.nodes[worst]}) if means[worst] > 1.05 * median(means.values()) else frozenset()


def outcome(case: SlowCase, named: frozenset[str]) -> str:
    """Which of `score.OUTCOMES` these nodes are; here the smallest group is the node."""
    if case.kind in BLAMELESS:
        return "false blame" if named else "rightly nobody"
    if not named:
        return "missed"
    if named == case.slow:
        return "exact"
    return "partial" if named < case.slow else "wrong"


def judged(kind: str, max_ranks: int, seed: int) -> dict[str, Answer]:
    """What both methods say of one case."""
    case = make_case(kind, seed, max_ranks)
    verdict = verdict_of(case)
    named = frozenset(s.node for s in verdict.suspects) if verdict.conclusion is Conclusion.CULPRIT else frozenset()
    confidence = max((s.confidence for s in verdict.suspects), default=0.0)
    answers = {OURS: (named, confidence), BASELINE: (slowest_mean(case), 0.0)}
    return {
        method: Answer(kind, case.what, seed, outcome(case, nodes), len(nodes), sure, case.world)
        for method, (nodes, sure) in answers.items()
    }


def campaign(args: argparse.Namespace) -> dict[str, list[Answer]]:
    """All cases, by method."""
    answers: dict[str, list[Answer]] = {}
    seeds = range(args.seed, args.seed + args.cases)
    with ProcessPoolExecutor(args.jobs) as pool:
        for kind in args.classes:
            for found in pool.map(partial(judged, kind, args.max_ranks), seeds, chunksize=8):
                for method, answer in found.items():
                    answers.setdefault(method, []).append(answer)
    return answers


def figures(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """Everything that was counted, for tools."""
    found: dict[str, Any] = {}
    for method, given in answers.items():
        found[method] = {}
        for kind in dict.fromkeys(a.kind for a in given):
            here = [a for a in given if a.kind == kind]
            shares = score.shares(here).items()
            found[method][kind] = {"cases": len(here)} | {
                name: {"hits": share.hits, "interval": score.wilson(share.hits, share.cases)} for name, share in shares
            }
    found["calibration"] = [
        {"from": low, "to": high, "right": share.hits, "cases": share.cases}
        for low, high, share in score.calibration(answers.get(OURS, ()))
    ]
    found["not_right"] = [
        f"{a.kind}:{a.seed} {a.what} ({a.ranks} ranks): {a.outcome}" for a in answers.get(OURS, ()) if not a.right
    ]
    return found


def targets(answers: Sequence[Answer]) -> list[lib.Target]:
    """The worst class against the targets of localisation, in per cent."""

    def worst(kinds: Sequence[str], *bad: str) -> float | None:
        counted = [[a.outcome in bad for a in answers if a.kind == kind] for kind in kinds]
        return max((100 * sum(here) / len(here) for here in counted if here), default=None)

    named = [kind for kind in CLASSES if kind not in BLAMELESS]
    missed = ("missed", "partial", "wrong")
    return [
        lib.Target("not exactly the slow node, worst class but 3 %", 2.0, "%", worst(WITH_TARGET, *missed)),
        lib.Target("wrong node, worst class", 0.5, "%", worst(named, "wrong")),
        lib.Target("somebody named where no machine is slow, worst class", 0.0, "%", worst(BLAMELESS, "false blame")),
    ]


def show(console: Console, answers: dict[str, list[Answer]]) -> None:
    """Tables for people."""
    columns = ("class", "cases", "exact node", "wrong", "missed or partial", "rightly nobody")
    for method, given in answers.items():
        rows = []
        for kind in dict.fromkeys(a.kind for a in given):
            here = [a for a in given if a.kind == kind]
            found = score.shares(here)
            if kind in BLAMELESS:
                rows.append((kind, len(here), "", found["false blame"], "", found["rightly nobody"]))
                continue
            lacking = score.Share(found["missed"].hits + found["partial"].hits, len(here))
            rows.append((kind, len(here), found["exact"], found["wrong"], lacking, ""))
        lib.show_table(console, method, columns, rows)
    bins = [(f"{low:.1f} to {high:.1f}", share.cases, share) for low, high, share in score.calibration(answers[OURS])]
    lib.show_table(console, "Calibration: verdicts that name somebody", ("confidence", "cases", "right"), bins)


def explain(which: str, max_ranks: int) -> None:
    """One case and its verdict in words."""
    kind, _, seed = which.rpartition(":")
    case = make_case(kind, int(seed), max_ranks)
    verdict = verdict_of(case)
    print(f"{case.what}; {case.world} ranks, {len(case.compute)} steps, {case.layout}; slow: {sorted(case.slow)}")
    print(f"{verdict.conclusion.value}: {verdict.reason}\n  {verdict.detail}\n  missing: {'; '.join(verdict.missing)}")
    for suspect in verdict.suspects:
        print(f"  {suspect.node} {suspect.confidence}: {suspect.why}; {suspect.detail}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=600, help="cases a class (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=REPORTED_FROM, help="first seed (default: %(default)s)")
    parser.add_argument("--max-ranks", type=int, default=256, help="largest job (default: %(default)s)")
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=CLASSES, metavar="CLASS")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CASES} small cases a class")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    parser.add_argument("--explain", metavar="CLASS:SEED", help="one case and its verdict, in words")
    args = parser.parse_args(argv)
    if args.explain:
        explain(args.explain, args.max_ranks)
        return 0
    if args.quick:
        args.cases, args.max_ranks, args.jobs = QUICK_CASES, QUICK_RANKS, 1
    report = lib.Report("slow_campaign", args.quick, notes=list(NOTES), machine=lib.machine())
    began_s = time.monotonic()
    answers = campaign(args)
    report.figures = figures(answers)
    report.targets = targets(answers[OURS])
    report.notes.append(
        f"{args.cases} cases a class, seeds {args.seed} to {args.seed + args.cases - 1}, "
        f"at most {args.max_ranks} ranks, {time.monotonic() - began_s:.0f} s"
    )
    if args.json:
        print(report.to_json())
        return 0
    console = Console()
    show(console, answers)
    for line in report.figures["not_right"][:40]:
        console.print(line)
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
