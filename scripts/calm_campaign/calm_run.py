"""One run of one program in one way: its batch script, what is seen while it runs, and its facts at the end."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from calm_rules import ROBUST, RUN, Facts
from calm_site import Shown, Site

PROGRAMS_FOLDER: Final = Path(__file__).resolve().parents[1] / "calm_programs"
_QUICK_TORCH: Final = Path(__file__).resolve().parents[2] / "tests" / "quick_torch"
_GOING: Final = (
    "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "STOPPED", "RESIZING", "SIGNALING",
)  # fmt: skip
_AFTER_HARM_S: Final = 5.0
"""How long a run goes on once it is harmed, so that its story says why."""


@dataclass
class Run:
    """One run.

    Attributes:
        program: The program, as calm_kit registers it.
        way: plain, run or robust.
        folder: Of its script, output and story.
        site: Where it runs.
        job: Its number; of an array, that of the array.
        begun_s: When it was submitted, by the monotonic clock.
        limit_s: The time after which it counts as one that does not end.
        seen: The fields of its jobs, as Slurm showed them last.
        lost: Nodes that went out of service under it, with what holds them.
        harmed_s: When harm was seen first; 0 if never.
    """

    program: Any
    way: str
    folder: Path
    site: Site
    scale: float
    job: str = ""
    begun_s: float = 0.0
    limit_s: float = 0.0
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    harmed_s: float = 0.0
    facts: Facts = field(default_factory=Facts)

    @property
    def name(self) -> str:
        """Program and way, for people."""
        return f"{self.program.name}/{self.way}"

    def start(self, programs: Path) -> None:
        """Submit it."""
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)
        (self.folder / "job.sh").write_text(self._text(programs))
        words = ["sbatch", "--parsable", "--requeue", "--open-mode=append", "--exclusive", f"--chdir={self.folder}"]
        words += [f"--nodes={self.program.nodes}", f"--ntasks={self.program.tasks}", "--output=slurm-%j.out"]
        words += [f"--job-name={self.program.name}", *(["--robust"] if self.way == ROBUST else [])]
        done = self.site.cluster.run([*words, *self.program.sbatch, "job.sh"], cwd=self.folder)
        self.job = done.stdout.strip().split(";")[0]
        self.begun_s = time.monotonic()
        self.limit_s = 120 + self.scale * (240 + 4 * self.program.pause_s)

    def _text(self, programs: Path) -> str:
        path = f"{_QUICK_TORCH}:$PYTHONPATH"
        settings = {
            "CALM_DIR": str(self.folder), "CALM_SCALE": str(self.scale), "CALM_BIN": str(programs),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        lines = ["#!/bin/bash", *(f"export {key}={shlex.quote(value)}" for key, value in settings.items())]
        lines += [f'export PYTHONPATH="{path}"', f'launch="{"srobust run" if self.way == RUN else "srun"}"']
        lines += [f'me="{sys.executable} {PROGRAMS_FOLDER}"', f'mark="{PROGRAMS_FOLDER}/mark"']
        lines += ['scaled() { awk "BEGIN { print $1 * $CALM_SCALE }"; }', self.program.body, ""]
        return "\n".join(lines)

    def look(self, shown: Shown) -> bool:
        """Take in what Slurm shows now; true once the run is over."""
        jobs = {number: dict(job) for number, job in shown.jobs.items() if self.job in (number, job.get("ArrayJobId"))}
        self.seen |= jobs
        for node, how in shown.out.items():
            if any(node in self.site.unfold(job.get("NodeList", "")) for job in self.seen.values()):
                self.lost.setdefault(node, how)
        now_s = time.monotonic()
        if not self.harmed_s and (self.lost or self._requeues()):
            self.harmed_s = now_s
        going = [job for job in jobs.values() if job.get("JobState", "").split("+")[0] in _GOING]
        over = not going or now_s - self.begun_s > self.limit_s
        if over or (self.harmed_s and now_s - self.harmed_s > _AFTER_HARM_S):
            self._finish(ended=not going)
            return True
        return False

    def _requeues(self) -> int:
        return sum(int(job.get("Restarts", "0")) for job in self.seen.values())

    def _finish(self, *, ended: bool) -> None:
        if not ended:
            self.site.cluster.run(["scancel", self.job], check=False)
        outputs = sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("*.log"))
        self.facts = Facts(
            ended=ended,
            cut=not ended and bool(self.harmed_s),
            states=sorted(f"{job['JobState']} {job['ExitCode']}" for job in self.seen.values()),
            requeues=self._requeues(),
            starts=sorted(_lines(self.folder / "starts")),
            output=b"\n".join(path.read_bytes() for path in outputs),
            taken_out=sorted(f"{node} ({how})" for node, how in self.lost.items()),
            steps=sum(self.site.steps(number) for number in self.seen),
            told=[line["kind"] for line in self.story()],
            took_s=round(time.monotonic() - self.begun_s, 1),
        )

    def look_once_more(self, shown: Shown) -> None:
        """Take in nodes that went out of service after its end."""
        mine = {node for job in self.seen.values() for node in self.site.unfold(job.get("NodeList", ""))}
        late = [f"{node} ({how})" for node, how in shown.out.items() if node in mine]
        self.facts = replace(self.facts, taken_out=sorted({*self.facts.taken_out, *late}))

    def story(self) -> list[dict[str, Any]]:
        """Read the lines of our story, in the order of their files."""
        paths = sorted(self.folder.glob("slurm-robust-*/**/story.jsonl"))
        return [json.loads(line) for path in paths for line in _lines(path)]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
