"""What broke, by logs of public failures with a labelled root: how often is the diagnosis right?

    python benchmarks/diagnose.py [--half report|choose] [--wrong] [--json] [--nvrx PYTHON]
    python benchmarks/diagnose.py --speed MIB

The cases stand in benchmarks/causes, a file each with its public source, retold: error lines as the software prints
them, everything else shortened or made anew. Rules were written with the half `choose`; `report` is only counted.
Baselines in the same run: the first line that looks like an error, what `localize` makes of the log as one rank's last
lines, and NVRx's log analysis without its language model, where `--nvrx` names an interpreter that has it (`nvrx.py`).

`--speed` writes a log of so many MiB in which all lines differ and have words of errors, and compares the processor
time of the rules with that of `grep -c` over the same file, in turns.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import lib
import nvrx
import yaml
from campaign.score import Share
from rich.console import Console

from slurm_robust.diagnose.findings import Matcher, findings, matcher
from slurm_robust.diagnose.large_files import scan
from slurm_robust.diagnose.lines import unlabelled
from slurm_robust.diagnose.root import diagnose
from slurm_robust.diagnose.rulebook import shipped
from slurm_robust.localize.evidence import RankExit
from slurm_robust.localize.exit_causes import Cause, exit_causes

CASES = Path(__file__).with_name("causes")
HALVES = ("report", "choose")
_LOOKS_BAD = re.compile(r"error|exception|fatal|fail|kill|abort|timed? ?out", re.IGNORECASE)
_BLAME_OF_CAUSE = {
    Cause.HARDWARE: "node", Cause.EITHER: "either", Cause.SHARED: "shared", Cause.USER_CODE: "program",
    Cause.DISK_FULL: "shared", Cause.ENDED_FROM_OUTSIDE: "nobody", Cause.LAUNCH: "program",
}  # fmt: skip
MOST_WRONG = {
    "blame wrong": 15.0,
    "program blamed on a node": 2.0,
    "infrastructure blamed on the program": 3.0,
    "category wrong": 20.0,
    "root line wrong": 10.0,
    "ambiguous, and blamed all the same": 20.0,
}
"""The targets, percent."""
LABELLED_ONLY = "root line wrong, only the labelled line"
"""Shown beside the targets: the stricter count, for which another line of the same failure is wrong."""

NOTES = (
    "logs and labels were retold from public threads; part of the lines around a root was composed",
    "a root line is right where the labelled line is named, or another one that by itself states the same failure",
    "those other lines were labelled by a second reader, from the logs alone, who did not see any tool's answer",
)


NVRX_SAYS = (
    "NVRx's deterministic stage names a line and a failure class, no blame and none of our categories; "
    "what its classes mean for the blame is written down in benchmarks/nvrx.py"
)


class Case(NamedTuple):
    """A labelled log; `also` has parts of other lines that by themselves state the failure of the root line."""

    name: str
    lines: list[str]
    blame: str
    category: str
    root: str
    ambiguous: bool
    also: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What a way to diagnose says; empty if it says nothing."""

    blame: str
    category: str
    root: str


def ours(lines: Sequence[str]) -> Answer:
    """`srobust diagnose`."""
    found = diagnose(findings(lines))
    return Answer(found.blame.value, found.category.name, found.root.text if found.root is not None else "")


def first_error(lines: Sequence[str]) -> Answer:
    """The first line that looks like an error, by our own rules."""
    line = next((line for line in lines if _LOOKS_BAD.search(line)), "")
    rule = matcher().match(line) if line else None
    return Answer(rule.blame.value, rule.category.name, line) if rule else Answer("either", "unknown", line)


def last_words(lines: Sequence[str]) -> Answer:
    """What a supervised job makes of them, as one rank's last lines."""
    ((_, found),) = exit_causes([RankExit(0, "n0", 0.0, 1, 0, tuple(lines))])
    return Answer(_BLAME_OF_CAUSE.get(found.cause, "either"), found.category, found.detail)


WAYS: dict[str, Callable[[Sequence[str]], Answer]] = {
    "srobust diagnose": ours,
    "first bad line": first_error,
    "as last lines": last_words,
}


def nvrx_ways(python: str, cases: Sequence[Case]) -> dict[str, Callable[[Sequence[str]], Answer]]:
    """NVRx's answers to these cases: with a Python exception as the program's, and as undecided.

    Raises:
        nvrx.NvrxError: it cannot be asked.
    """
    told = nvrx.ask(python, [case.lines for case in cases])
    by_log = {tuple(case.lines): answer for case, answer in zip(cases, told, strict=True)}

    def way(of_exception: str) -> Callable[[Sequence[str]], Answer]:
        def answered(lines: Sequence[str]) -> Answer:
            answer = by_log[tuple(lines)]
            return Answer(nvrx.blame(answer, of_exception), "", answer.line)

        return answered

    return {"NVRx, exceptions the program's": way("program"), "NVRx, exceptions undecided": way("either")}


def read_cases(half: str) -> list[Case]:
    """All cases of a half."""
    found = []
    for path in sorted((CASES / half).glob("*.yaml")):
        case = yaml.safe_load(path.read_text())
        lines = case["log"].splitlines()
        ambiguous = bool(case.get("ambiguous"))
        root, also = case["root"].strip(), tuple(case.get("also", ()))
        found.append(Case(path.stem, lines, case["blame"], case["category"], root, ambiguous, also))
    return found


def same_line(wanted: str, given: str) -> bool:
    """Whether a line is the labelled one, on whichever rank."""
    wanted, given = unlabelled(wanted), unlabelled(given)
    return bool(given) and (wanted in given or given in wanted)


def right_root(case: Case, given: str) -> bool:
    """Whether a line is the labelled one, or another one that states the same failure."""
    return any(same_line(wanted, given) for wanted in (case.root, *case.also))


