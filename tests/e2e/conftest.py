"""What the end-to-end stories share: a cluster with its daemon, a training job, and ways to wait for what they tell."""

from __future__ import annotations

import json
import math
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import quick_torch, wait_until
from spank_build import build, line

from slurm_robust.config import site as config
from slurm_robust.core.model import JobRef
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger, SupervisedAttempt
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.factory import connect

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Quicker than a site would want it, so that a story takes seconds; the order of things is the same.
SUPERVISE = {
    "suspicion_floor_s": 1.5, "corroborate_after_s": 2.2, "recapture_s": 4.0, "tick_s": 0.25,
    "strong_patience_s": 4.0, "weak_patience_s": 8.0,
}  # fmt: skip
SMALL = "--layers 1 --width 16 --heads 2 --context 16 --batch 2 --eval-every 0 --checkpoint-every 5"


class Training:
    """A job that trains `examples/train.py` under `srobust run`, and the story it tells."""

    def __init__(self, cluster: DevCluster, job_id: str, folder: Path) -> None:
        self.cluster = cluster
        self.id = job_id
        self.folder = folder
        self.client = connect(config.load(cluster.env["SROBUST_CONFIG"]).slurm)

    # -- the wrapper's story ----------------------------------------------------------------------------------------

    @property
    def story_folder(self) -> Path:
        """The incident folder."""
        return self.folder / f"slurm-robust-{self.id}"

    def story(self) -> list[dict[str, Any]]:
        """Its lines so far."""
        path = self.story_folder / "story.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind."""
        return [line for line in self.story() if line["kind"] == kind]

    def hears(self, kind: str, timeout_s: float = 60, count: int = 1) -> dict[str, Any]:
        """Wait for a line of this kind; the failure shows the whole story and the job's output."""
        try:
            return wait_until(lambda: self.told(kind)[count - 1 : count], timeout_s, kind)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.everything()}") from None

    def output(self) -> str:
        """What the job printed."""
        return "\n".join(p.read_text(errors="replace") for p in sorted(self.folder.glob("*.out")))

    def everything(self) -> str:
        """For failures: story, output, daemon."""
        lines = [f"{line['at_s']:.1f} {line['kind']}: {line['text']}" for line in self.story()]
        log = self.cluster.directory / "log" / "srobustd.log"
        daemon = log.read_text().splitlines()[-40:] if log.exists() else []
        return "\n".join(["-- story", *lines, "-- output", self.output()[-3000:], "-- daemon", *daemon])

    # -- Slurm's word -----------------------------------------------------------------------------------------------

    def job(self) -> Job:
        """The job as Slurm sees it."""
        job = self.client.job(JobRef.parse(self.id))
        assert job is not None, f"Slurm forgot job {self.id}"
        return job

    def ends(self, timeout_s: float = 90) -> Job:
        """Wait for the job's end."""

        def ended() -> Job | None:
            job = self.job()
            return job if job.state not in ("PENDING", "RUNNING") and not job.completing else None

        try:
            return wait_until(ended, timeout_s, f"the end of job {self.id}", poll_s=0.4)  # type: ignore[return-value]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.everything()}") from None

    def node(self, name: str) -> Node:
        """A node as Slurm sees it."""
        return next(n for n in self.client.nodes() if n.name == name)

    def reservations(self, prefix: str) -> list[Reservation]:
        """Reservations of ours with this prefix."""
        return [r for r in self.client.reservations() if r.name.startswith(prefix)]

    def rank_node(self, rank: int) -> str:
        """Where a rank runs (or ran last)."""
        return self.job().nodes[rank]

    def incident(self) -> dict[str, Any]:
        """The daemon's newest incident of this job."""
        done = self.cluster.run(["srobust", "incidents", "--json"])
        return next(i for i in json.loads(done.stdout) if i["job"] == self.id)

    def incident_closed(self, timeout_s: float = 30) -> dict[str, Any]:
        """Wait until the daemon has closed the newest incident of this job."""

        def closed() -> dict[str, Any] | None:
            found = self.incident()
            return found if found["state"] == "closed" else None

        return wait_until(closed, timeout_s, "the incident's end", poll_s=0.3)  # type: ignore[return-value]

    def attempts(self) -> list[SupervisedAttempt]:
        """The attempts of this job's training in the daemon's journal, oldest first."""
        journal = Journal.open(self.cluster.layout.state / "srobustd", read_only=True)
        try:
            return [row for row in AttemptLedger(journal).attempts(0, math.inf) if row.times.job == self.id]
        finally:
            journal.close()

    def assert_clean_slurm(self) -> None:
        """No seat is left, no job is held, nothing pends that should not."""
        wait_until(lambda: not self.reservations("srobust-seat"), 15, "the seat's end")
        assert self.job().reason not in ("JobHeldAdmin", "JobHeldUser")


