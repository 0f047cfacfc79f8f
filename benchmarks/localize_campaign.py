"""Who is at fault? Simulated jobs with faults of known truth, and how often the answer is right.

The jobs are simulated (`benchmarks/campaign`): schedules of real trainings, of which stacks, progress and recorders
are what falls out. A seed range gives the same numbers on every machine; thresholds of `localize/` are chosen on seeds
below 100,000 and reported on seeds from 200,000 on (of those between, 160 cases were looked at once).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import acting
import lib
from campaign import adapter, baselines, score, tables
from campaign.cases import BLAMELESS, BY_EVICTION, CLASSES, Case, make_case
from campaign.score import Answer
from rich.console import Console

REPORTED_FROM = 200_000
QUICK_CASES, QUICK_RANKS = 6, 32
NOTES = (
    "The jobs are simulated: schedules, groups and launch-ahead as trainings have them; no GPU, NCCL or network.",
    "Fixed seeds: the same numbers on every machine.",
)
OURS = "slurm-robust"
OURS_AGAIN = "none left out"
Method = Callable[[Case], frozenset[str]]
BASELINES: dict[str, Method] = {
    "dominant groups (ByteRobust's rule alone)": baselines.dominant_groups,
    "lowest progress alone": baselines.lowest_progress,
}


def judged(kind: str, max_ranks: int, ablated: range, timed: range, seed: int) -> dict[str, Answer]:
    """What every method says of one case; with each vote left out, where its seed is one of `ablated`.

    Where it is one of `timed`, the job is also watched for longer, to see when it is acted on.
    """
    case = make_case(kind, seed, max_ranks)
    evidence = adapter.evidence_of(case)
    verdict = adapter.verdict_of(evidence)
    named = adapter.evicted_of if kind in BY_EVICTION else adapter.nodes_of
    ours = _answer(case, named(verdict), adapter.confidence_of(verdict))
    if seed in timed:
        watched = adapter.verdict_of(adapter.evidence_of(make_case(kind, seed, max_ranks, longer=True)))
        ours = replace(ours, acted_on_s=acting.acted_on_s(watched))
    answers = {OURS: ours}
    answers.update((name, _answer(case, method(case))) for name, method in BASELINES.items())
    if seed in ablated:
        answers[OURS_AGAIN] = answers[OURS]
        for vote in adapter.votes():
            without = adapter.verdict_without(evidence, vote)
            answers[f"without {vote}"] = _answer(case, named(without), adapter.confidence_of(without))
    return answers


def _answer(case: Case, named: frozenset[str], confidence: float = 0.0) -> Answer:
    found = score.outcome(case, named)
    return Answer(case.kind, case.what, case.seed, found, len(named), confidence, case.layout.world)


def campaign(args: argparse.Namespace) -> dict[str, list[Answer]]:
    """All cases, by method."""
    answers: dict[str, list[Answer]] = {}
    ablated = range(args.seed, args.seed + args.ablate)
    # Class by class within a seed, so that a run that is cut short has all classes.
    wanted = [(kind, seed) for seed in range(args.seed, args.seed + args.cases) for kind in args.classes]
    timed = range(args.seed, args.seed + args.timed)
    for found in _all(partial(_judged_of, args.max_ranks, ablated, timed), wanted, args.jobs):
        for method, answer in found.items():
            answers.setdefault(method, []).append(answer)
        done = len(answers[OURS])
        if args.save is not None and done % (len(args.classes) * 10) == 0:
            so_far = {"cases": done, "of": len(wanted), "figures": figures(answers)}
            args.save.with_suffix(".part").write_text(json.dumps(so_far), encoding="utf-8")
    return answers


def _judged_of(max_ranks: int, ablated: range, timed: range, which: tuple[str, int]) -> dict[str, Answer]:
    return judged(which[0], max_ranks, ablated, timed, which[1])


def _all(
    judge: Callable[[tuple[str, int]], dict[str, Answer]], wanted: Sequence[tuple[str, int]], jobs: int
) -> Iterator[dict[str, Answer]]:
    """In the order of `wanted`, however many processes there are."""
    if jobs <= 1:
        yield from map(judge, wanted)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judge, wanted, chunksize=4)


def figures(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """Everything that was counted, for tools."""
    found: dict[str, Any] = {}
    for method, given in answers.items():
        classes = {}
        for kind in dict.fromkeys(a.kind for a in given):
            here = [a for a in given if a.kind == kind]
            classes[kind] = {
                "cases": len(here),
                **{
                    name: {"hits": share.hits, "interval": score.wilson(share.hits, share.cases)}
                    for name, share in score.shares(here).items()
                },
                "located": score.located(here).hits,
                "evicted_a_case": score.evicted(here),
                "acted_on_s": acting.counted([a.acted_on_s for a in here if a.acted_on_s is not None]),
            }
        found[method] = classes
    found["calibration"] = [
        {"from": low, "to": high, "right": share.hits, "cases": share.cases}
        for low, high, share in score.calibration(answers.get(OURS, ()))
    ]
    found["worst_class"] = worst_class(answers[OURS])
    found["by_ranks"] = {
        ranks: {"cases": sum(a.ranks == ranks for a in answers[OURS]),
                "right": sum(a.ranks == ranks and a.right for a in answers[OURS])}
        for ranks in sorted({a.ranks for a in answers[OURS]})
    }  # fmt: skip
    found["by_fault"] = {
        f"{kind}/{what}": {"cases": sum((a.kind, a.what) == (kind, what) for a in answers[OURS]),
                           "right": sum((a.kind, a.what) == (kind, what) and a.right for a in answers[OURS])}
        for kind, what in sorted({(a.kind, a.what) for a in answers[OURS]})
    }  # fmt: skip
    found["not_right"] = [
        f"{a.kind}:{a.seed} {a.what} ({a.ranks} ranks): {a.outcome}" for a in answers.get(OURS, ()) if not a.right
    ]
    return found


def worst_class(answers: Sequence[Answer]) -> str:
    """The class with the smallest share of right answers, and that share."""
    kinds = {kind: [a for a in answers if a.kind == kind] for kind in dict.fromkeys(a.kind for a in answers)}
    found = {kind: score.Share(sum(a.right for a in here), len(here)) for kind, here in kinds.items()}
    kind = min(found, key=lambda kind: found[kind].hits / found[kind].cases)
    return f"{kind}, {found[kind]} right"


def targets(answers: Sequence[Answer]) -> list[lib.Target]:
    """The worst class against the targets, in per cent."""

    def worst(kinds: Sequence[str], bad: Callable[[Answer], bool]) -> float | None:
        found = []
        for kind in kinds:
            here = [a for a in answers if a.kind == kind]
            if here:
                found.append(100 * sum(map(bad, here)) / len(here))
        return max(found, default=None)

    named = [kind for kind in CLASSES if kind not in BLAMELESS]
    return [
        lib.Target("neither the node nor its smallest group, worst class", 2.0, "%",
                   worst(named, lambda a: a.outcome not in ("exact", "group"))),
        lib.Target("wrong node, worst class", 0.5, "%", worst(named, lambda a: a.outcome == "wrong")),
        lib.Target("somebody named where nobody may be, worst class", 0.0, "%",
                   worst(BLAMELESS, lambda a: a.outcome == "false blame")),
    ]  # fmt: skip


def show(console: Console, answers: dict[str, list[Answer]]) -> None:
    """Tables for people."""
    columns = (
        "class",
        "cases",
        "exact node",
        "smallest group",
        "wrong",
        "partly",
        "missed",
        "rightly nobody",
        "evicted",
    )
    for method in (OURS, *BASELINES):
        rows, given = [], answers[method]
        for kind in dict.fromkeys(a.kind for a in given):
            here = [a for a in given if a.kind == kind]
            found = score.shares(here)
            shown = ("", "", found["false blame"], "", "", found["rightly nobody"]) if kind in BLAMELESS else (
                found["exact"], found["group"], found["wrong"], found["partial"], found["missed"], "")  # fmt: skip
            rows.append((kind, len(here), *shown, f"{score.evicted(here):.2f}"))
        lib.show_table(console, method, columns, rows)
    kinds = list(dict.fromkeys(a.kind for a in answers[OURS]))
    rows = [
        (kind, acting.told([a.acted_on_s for a in answers[OURS] if a.kind == kind and a.acted_on_s is not None]))
        for kind in kinds
    ]
    lib.show_table(console, "From the last step to the action, default settings", ("class", "cases"), rows)
    rows = []
    for method in [m for m in answers if m not in (OURS, *BASELINES)]:
        right = [[a.right for a in answers[method] if a.kind == kind] for kind in kinds]
        rows.append((method, len(right[0]), *(sum(here) for here in right)))
    if rows:
        lib.show_table(console, "Right answers with each vote left out", ("", "cases a class", *kinds), rows)
    rows = [(f"{low:.1f} to {high:.1f}", share.cases, share) for low, high, share in score.calibration(answers[OURS])]
    lib.show_table(console, "Calibration: verdicts that name somebody", ("confidence", "cases", "right"), rows)
    sizes = Counter(a.ranks for a in answers[OURS])
    rows = [
        (f"{ranks} ranks", count, score.Share(sum(a.right for a in answers[OURS] if a.ranks == ranks), count))
        for ranks, count in sorted(sizes.items())
    ]
    lib.show_table(console, "By size", ("job", "cases", "right"), rows)
    console.print(f"worst class: {worst_class(answers[OURS])}")


def explain(which: str, max_ranks: int) -> None:
    """One case and its verdict in words."""
    kind, _, seed = which.rpartition(":")
    case = make_case(kind, int(seed), max_ranks)
    verdict = adapter.verdict_of(adapter.evidence_of(case))
    print(case)
    print(f"told by: {case.truth.why or 'nothing'}; smallest group: {sorted(case.truth.group_nodes)}")
    print(f"{verdict.conclusion.value}: {verdict.reason}\n  {verdict.detail}\n  missing: {'; '.join(verdict.missing)}")
    for found in verdict.classes:
        print(f"  {found.ranks}: {found.stack[-1]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=600, help="cases a class (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=REPORTED_FROM, help="first seed (default: %(default)s)")
    parser.add_argument("--max-ranks", type=int, default=4096, help="largest job (default: %(default)s)")
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=CLASSES, metavar="CLASS")
    parser.add_argument("--ablate", type=int, default=0, metavar="N", help="the first N of each class also with each "
                        "vote left out")  # fmt: skip
    parser.add_argument("--timed", type=int, default=50, metavar="N", help="the first N of each class are also watched "
                        "for a minute longer, to see when they are acted on (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="also write the figures there; FILE with .part has them while it runs"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CASES} small cases a class")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="no run: the tables of a saved one, for the docs")
    parser.add_argument("--explain", metavar="CLASS:SEED", help="one case and its verdict, in words")
    args = parser.parse_args(argv)
    if args.explain:
        explain(args.explain, args.max_ranks)
        return 0
    if args.markdown is not None:
        saved = json.loads(args.markdown.read_text(encoding="utf-8"))["figures"]
        left_out = [method for method in saved if method == OURS_AGAIN or method.startswith("without ")]
        print("\n".join([*tables.markdown(saved, OURS, left_out), f"Worst class: {saved['worst_class']}", ""]))
        print("\n".join(saved["not_right"]))
        return 0
    if args.quick:
        args.cases, args.max_ranks = QUICK_CASES, QUICK_RANKS
    report = lib.Report("localize_campaign", args.quick, notes=list(NOTES), machine=lib.machine())
    began_s = time.monotonic()
    answers = campaign(args)
    report.figures = figures(answers)
    report.targets = targets(answers[OURS])
    report.notes.append(
        f"{args.cases} cases a class, seeds {args.seed} to {args.seed + args.cases - 1}, "
        f"at most {args.max_ranks} ranks, {time.monotonic() - began_s:.0f} s"
    )
    if args.save is not None:
        args.save.write_text(report.to_json(), encoding="utf-8")
    if args.json:
        print(report.to_json())
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    show(console, answers)
    for line in report.figures["not_right"][:20]:
        console.print(line)
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