def score(cases: Sequence[Case], way: Callable[[Sequence[str]], Answer]) -> dict[str, Share]:
    """Named shares of wrong answers."""
    answers = [(case, way(case.lines)) for case in cases]
    program = [a for c, a in answers if c.blame == "program"]
    infrastructure = [a for c, a in answers if c.blame in ("node", "shared")]
    ambiguous = [a for c, a in answers if c.ambiguous]
    return {
        "blame wrong": Share(sum(c.blame != a.blame for c, a in answers), len(answers)),
        "program blamed on a node": Share(sum(a.blame == "node" for a in program), len(program)),
        "infrastructure blamed on the program": Share(
            sum(a.blame == "program" for a in infrastructure), len(infrastructure)
        ),
        "category wrong": Share(sum(c.category != a.category for c, a in answers), len(answers)),
        "root line wrong": Share(sum(not right_root(c, a.root) for c, a in answers), len(answers)),
        LABELLED_ONLY: Share(sum(not same_line(c.root, a.root) for c, a in answers), len(answers)),
        "ambiguous, and blamed all the same": Share(sum(a.blame != "either" for a in ambiguous), len(ambiguous)),
    }


def wrong(cases: Sequence[Case]) -> list[str]:
    """Each case of which anything is wrong, for who writes rules."""
    found = []
    for case in cases:
        answer = ours(case.lines)
        if (case.blame, case.category) != answer[:2] or not right_root(case, answer.root):
            told = f"{case.name}: {case.blame}/{case.category}, told {answer.blame}/{answer.category}"
            found.append(f"{told}\n    root {case.root[:140]}\n    told {answer.root[:140]}")
    return found


_HOSTILE = (
    "2026-05-01 10:{m:02d}:{s:02d},123 - {a} - ERROR - failed to handle {b}: {c} timed out ({d})",
    "[rank{r}]: worker {a} error while reading /data/{b}/{c}.tar: invalid record {d}",
    "WARNING: {a} could not allocate {b} for {c}, the exception was ignored, {d}",
    "{a} error: cannot open {b}: {c} is missing {d}",
    "I0501 10:{m:02d}:{s:02d}.1234 99 {a}.cc:12] retry {b} after failure of {c} {d}",
)
_ROUNDS = 5
_GREP = ("grep", "-ciE", "error|fail|exception|fatal|killed|timed out|cannot|invalid")


def write_hostile(path: Path, size_bytes: int) -> int:
    """Write a log of distinct lines with words of errors; returns the number of its lines."""
    chance = random.Random(7)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 9))) for _ in range(size_bytes // 50)]
    lines = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size_bytes:
            a, b, c, d = chance.choices(words, k=4)
            shape = chance.choice(_HOSTILE)
            written += file.write(
                shape.format(a=a, b=b, c=c, d=d, m=lines // 60 % 60, s=lines % 60, r=lines % 8) + "\n"
            )
            lines += 1
    return lines


def show_speed(size_mib: int) -> None:
    """Print the processor time of the rules on a hostile log, and of `grep -c` beside it."""
    matcher()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.log"
        lines = write_hostile(path, size_mib << 20)
        ours_s, grep_s = [], []
        for _ in range(_ROUNDS):
            began_s = time.process_time()
            scan([path], Matcher(shipped()))
            ours_s.append(time.process_time() - began_s)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            # With /dev/null as its output, grep would stop at the first match.
            subprocess.run([*_GREP, str(path)], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            grep_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    ratio = statistics.median(a / b for a, b in zip(ours_s, grep_s, strict=True))
    print(
        f"{size_mib} MiB, {lines} distinct lines with words of errors: rules {statistics.median(ours_s):.2f} s, "
        f"grep -ciE {statistics.median(grep_s):.2f} s of processor time, ratio {ratio:.1f} (medians of {_ROUNDS} pairs)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Show all ways side by side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", choices=HALVES, default="report", help="which cases (default: %(default)s)")
    parser.add_argument("--wrong", action="store_true", help="show what is wrong; only for the half `choose`")
    parser.add_argument("--json", action="store_true", help="figures for tools")
    parser.add_argument("--nvrx", metavar="PYTHON", help="an interpreter that has NVRx's log analysis, as a baseline")
    parser.add_argument("--speed", metavar="MIB", type=int, help="only how fast a log of this size is read")
    args = parser.parse_args(argv)
    if args.speed:
        show_speed(args.speed)
        return 0
    if args.wrong and args.half != "choose":
        parser.error("--wrong shows cases to write rules from: only with --half choose")
    cases = read_cases(args.half)
    if args.wrong:
        print("\n".join(wrong(cases)))
        return 0
    ways, notes = dict(WAYS), list(NOTES)
    try:
        ways |= nvrx_ways(args.nvrx, cases) if args.nvrx else {}
        notes.append(NVRX_SAYS if args.nvrx else "NVRx was not asked: --nvrx names no interpreter that has it")
    except nvrx.NvrxError as error:
        notes.append(f"NVRx was not there: {error}")
    scores = {name: score(cases, way) for name, way in ways.items()}
    report = lib.Report("diagnose", quick=False, notes=notes, machine=lib.machine())
    report.figures = {"half": args.half, "cases": len(cases), "ways": scores}
    own = scores["srobust diagnose"]
    report.targets = [
        lib.Target(what, limit, "%", 100 * own[what].hits / max(1, own[what].cases))
        for what, limit in MOST_WRONG.items()
    ]
    if args.json:
        print(report.to_json())
        return 0
    console = Console()
    rows = [(what, *(shares[what] for shares in scores.values())) for what in own]
    lib.show_table(console, f"{len(cases)} labelled failures, half {args.half}", ("", *scores), rows)
    report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
