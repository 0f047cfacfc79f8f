"""A training on a devcluster that is broken on purpose, and when what happened to it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from lib import ROOT, wait_for

from slurm_robust.devcluster.cluster import DevCluster

TIMELINE = (
    "fault",
    "suspected",
    "captured",
    "localised",
    "decided",
    "stopped",
    "accepted",
    "requeued",
    "pointed",
    "running",
    "ranks_started",
    "imports_done",
    "process_groups_ready",
    "checkpoint_loaded",
    "first_new_step",
)
"""The incident's times in their order; `ranks_started`, which only the program can tell; and on the seat road the
daemon's steps: the claim accepted, the requeue called, the requeued job given exclusions, seat and start time."""
STEP_TIME_S = 0.1
_SMALL = "--layers 1 --width 16 --heads 2 --context 16 --batch 2 --eval-every 0 --checkpoint-every 5"
_STAMP = """#!/bin/sh
# Says when a rank's first instruction ran, and becomes the rank.
[ -z "$IGNORE_SIGTERM" ] || trap '' TERM
echo "${SLURM_RESTART_COUNT:-0} $SLURM_STEP_ID $SLURM_PROCID $(date +%s.%N)" >> "$1"
shift
exec "$@"
"""


class Training:
    """One job, with a folder of its own.

    Args:
        cluster: Where.
        name: Of the folder, below the cluster's work folder.
    """

    def __init__(self, cluster: DevCluster, name: str) -> None:
        self.cluster = cluster
        self.folder = cluster.layout.work / name
        self.folder.mkdir()
        self.id = ""
        stamp = self.folder / "stamp.sh"
        stamp.write_text(_STAMP)
        stamp.chmod(0o755)

    def program(self, steps: int) -> str:
        """The command of a rank."""
        return f"{self.folder}/stamp.sh {self.folder}/stamps {self.python(steps)}"

    def python(self, steps: int) -> str:
        """The same without the shell around it that stamps the start: only a Python can have warm processes."""
        train = f"{sys.executable} {ROOT / 'examples' / 'train.py'} --checkpoint-dir {self.folder}/ck --steps {steps}"
        return f"{train} --step-time-s {STEP_TIME_S} {_SMALL}"

    def submit(
        self, script: str, nodes: int, *, fault: Mapping[str, Any] | None = None, gpus: int = 0, **env: str
    ) -> None:
        """Submit a batch script of so many nodes, a rank and so many GPUs each."""
        (self.folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
        values = {**self.cluster.env, **env}
        if fault is not None:
            values["TRAIN_FAULT"] = json.dumps({**fault, "once_file": str(self.folder / "struck")})
        args = ["sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive", "--requeue"]
        args += ["--open-mode=append", f"--output={self.folder}/slurm-%j.out", f"--chdir={self.folder}"]
        args += [f"--gres=gpu:{gpus}"] if gpus else []
        done = self.cluster.run([*args, str(self.folder / "job.sh")], env=values)
        self.id = done.stdout.strip().split(";")[0]

    # -- looking ----------------------------------------------------------------------------------------------------

    def output(self) -> str:
        """What the job printed."""
        return "\n".join(p.read_text(errors="replace") for p in self.folder.glob("*.out"))

    def state(self) -> tuple[str, list[str]]:
        """Slurm's word: state and nodes."""
        shown = self.cluster.run(["squeue", "-h", "-j", self.id, "-o", "%T %N"], check=False).stdout.split()
        names = self.cluster.run(["scontrol", "show", "hostnames", shown[1]]).stdout if len(shown) > 1 else ""
        return (shown[0] if shown else "", names.split())

    def stamps(self, *, restart: int = 0, step: int | None = None) -> list[float]:
        """When ranks started, of one run of the job and one of its steps (the last where not given)."""
        path = self.folder / "stamps"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        mine = [(int(s), float(at_s)) for r, s, _, at_s in lines if int(r) == restart]
        last = max((s for s, _ in mine), default=0) if step is None else step
        return [at_s for s, at_s in mine if s == last]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Lines of the supervisor's story."""
        path = self.folder / f"slurm-robust-{self.id}" / "story.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def hears(self, kind: str, timeout_s: float) -> dict[str, Any]:
        """Wait for a line of the story.

        Raises:
            RuntimeError: it did not come; carries the end of the job's output.
        """
        try:
            return wait_for(lambda: self.told(kind), timeout_s, f"{kind!r} in the story of job {self.id}")[0]
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self._words()}") from None

    def trains_again(self, timeout_s: float) -> None:
        """Wait until a second attempt has made a new step, whoever brought it back: supervisor or daemon."""
        try:
            wait_for(lambda: self.told("resumed") or self.told("training")[1:], timeout_s, f"job {self.id}'s return")
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self._words()}") from None

    def _words(self) -> str:
        """For failures: the end of the job's output and of the daemon's log."""
        log = self.cluster.layout.log / "srobustd.log"
        return f"{self.output()[-3000:]}\n{log.read_text()[-2000:] if log.exists() else ''}"

    def cancel(self) -> None:
        """End it, and wait until Slurm has it off its nodes."""
        self.cluster.run(["scancel", self.id], check=False)
        wait_for(lambda: self.state()[0] == "", 90, f"the end of job {self.id}")

    def incident_times(self) -> dict[str, float]:
        """Times of its incident so far, seconds since the epoch."""
        page = next((self.folder / f"slurm-robust-{self.id}").glob("*/incident.json"), None)
        return dict(json.loads(page.read_text())["times"]) if page else {}

    def struck_at_s(self) -> float:
        """When the program was broken, by its own line; 0 before that."""
        struck = re.search(r"^fault: .* at ([\d.]+)$", self.output(), re.MULTILINE)
        return float(struck[1]) if struck else 0.0

    # -- what came of it --------------------------------------------------------------------------------------------

    def times(self, *, restart: int, fault_at_s: float | None = None) -> dict[str, float]:
        """The incident's times, seconds since the epoch; the fault's own where it is known."""
        times = self.incident_times()
        if "first_new_step" not in times:
            # The daemon was first: the incident is its own, and the next attempt only tells when it trains.
            times = {key: times[key] for key in ("suspected", "captured") if key in times}
            times["first_new_step"] = self.told("training")[-1]["at_s"]
        if began_s := self.struck_at_s() if fault_at_s is None else fault_at_s:
            times["fault"] = began_s
        if restart:
            times |= self._of_daemon()
            times.setdefault("decided", times["accepted"])
        if stamps := self.stamps(restart=restart):
            times["ranks_started"] = max(stamps)
        return {key: times[key] for key in TIMELINE if key in times}

    def _of_daemon(self) -> dict[str, float]:
        """The daemon's times of the same incident: it is the one that saw Slurm show RUNNING.

        Raises:
            RuntimeError: the job came back in another way, restarted in place for example.
        """
        done = self.cluster.run(["srobust", "incidents", "--json"])
        mine = next((i for i in json.loads(done.stdout) if i["job"] == self.id), None)
        if mine is None or "accepted" not in mine["times"]:
            raise RuntimeError(f"job {self.id} was not brought back by the daemon\n{self._words()}")
        calls = {a["kind"]: a["called_at_s"] for a in mine["actions"] if a["called_at_s"] is not None}
        seen = {"requeued": calls.get("requeue"), "pointed": calls.get("point_job_at_seat")}
        seen |= {key: mine["times"].get(key) for key in ("accepted", "running")}
        return {key: at_s for key, at_s in seen.items() if at_s is not None}

    def suspicion_limit_s(self) -> float | None:
        """The limit that the silence crossed, as the story says it."""
        found = [re.search(r"limit ([\d.]+) s", line["text"]) for line in self.told("suspected")[:1]]
        return float(found[0][1]) if found and found[0] else None


