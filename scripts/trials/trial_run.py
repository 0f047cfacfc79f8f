"""One trial from its batch script to its facts: submit, wait for the step, inject the fault, watch until the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import trial_notes
import trial_reports
import trial_site as site
from trial_cells import FAULT_RANK, FAULT_STEP, FAULTS, PROGRAMS, Cell, batch_script, sbatch_words
from trial_nanogpt import lay_out
from trial_rules import Facts, judge

_BEGIN_S = 180.0
"""For the first steps, and for the end of a job without a fault."""
_AFTER_S = 240.0
"""For everything after a fault. A plain requeue alone takes two minutes."""
_BACK_S = 90.0
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


class Options(NamedTuple):
    """What the trials use.

    Attributes:
        out: The folder that gets a folder for each trial.
        python: The training's interpreter.
        nanogpt: A checkout of nanoGPT.
        user: Who submits.
    """

    out: Path
    python: str
    nanogpt: Path | None
    user: str


class Trial:
    """One cell."""

    def __init__(self, cell: Cell, options: Options) -> None:
        self.cell, self.options, self.program = cell, options, PROGRAMS[cell.program]
        self.folder = options.out / cell.name.replace("/", "-")
        self.number = ""
        self.fault_at_s, self.node, self.rank = 0.0, "", -1
        self.taken_out: set[str] = set()
        self.by_hand = ""
        self.dead: site.DeadNode | None = None
        self.over = False
        self.look_at_s = 0.0

    def run(self) -> dict[str, Any]:
        """One line of the results."""
        began_s = time.time()
        self._lay_out()
        with contextlib.ExitStack() as after:
            after.callback(self._restore)
            if self.cell.fault == "disk":
                after.enter_context(site.small_disk(self.folder / "ckpt", self.program.disk_mb))
            self._submit()
            after.callback(site.call, "scancel", self.number, check=False)
            self._story(began_s)
            facts = self._facts()
        judgement = judge(facts)
        return {
            "cell": self.cell.name, "at_s": round(began_s), "took_s": round(time.time() - began_s), "job": self.number,
            "judgement": judgement.word, "why": judgement.why, "resumed_by_hand": self.by_hand, **asdict(facts),
        }  # fmt: skip

    def _lay_out(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "ckpt").mkdir(parents=True)
        if self.cell.program == "nanogpt":
            if self.options.nanogpt is None:
                raise ValueError(
                    "nanoGPT is tried from a checkout of it: give --nanogpt DIR, or choose others with --only"
                )
            lay_out(self.options.nanogpt, self.folder / "nanogpt")
        programs = Path(__file__).resolve().parent / "programs"
        text = batch_script(self.cell, str(self.folder), self.options.python, str(programs), self._fault_words())
        (self.folder / "job.sh").write_text(text)
        (self.folder / "notes.jsonl").touch()
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, self.options.user)

    def _fault_words(self) -> str:
        if not FAULTS[self.cell.fault].by_program:
            return ""
        on_all = self.cell.fault == "error" and self.program.raises_on_all
        ranks = None if on_all else [FAULT_RANK]
        return json.dumps({"kind": self.cell.fault, "step": FAULT_STEP, "ranks": ranks})

    def _submit(self) -> None:
        words = [*sbatch_words(self.cell, str(self.folder)), "job.sh"]
        self.number = site.as_user(self.options.user, words, self.folder).strip()

    def _story(self, began_s: float) -> None:
        """Wait for the step, inject the fault, wait for the end."""
        site.wait(lambda: self._look() or self._reached(), _BEGIN_S)
        if self.cell.fault == "clean":
            self.fault_at_s = began_s
        elif self._reached() and not self.over:
            self._break()
        else:
            return
        site.wait(self._look, self._left_s())

    def _left_s(self) -> float:
        return _BEGIN_S if self.cell.fault == "clean" else _AFTER_S

    def _look(self) -> bool:
        """Note which nodes are out of service; true once the job is over. Asks Slurm once a second at most."""
        if time.monotonic() < self.look_at_s:
            return self.over
        self.look_at_s = time.monotonic() + 1
        own = {start.node for start in self._notes().starts}
        states = site.nodes()
        out = {name for name in own if any(word in states.get(name, "") for word in ("DRAIN", "DOWN", "FAIL"))}
        held = {node for name, some in site.reserved().items() if "quarantine" in name for node in some}
        self.taken_out |= out | (held & own)
        state = site.job(self.number).get("JobState", "")
        self.over = not state or any(state.startswith(word) for word in _OVER)
        return self.over

    def _reached(self) -> bool:
        notes = self._notes()
        if self.cell.fault in ("error", "cuda"):
            return bool(notes.strikes)
        wanted = self.program.disk_step if self.cell.fault == "disk" else FAULT_STEP
        return notes.step_at(time.time()) >= wanted

    def _notes(self) -> trial_notes.Notes:
        return trial_notes.read((self.folder / "notes.jsonl").read_text().splitlines())

    def _break(self) -> None:
        notes = self._notes()
        ranks = notes.ranks(notes.launches[-1])
        victim = ranks[FAULT_RANK]
        self.node, self.rank, self.fault_at_s = victim.node, FAULT_RANK, time.time()
        if self.cell.fault == "stop":
            os.kill(victim.pid, signal.SIGSTOP)
        elif self.cell.fault == "kill":
            os.kill(victim.pid, signal.SIGKILL)
        elif self.cell.fault == "loader":
            hang = self.folder / f"hang-loader-{FAULT_RANK}"
            hang.touch()
            site.wait(lambda: bool(self._notes().strikes) or self._look(), 30)
        elif self.cell.fault == "disk":
            self._fill_disk()
            self.node, self.rank = "", -1
        elif self.cell.fault == "node":
            self.dead = site.kill_node(self.node)
        if FAULTS[self.cell.fault].by_program or self.cell.fault == "loader":
            strikes = self._notes().strikes
            self.fault_at_s = strikes[0][0] if strikes else 0.0
            if self.cell.fault == "error":  # no node has anything to do with it
                self.node, self.rank = "", -1

    def _fill_disk(self) -> None:
        with (self.folder / "ckpt" / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"\0" * 4096)

    def _facts(self) -> Facts:
        notes, job, since_s = self._notes(), site.job(self.number), self.fault_at_s
        reported = trial_reports.facts(self._story(), site.asked("incidents", self.number) or [], since_s)
        new = notes.first_new_step(since_s) if since_s else None
        launches = notes.launches
        return Facts(
            *self.cell,
            struck=self.fault_at_s > 0,
            fault_node=self.node,
            fault_rank=self.rank,
            fault_step=notes.step_at(since_s),
            taken_out=tuple(sorted(self.taken_out)),
            launches=len(notes.steps_begun_at(since_s)) if self.cell.fault != "clean" else len(launches) - 1,
            strikes=len(notes.strikes),
            begun_at=tuple(notes.steps_begun_at(since_s)) if self.cell.fault != "clean" else (),
            first_new_step_s=round(new[0] - since_s, 1) if new and self.cell.fault != "clean" else None,
            nodes_after=tuple(sorted({s.node for s in notes.ranks(launches[-1]).values()})) if launches else (),
            state=job.get("JobState", ""),
            exit_code=job.get("ExitCode", ""),
            over=self.over,
            waited_s=round(time.time() - since_s, 1) if since_s else 0.0,
            **reported,
        )

    def _story(self) -> list[dict[str, Any]]:
        lines = []
        for path in sorted(self.folder.glob("slurm-robust-*/story.jsonl")):
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines

    def _restore(self) -> None:
        """Put all nodes back into service for the next trial."""
        site.wait(self._look, 30)
        with contextlib.suppress(Exception):
            (self.folder / "slurm-job.txt").write_text(site.call("scontrol", "show", "job", self.number, check=False))
            (self.folder / "incidents.json").write_text(json.dumps(site.asked("incidents", self.number), indent=1))
        if self.dead is not None:
            site.revive(self.dead)
        self.by_hand = site.back_in_service(self.taken_out | ({self.node} if self.dead else set()), _BACK_S)
