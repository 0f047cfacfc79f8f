"""Many runs side by side: which starts next, where, and what became of each."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from calm_rules import ANNOUNCED, HARMED, PLAIN, UNTOUCHED, Facts, Judgement, judge, judge_alone
from calm_run import PROGRAMS_FOLDER, Run
from calm_site import Site

_TICK_S: Final = 1.0
_STARTS: Final = 2
"""Runs that may start in one tick: each start takes seconds of processor time."""


class Limits(NamedTuple):
    """What a campaign may use.

    Attributes:
        nodes: Nodes of its devcluster.
        at_once: Jobs at a time.
        scale: Factor of all times of the programs, and of the limits that wait for them.
    """

    nodes: int
    at_once: int
    scale: float


class Campaign:
    """Runs programs in several ways, on one devcluster, or on one after the other if nodes go out of service.

    Attributes:
        results: One dict for each supervised and each plain run, as `--json` writes them.
    """

    def __init__(self, cells: Sequence[tuple[Any, str]], out: Path, limits: Limits) -> None:
        self.out, self.limits = out, limits
        self.waiting = list(cells)
        self.ways = Counter(program.name for program, _ in cells)
        self.running: list[Run] = []
        self.sites: list[Site] = []
        self.over: dict[str, dict[str, Run]] = {}
        self.results: list[dict[str, Any]] = []
        self.count = len(self.waiting)

    def go(self, tell: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Run everything; `tell` gets a line for each run that is judged, `stop` is asked each second."""
        compile_programs(self.out / "bin")
        try:
            while (self.waiting or self.running) and not stop():
                begun_s = time.monotonic()
                self._start_some()
                self._look(tell)
                time.sleep(max(0.0, _TICK_S - (time.monotonic() - begun_s)))
        finally:
            for site in self.sites:
                site.down()

    def _start_some(self) -> None:
        for _ in range(_STARTS):
            if not self.waiting or len(self.running) >= self.limits.at_once:
                return
            site = next((site for site in self.sites if not site.stale), None)
            if site is None:
                site = Site(self.limits.nodes, self.limits.scale)
                self.sites.append(site)
            program, way = self.waiting[0]
            if site.used + program.nodes > site.nodes:
                return
            self.waiting.pop(0)
            run = Run(program, way, self.out / program.name / way, site, self.limits.scale)
            shutil.rmtree(run.folder, ignore_errors=True)
            run.start(self.out / "bin")
            site.used += program.nodes
            self.running.append(run)

    def _look(self, tell: Callable[[str], None]) -> None:
        for site in list(self.sites):
            shown = site.show()
            site.stale |= bool(shown.out)
            mine = [run for run in self.running if run.site is site]
            for run in [run for run in mine if run.look(shown)]:
                self.running.remove(run)
                site.used -= run.program.nodes
                self.over.setdefault(run.program.name, {})[run.way] = run
                self._judge(run.program, tell)
            if site.stale and not [run for run in self.running if run.site is site]:
                self.sites.remove(site)
                site.down()

    def _judge(self, program: Any, tell: Callable[[str], None]) -> None:
        """Judge the runs of a program once all ways are over."""
        runs = self.over[program.name]
        if len(runs) < self.ways[program.name]:
            return
        for way, run in runs.items():
            if way == PLAIN:
                verdict = judge_alone(run.facts, program.code)
            else:
                verdict = judge(runs[PLAIN].facts, run.facts, program.noise)
            self.results.append(_line(run, verdict))
            done = f"{len(self.results)}/{self.count}"
            harms = "".join(f"\n        {harm}" for harm in verdict.harms)
            tell(f"{done:>8}  {run.name}: {verdict.word} ({run.facts.took_s:.0f} s){harms}")


def _line(run: Run, verdict: Judgement) -> dict[str, Any]:
    facts: Facts = run.facts
    return {
        "program": run.program.name, "kind": run.program.kind, "way": run.way, "judgement": verdict.word,
        "harms": list(verdict.harms), "states": list(facts.states), "requeues": facts.requeues, "steps": facts.steps,
        "starts": len(facts.starts), "taken_out": list(facts.taken_out), "took_s": facts.took_s,
        "looked": [line["text"] for line in run.story()],
    }  # fmt: skip


def compile_programs(folder: Path) -> None:
    """Compile the C programs.

    Raises:
        subprocess.CalledProcessError: the compiler refuses one; its words are on standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for source in PROGRAMS_FOLDER.glob("*.c"):
        shared = ["-shared", "-fPIC"] if source.stem == "calm_spin" else []
        name = f"{source.stem}.so" if shared else source.stem
        subprocess.run(["cc", "-O1", *shared, "-o", str(folder / name), str(source)], check=True)


def harmed(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the runs that were harmed."""
    return [line for line in results if line["judgement"] == HARMED]


def counted(results: Iterable[dict[str, Any]]) -> str:
    """Say how the supervised runs came out."""
    words = [line["judgement"] for line in results if line["way"] != PLAIN]
    return ", ".join(f"{words.count(word)} {word}" for word in (UNTOUCHED, ANNOUNCED, HARMED))