def free_port() -> int:
    """A port that nobody listens on now, below those that the kernel gives out by itself."""
    while True:
        port = random.randrange(22000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


Submit = Callable[..., Training]


def spec(**wanted: Any) -> Spec:
    """Five nodes with a daemon and one standby node, or what is wanted instead."""
    # A story that is not about the ladder has none: tests of its nodes take time, and only then name anybody.
    yaml = {
        "ladder": {"tests": []},
        "supervise": {**SUPERVISE, **wanted.pop("supervise", {})},
        **wanted.pop("yaml", {}),
    }
    return replace(Spec(nodes=5, gpus_per_node=2, standby=1, daemon=True, robust_yaml=yaml), **wanted)


@pytest.fixture
def cluster(devcluster_factory: Callable[[Spec], DevCluster]) -> Iterator[Callable[..., DevCluster]]:
    """Brings up a cluster with its daemon and one standby node, for one story."""
    up: list[DevCluster] = []

    def bring_up(**wanted: Any) -> DevCluster:
        made = devcluster_factory(spec(**wanted))
        up.append(made)
        if made.spec.standby and made.spec.daemon and made.spec.mode == "act":
            client = connect(config.load(made.env["SROBUST_CONFIG"]).slurm)
            wait_until(lambda: any("standby" in r.name for r in client.reservations()), 20, "the standby pool")
        return made

    yield bring_up
    for made in up:
        made.down()


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Submits a training job.

    `fault` is TRAIN_FAULT without `once_file`, which is added unless `again` is true; `options` go to `srobust run`;
    `command` replaces the whole srun part of the script.
    """

    def send(
        cluster: DevCluster,
        *,
        nodes: int = 3,
        steps: int = 60,
        fault: dict[str, Any] | None = None,
        again: bool = False,
        options: str = "",
        arguments: str = "",
        sbatch: tuple[str, ...] = (),
        command: str = "",
    ) -> Training:
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)  # as /tmp: no code is snapshotted where others may exchange it
        train = f"{sys.executable} {EXAMPLES / 'train.py'} --checkpoint-dir {folder}/ck --steps {steps}"
        train += f" --step-time-s 0.1 {SMALL} {arguments}"
        launch = command or f"srobust run --robust-checkpoint-dir={folder}/ck {options}"
        script = folder / "job.sh"
        script.write_text(f"#!/bin/bash\n{launch} {train}\n")
        # Ports that train.py derives from the job's number would be the same on every cluster of this machine.
        pythonpath = quick_torch(cluster.env.get("PYTHONPATH", ""))
        env = {**cluster.env, "MASTER_PORT": str(free_port()), "PYTHONPATH": pythonpath}
        if fault is not None:
            env["TRAIN_FAULT"] = json.dumps({**fault, **({} if again else {"once_file": str(folder / "struck")})})
        args = ["sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive", "--requeue"]
        args += ["--open-mode=append", f"--output={folder}/slurm-%j.out", f"--chdir={folder}", *sbatch, str(script)]
        done = cluster.run(args, env=env)
        return Training(cluster, done.stdout.strip().split(";")[0], folder)

    return send


@pytest.fixture
def plugstack() -> Iterator[Path]:
    """A plugstack.conf that loads the plugin."""
    with tempfile.TemporaryDirectory(prefix="srobust-spank-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        conf = folder / "plugstack.conf"
        conf.write_text(line(build(folder)) + "\n")
        yield conf
        shutil.rmtree(folder / "objects", ignore_errors=True)
