"""A stage for the daemon's tests: jobs that speak as the wrapper does, and a daemon that can be started and killed."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.marks.claim import Claim, parse, render
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.commands import CommandClient

WRAPPER = """
import json, os, signal, subprocess, sys, time
from slurm_robust.marks.claim import Claim, parse, render
from slurm_robust.slurm.commands import CommandClient

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
box = sys.argv[1]
array = os.environ.get("SLURM_ARRAY_TASK_ID")
address = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{array}" if array else os.environ["SLURM_JOB_ID"]
restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))

def say(claim, words=""):
    subprocess.run(["scontrol", "update", f"JobId={address}", "Comment=" + render(claim, words)], check=True)

started = time.time()
last = f"{box}/{address}.said"
incident = open(last).read() if restart and os.path.exists(last) else ""
times = {"imports_done": started, "first_new_step": time.time()} if incident else {}
say(Claim("watching", "line-" + address, restart=restart, incident=incident, times=times, step=7), "mine")
while True:
    path = f"{box}/{address}.{restart}.claim"
    if os.path.exists(path):
        said = json.load(open(path))
        said = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
        open(last, "w").write(said["incident"])
        say(Claim(state="wants", lineage="line-" + address, restart=restart, at_s=time.time(), **said), "mine")
        os.rename(path, path + ".done")
    time.sleep(0.05)
