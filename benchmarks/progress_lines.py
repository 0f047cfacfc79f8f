"""How well is a job's step read from its log lines? Runs of many programs, with the true step of every line.

    python benchmarks/progress_lines.py                      the half of the runs that is reported
    python benchmarks/progress_lines.py --half choosing -v   the half by which shapes are chosen, with what is not read
    python benchmarks/progress_lines.py --half printed -v    lines of public logs as they are, of programs found later
    python benchmarks/progress_lines.py --before REVISION    also with the parser of an earlier commit

The lines in progress_runs/ were written down from what these programs print (their sources, and logs in public issues,
as each file says), not recorded by us: numbers between the ones that were seen are made up, in the program's own
format and order. Files that say `lines: as printed` hold a few lines of a public log as they are. Each line is
`TRUTH = LINE`:

    120       the job's step after this line
    823:120   the same: 120 is printed, and 823 is the step of the whole training. It may be read as either one; if it
              is read as 120, the parser has to say that this does not count the whole training
    120?      the same, but the line may be missed: a counter's fall, or a log that has to be learned first
    ~         something else goes on (a validation, a data set): a sign of life, but no step of the job
    -         no progress at all

A run is read whole if each line with a step is read right, and no other line is taken for progress. A step is wrong if
a line is taken for progress and the job's step is then another one than the true one.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from slurm_robust.supervise.watch import log_steps
from slurm_robust.supervise.watch.log_shapes import known_shapes

_ROOT = Path(__file__).resolve().parents[1]
_PARSER = "slurm_robust/supervise/watch/log_steps.py"
_RUNS = Path(__file__).with_name("progress_runs")
_ROUNDS = 15
"""Of timing."""


@dataclass(frozen=True)
class Truth:
    """What a line shows. `step` is None if it shows no step of the job."""

    line: str
    step: int | None = None
    printed: int | None = None
    may_be_missed: bool = False
    other: bool = False


@dataclass(frozen=True)
class Run:
    """One program's output."""

    name: str
    framework: str
    lines: tuple[Truth, ...]
    as_printed: bool

    @property
    def reported(self) -> bool:
        """Whether it belongs to the half that is reported."""
        return crc32(self.name.encode()) % 2 == 0

    def belongs_to(self, part: str) -> bool:
        """Whether it belongs to this part of the runs."""
        if self.as_printed or part in ("all", "printed"):
            return part == "all" or (self.as_printed and part == "printed")
        return self.reported == (part == "reporting")


@dataclass(frozen=True)
class Outcome:
    """How a run was read."""

    missed: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Every step was read, and no other one."""
        return not self.missed and not self.wrong


def load_runs() -> list[Run]:
    """All runs, by name."""
    runs = []
    for path in sorted(_RUNS.glob("*.txt")):
        texts = path.read_text("utf-8").split("\n")
        framework = next(t.partition(": ")[2] for t in texts if t.startswith("# framework: "))
        lines = tuple(_truth(t) for t in texts if t and not t.startswith("# "))
        runs.append(Run(path.stem, framework, lines, "# lines: as printed" in texts))
    return runs


def _truth(text: str) -> Truth:
    mark, _, line = text.partition(" = ")
    if mark in ("-", "~"):
        return Truth(line, other=mark == "~")
    step, _, printed = mark.rstrip("?").partition(":")
    return Truth(line, int(step), int(printed or step), mark.endswith("?"))


def read(run: Run, parser: Any) -> Outcome:
    """Read a run line by line, as a supervisor does."""
    counters = parser.Counters()
    missed, wrong, last = [], [], Truth("", -1, -1)
    for truth in run.lines:
        news = counters.progress(truth.line) is not None
        last = truth if truth.step is not None else last
        seen, falls = counters.training.step, counters.training.falls
        right = seen == last.step or (falls and seen == last.printed)
        if truth.step is not None and not news:
            missed += [] if truth.may_be_missed else [f"{truth.step}: {truth.line}"]
        elif news and (not right or (truth.step is None and not truth.other)):
            wrong.append(f"{seen} for {truth.step}: {truth.line}")
    return Outcome(tuple(missed), tuple(wrong))


def seconds_of(parser: Any, lines: list[str]) -> float:
    """Processor time for a mixed log."""
    counters = parser.Counters()
    began_s = time.process_time()
    for line in lines:
        counters.progress(line)
    return time.process_time() - began_s


def report_speed(parsers: dict[str, Any], lines: list[str]) -> None:
    """Print how many lines are read in a second; the parsers take turns, because others work on the machine, too."""
    rounds = [{name: seconds_of(parser, lines) for name, parser in parsers.items()} for _ in range(_ROUNDS)]
    for name in parsers:
        median_s = statistics.median(seconds[name] for seconds in rounds)
        print(f"{name}: {len(lines) / median_s:,.0f} lines/s of processor time on a mixed log of {len(lines)} lines")
    if "before" in parsers:
        ratio = statistics.median(seconds["now"] / seconds["before"] for seconds in rounds)
        print(f"time for a line, now to before: {ratio:.2f} (median of {_ROUNDS} pairs)")


def parser_of(revision: str) -> ModuleType:
    """The parser of an earlier commit, from before it had files beside it."""
    source = subprocess.run(["git", "show", f"{revision}:{_PARSER}"], cwd=_ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log_steps_before.py"
        path.write_bytes(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return module


def report(name: str, parser: Any, runs: list[Run], *, verbose: bool) -> None:
    """Print how a parser read the runs."""
    outcomes = {run.name: read(run, parser) for run in runs}
    whole = sum(outcome.whole for outcome in outcomes.values())
    steps = sum(truth.step is not None and not truth.may_be_missed for run in runs for truth in run.lines)
    missed = sum(len(outcome.missed) for outcome in outcomes.values())
    wrong = sum(len(outcome.wrong) for outcome in outcomes.values())
    wrong_runs = sum(bool(outcome.wrong) for outcome in outcomes.values())
    print(
        f"{name}: {whole} of {len(runs)} runs read whole ({100 * whole / len(runs):.0f} %), "
        f"{missed} of {steps} lines with a step missed, {wrong} wrong steps in {wrong_runs} runs"
    )
    for run_name, outcome in outcomes.items() if verbose else ():
        if not outcome.whole:
            print(f"  {run_name}: {len(outcome.missed)} missed, {len(outcome.wrong)} wrong")
            for text in (*outcome.missed[:2], *(f"WRONG {w}" for w in outcome.wrong[:3])):
                print(f"      {text[:150]}")


def main() -> None:
    """Read the runs of one half, or all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--half", choices=("reporting", "choosing", "printed", "all"), default="reporting")
    options.add_argument("--before", metavar="REVISION", help="also with the parser of this commit")
    options.add_argument("-v", "--verbose", action="store_true", help="show the runs that are not read whole")
    given = options.parse_args()
    every = load_runs()
    runs = [run for run in every if run.belongs_to(given.half)]
    print(f"{len(runs)} runs of {len({run.framework for run in runs})} programs ({given.half})")
    parsers: dict[str, Any] = {"before": parser_of(given.before)} if given.before else {}
    parsers["now"] = log_steps
    for name, parser in parsers.items():
        report(name, parser, runs, verbose=given.verbose)
    known_shapes.cache_clear()
    began_s = time.process_time()
    known_shapes()
    print(f"now: the shapes are loaded in {1000 * (time.process_time() - began_s):.1f} ms of processor time")
    lines = [truth.line for run in every for truth in run.lines]
    report_speed(parsers, lines)


if __name__ == "__main__":
    main()