class Competitor:
    """A job that waits for the very nodes, ahead of everyone in the queue."""

    def __init__(self, cluster: DevCluster, nodes: int, lasts_s: float) -> None:
        self._cluster = cluster
        args = ["sbatch", "--parsable", f"-N{nodes}", "--exclusive", "--nice=-1000", "--output=/dev/null"]
        self.id: str = cluster.run([*args, "--wrap", f"sleep {lasts_s:g}"]).stdout.strip()

    def started(self) -> bool:
        """Whether it got nodes."""
        return "StartTime=Unknown" not in self._shown() and "JobState=PENDING" not in self._shown()

    def _shown(self) -> str:
        """Slurm's word."""
        shown: str = self._cluster.run(["scontrol", "-o", "show", "job", self.id]).stdout
        return shown

    def cancel(self) -> None:
        """Take it out of the queue."""
        self._cluster.run(["scancel", self.id], check=False)


def end_all(cluster: DevCluster) -> None:
    """Cancel every job: one that is left would hold its nodes for hours, and each next road would wait for them."""
    if jobs := cluster.run(["squeue", "-h", "-o", "%i"], check=False).stdout.split():
        cluster.run(["scancel", *jobs], check=False)


def settled(cluster: DevCluster, *, standby: bool) -> None:
    """Wait until nothing of the last run is left: no job, no quarantine, no seat, a full standby pool, all nodes up."""

    def looks_settled() -> bool:
        with_jobs = cluster.run(["squeue", "-h"]).stdout.strip()
        shown = cluster.run(["scontrol", "-o", "show", "reservation"], check=False).stdout
        nodes = cluster.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()
        pool = "srobust-standby" in shown if standby else True
        free = all(state.rstrip("*") in ("idle", "reserved") for state in nodes)
        return not with_jobs and pool and free and "-quarantine" not in shown and "-seat" not in shown

    wait_for(looks_settled, 120, "a cluster at rest", poll_s=0.3)