"""


@dataclasses.dataclass
class Scene:
    """One cluster, one daemon at a time, and the jobs between them."""

    cluster: DevCluster
    state_dir: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def __post_init__(self) -> None:
        self.client = CommandClient(SlurmConfig(conf=str(self.cluster.layout.slurm_conf)))
        self.box = self.cluster.layout.work / "box"
        self.box.mkdir(exist_ok=True)
        self.box.chmod(0o1777)
        (self.box / "wrapper.py").write_text(WRAPPER)

    # --- the daemon

    def waiting_check(self) -> tuple[Path, list[str]]:
        """A file, and a command for checks of nodes that passes as soon as the file is not there."""
        unchecked = self.box / "unchecked"
        return unchecked, ["/bin/sh", "-c", f"while [ -e {unchecked} ]; do sleep 0.1; done"]

    def configure(self, **sections: Any) -> Path:
        """Write a robust.yaml for the next daemon: the cluster's own, with these sections changed."""
        raw = yaml.safe_load(self.cluster.layout.robust_yaml.read_text())
        raw["daemon"] |= {"http": {"enabled": False}, "idle_interval_s": 0.25}
        raw["quarantine"] = {"recheck_command": ["/bin/true"]}
        raw["nodetest"] = {"tests": []}
        for name, value in sections.items():
            raw[name] = {**raw.get(name, {}), **value} if isinstance(value, dict) else value
        path = self.state_dir.parent / f"{self.state_dir.name}.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    def start(
        self,
        *more: str,
        crash_after: str = "",
        user: str = "",
        env: dict[str, str] | None = None,
        **sections: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a daemon; sections change its configuration, `env` its environment."""
        self.stop()
        path = self.configure(**sections)
        self.starts += 1
        env = {**self.cluster.env, **(env or {})}
        if crash_after:
            env["SROBUST_DAEMON_CRASH_AFTER"] = crash_after
        argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "--config", str(path)]
        argv += ["--state-dir", str(self.state_dir), *more]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, user=user or None)
        wait_until(lambda: self.log.read_text().count("daemon.start") >= self.starts, 20, f"daemon up, see {self.log}")
        return self.process

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the daemon, if one runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(15)
        self.process = None

    @property
    def log(self) -> Path:
        """All daemons' log lines."""
        return self.state_dir.parent / f"{self.state_dir.name}.log"

    def journal(self) -> Journal:
        """The journal, to look at."""
        return Journal.open(self.state_dir, read_only=True)

    def incident(self, job_id: int, **wanted: Any) -> dict[str, Any] | None:
        """The newest incident of a job, with its actions; None while there is none with these columns."""
        journal = self.journal()
        try:
            for row in journal.incidents("job_id = ?", (job_id,)):
                found = {**dataclasses.asdict(row.incident), **dataclasses.asdict(row), "reason": row.reason}
                if all(found[k] == v for k, v in wanted.items()):
                    return {**found, "actions": journal.actions(row.key)}
        finally:
            journal.close()
        return None

    def await_incident(self, job_id: int, timeout_s: float = 30, **wanted: Any) -> dict[str, Any]:
        """The same, awaited."""
        found = wait_until(
            lambda: self.incident(job_id, **wanted), timeout_s, f"incident of job {job_id} with {wanted}\n{self.tail()}"
        )
        assert found is not None
        return found

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    # --- jobs

    def submit(self, *args: str, user: str | None = None, script: str = "") -> int:
        """Submit a job that speaks as the wrapper does, or `script`."""
        python = f"exec {shlex.quote(sys.executable)} {self.box}/wrapper.py {self.box}"
        text = f"#!/bin/sh\n{script or python}\n"
        # The job must find its Slurm and this package, whoever runs it.
        done = self.cluster.run(["sbatch", "--parsable", "--output=/dev/null", *args], input=text, user=user)
        return int(done.stdout.split(";")[0])

    def job(self, job_id: int | str) -> Job:
        """The job as Slurm shows it."""
        found = self.client.job(JobRef.parse(str(job_id)))
        assert found is not None
        return found

    def running(self, job_id: int | str, *, restart: int = 0, timeout_s: float = 30) -> Job:
        """The job once it runs its n-th attempt."""

        def look() -> Job | None:
            job = self.client.job(JobRef.parse(str(job_id)))
            return job if job and job.state == "RUNNING" and job.restart_count == restart else None

        what = lambda: f"job {job_id} runs attempt {restart}\n{self.tail()}"  # noqa: E731
        try:
            found = wait_until(look, timeout_s, f"job {job_id} runs attempt {restart}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{what()}\n{self.cluster.run(['squeue', '-a']).stdout}") from None
        assert found is not None
        return found

    def watched(self, job_id: int | str, *, restart: int = 0) -> Job:
        """The job once it runs and its wrapper said so."""
        self.running(job_id, restart=restart)
        wait_until(lambda: (c := parse(self.job(job_id).comment)) and c.restart == restart, 20, f"{job_id} is watched")
        return self.job(job_id)

    def claim(
        self,
        job_id: int | str,
        evict: list[str],
        *,
        restart: int = 0,
        incident: str = "i1",
        why: str = "hangs",
        step: int = -1,
        grade: str = "",
    ) -> float:
        """Let the job's wrapper ask; returns when it was told to."""
        path = self.box / f"{job_id}.{restart}.claim"
        said = {"evict": evict, "incident": incident, "why": why, "conclusion": "culprit", "confidence": 0.9}
        said |= {"step": step, "grade": grade}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(said))
        at_s = time.time()
        temporary.rename(path)
        return at_s

    @contextmanager
    def nothing_starts(self) -> Iterator[None]:
        """No job starts meanwhile: a placed one else runs before the daemon has seen it wait. What runs goes on."""
        self.cluster.run(["scontrol", "update", "PartitionName=main", "State=DOWN"])
        try:
            yield
        finally:
            self.cluster.run(["scontrol", "update", "PartitionName=main", "State=UP"])

    def say(self, job_id: int | str, claim: Claim | str, user: str | None = None) -> None:
        """Write a claim (or any text) into a job's comment, without the wrapper."""
        text = claim if isinstance(claim, str) else render(claim)
        self.cluster.run(["scontrol", "update", f"JobId={job_id}", f"Comment={text}"], user=user)

    # --- Slurm's end state

    def node(self, name: str) -> Node:
        """One node."""
        return next(n for n in self.client.nodes() if n.name == name)

    def ours(self) -> dict[str, Reservation]:
        """Reservations of ours."""
        return {r.name: r for r in self.client.reservations() if r.name.startswith("srobust-")}

    def clean_up(self) -> None:
        """No jobs, no daemon, no reservations, every node back: for the next test."""
        self.stop(signal.SIGKILL)
        # A claim that nobody has answered would be read by the daemon of the next test.
        for job in self.cluster.run(["squeue", "-h", "-o", "%A"]).stdout.split():
            self.cluster.run(["scontrol", "update", f"jobid={job}", "comment="], check=False)
        for user in ("root", "nobody", "daemon"):
            self.cluster.run(["scancel", f"--user={user}"], check=False)
        wait_until(lambda: not self.cluster.run(["squeue", "-h"]).stdout.strip(), 40, "no job is left")
        for reservation in self.client.reservations():
            self.client.delete_reservation(reservation.name)
        for node in self.client.nodes():
            if node.drained:
                self.client.resume(node.name)
        self.client.set_node_comment(",".join(self.cluster.node_names), "")


def alive(pid: int) -> bool:
    """True if the process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
