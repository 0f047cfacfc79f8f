"""The quickstart's story: what wrapper, daemon, job and Slurm report about one job, in order, with their own times."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_robust.devcluster.cluster import DevCluster

POLL_S = 0.25
"""Between two readings of files."""
ASK_S = 1.0
"""Between two questions to Slurm or to the daemon."""
LATE_S = ASK_S + 1.0
"""What must be asked for is known this much later. While something is asked for, lines wait for that long."""


@dataclass(frozen=True, order=True)
class Event:
    """One line.

    Attributes:
        at_s: When it happened by its source's clock, seconds since the epoch.
        kind: Of a `Stage`, or another word.
        text: The line.
    """

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class Stage:
    """What must happen, and how long after the stage before at the latest."""

    kind: str
    timeout_s: float
    awaited: str
    log: str = "job"


_TRAINING = Stage("training", 120, "the training's first step")
_CAPTURED = Stage("captured", 30, "the stacks of all ranks")
_HANG = (
    _TRAINING,
    Stage("fault", 60, "the hang that was asked for"),
    Stage("suspected", 60, "the wrapper's suspicion"),
    _CAPTURED,
    Stage("still", 60, "a second still capture"),
    Stage("suspect", 60, "the suspect"),
)
_FAULT = (
    _TRAINING,
    Stage("injected", 60, "the step at which the GPU is to be lost"),
    Stage("node-fault", 30, "the word of the node's own service", "nodewatch.n3"),
    _CAPTURED,
    Stage("suspect", 60, "the suspect"),
)
_RECOVERY = (
    Stage("quarantine", 30, "the quarantine of the suspect's node", "srobustd"),
    Stage("seat", 30, "the seat", "srobustd"),
    Stage("requeued", 30, "the requeue", "srobustd"),
    Stage("running", 60, "the job's second start", "srobustd"),
    Stage("resumed", 120, "the first new step"),
    Stage("drained", 90, "the drain of the suspect's node", "srobustd"),
    Stage("finished", 120, "the training's end"),
    Stage("closed", 30, "the end of the incident in the daemon's journal", "srobustd"),
)
ACTS = {"hang": _HANG + _RECOVERY, "fault": _FAULT + _RECOVERY}
"""What happens in each act, in order."""
# After one of these lines of the wrapper, the story cannot continue as planned.
ASTRAY = {"gave-up", "stopped", "unanswered", "observed", "cancelled"}


class Story:
    """Gathers the events of one job.

    Args:
        cluster: Where it runs.
        job: Its id.
        stages: What happens, one of `ACTS`.
        inject: Called once while the job trains, with its nodes in the order of their ranks; returns the line that
            says what it did.
        at_step: After this step; 0 for as soon as it trains.
    """

    def __init__(
        self,
        cluster: DevCluster,
        job: str,
        stages: tuple[Stage, ...],
        inject: Callable[[list[str]], Event],
        at_step: int = 0,
    ) -> None:
        self.cluster, self.job, self._inject, self._at_step = cluster, job, inject, at_step
        self._stages = stages
        work = cluster.layout.work
        self.folder = work / f"slurm-robust-{job}"
        self.output = work / f"gpt-{job}.out"
        self.incident: dict[str, Any] = {}
        self.reached: set[str] = set()
        self.progress = ""  # the job's newest line about a step, while it trains
        self._suspect = ""
        self._seen = {self.folder / "story.jsonl": 0, self.output: 0}
        self._asked_s = self._moved_s = time.monotonic()
        self._waiting: list[Event] = []  # known, but an earlier event may still arrive

    # -- what is known now ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Everything has happened and was shown."""
        return self.next_stage is None and not self._waiting

    @property
    def next_stage(self) -> Stage | None:
        """The next stage; None at the end."""
        return next((stage for stage in self._stages if stage.kind not in self.reached), None)

    def late(self) -> str:
        """What should have happened by now, as a sentence; empty if all is well."""
        stage = self.next_stage
        if stage is None or time.monotonic() - self._moved_s < stage.timeout_s:
            return ""
        return f"{stage.awaited} did not come in {stage.timeout_s:g} s"

    def poll(self) -> list[Event]:
        """New events that can be shown, because no earlier one can still arrive."""
        asking = self._suspect and self.next_stage is not None
        now_s = time.monotonic()
        # Asking starts a process, so it is done seldom, and only while an answer is needed.
        if asking and now_s - self._asked_s >= ASK_S:
            self._asked_s = now_s
            self._waiting += self._from_daemon()
            self._waiting += self._from_slurm()
        self._waiting += self._from_wrapper()
        self._waiting += self._from_output()
        held_from_s = time.time() - (LATE_S if asking else 0)
        ready = sorted(event for event in self._waiting if event.at_s <= held_from_s)
        self._waiting = [event for event in self._waiting if event.at_s > held_from_s]
        return ready

    def _reach(self, kind: str) -> bool:
        """Note a stage; False if it was reached before."""
        if kind in self.reached:
            return False
        self.reached.add(kind)
        self._moved_s = time.monotonic()
        return True

    def _new_lines(self, path: Path) -> Iterator[str]:
        """Complete lines that were not read before."""
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(self._seen[path])
                text = file.read()
        except FileNotFoundError:
            return
        whole, _, _ = text.rpartition("\n")
        self._seen[path] += len(whole.encode()) + 1 if whole else 0
        yield from whole.splitlines()

    # -- the sources ------------------------------------------------------------------------------------------------

    def _from_wrapper(self) -> Iterator[Event]:
        for text in self._new_lines(self.folder / "story.jsonl"):
            line = json.loads(text)
            kind, shown = self._read(line["kind"], line["text"], line)
            if kind == "training" and not self._at_step:
                yield from self._injected()
            elif kind == "cleared":
                # A busy machine caused a suspicion, and nothing was done. The injected hang is still to come.
                self.reached -= {"suspected", "captured", "still"}
            if shown:
                self._reach(kind)
                yield Event(line["at_s"], kind, shown)
            if kind == "finished":
                self.progress = ""

    def _injected(self) -> Iterator[Event]:
        if self._reach("injected"):
            yield self._inject(self._nodes_by_rank())

    def _read(self, kind: str, text: str, line: dict[str, Any]) -> tuple[str, str]:
        """The stage of a wrapper's line, and the text to show; empty if the line says nothing new."""
        if kind in ("suspected", "waiting", "verdict") and "node-fault" in self.reached:
            return kind, ""  # the node's own words again
        if kind in ("waiting", "verdict"):
            why = text.partition(": ")[2]
            return "still", f"still, and why: {why}" if "still" not in self.reached else ""
        if kind == "suspect":
            self._suspect = self._suspect or line["node"]
            return kind, text
        if kind == "training" and "training" in self.reached:
            return "going-on", ""  # the line about the resumption says the same
        if kind in ("decided", "accepted"):
            return kind, ""  # the daemon's own actions follow
        return kind, text

    def _from_output(self) -> Iterator[Event]:
        for line in self._new_lines(self.output):
            if fault := re.match(r"fault: (.*) at ([\d.]+)$", line):
                self._reach("fault")
                yield Event(float(fault[2]), "fault", f"the fault strikes: {fault[1]}")
            elif line.startswith("step "):
                self.progress = line
                if self._at_step and line.startswith(f"step {self._at_step}/"):
                    yield from self._injected()

    def _from_daemon(self) -> Iterator[Event]:
        done = self.cluster.run(["srobust", "incidents", "--json", self.job], check=False)
        if done.returncode:
            return
        self.incident = json.loads(done.stdout)[-1]
        plan = self.incident["plan"] or {}
        kept, standby = ",".join(plan.get("kept", ())), ",".join(plan.get("standby", ()))
        lines = {
            "quarantine": ("quarantine", "node {target} is in quarantine: no other job gets it"),
            "create_seat": ("seat", f"seat {{target}} is reserved: {kept} with the standby {standby}"),
            "requeue": ("requeued", "job {target} is requeued"),
            "wait_running": ("running", f"job {{target}} runs again, on {kept} and {standby}"),
        }
        for action in self.incident["actions"]:
            kind, text = lines.get(action["kind"], ("", ""))
            if kind and action["done_at_s"] and self._reach(kind):
                if kind == "requeued":
                    self.progress = ""
                yield Event(action["done_at_s"], kind, text.format(target=action["target"]))
        if self.incident["state"] == "closed" and "finished" in self.reached:
            self._reach("closed")

    def _from_slurm(self) -> Iterator[Event]:
        if "drained" in self.reached:
            return
        shown = self.cluster.run(["sinfo", "-hN", "-n", self._suspect, "-o", "%T|%E"], check=False).stdout
        state, _, reason = shown.strip().partition("|")
        if state.startswith("drain") and self._reach("drained"):
            yield Event(time.time(), "drained", f"node {self._suspect} is drained: {reason}")

    def _nodes_by_rank(self) -> list[str]:
        listed = self.cluster.run(["squeue", "-h", "-j", self.job, "-o", "%N"]).stdout.strip()
        return self.cluster.run(["scontrol", "show", "hostnames", listed]).stdout.split()

    def job_state(self) -> str:
        """The job's state as Slurm shows it; empty if Slurm does not know the job any more."""
        return self.cluster.run(["squeue", "-h", "-j", self.job, "-t", "all", "-o", "%T"], check=False).stdout.strip()
