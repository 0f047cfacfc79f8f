"""A Slurm that starts requeued jobs at once (`requeue_delay=0`, `--requeue=expedite`): never outside of the seat.

Slurm has both from 25.11 on. Where an older one is installed this is skipped; to run it, put a newer one first on PATH:

    PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH pytest -k requeue_delay

SROBUST_ROUNDS says how often each kind of job is moved (default: 3).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene

from slurm_robust.devcluster import machine
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.values import expand

pytestmark = pytest.mark.slurm

ROUNDS = int(os.environ.get("SROBUST_ROUNDS", "3"))
SLURM = """
SchedulerParameters=nohold_on_prolog_fail,bf_interval=2,sched_interval=2,batch_sched_delay=1,requeue_delay=0
SlurmctldParameters=enable_expedited_requeue
"""


@pytest.fixture(scope="module")
def eager(devcluster_factory: Callable[[Spec], DevCluster]) -> DevCluster:
    """Eight nodes of a Slurm without a delay after a requeue: enough for a start outside of the seat."""
    if not machine.installed() or (version := machine.slurm_version()) < (25, 11):
        shown = f"Slurm {version[0]}.{version[1]:02}" if machine.installed() else "no Slurm"
        pytest.skip(f"{shown} is installed, and requeue_delay came with 25.11")
    return devcluster_factory(Spec(nodes=8, gpus_per_node=0, prolog=False, kill_wait_s=2, slurm_conf_extra=SLURM))


@pytest.fixture
def stage(eager: DevCluster, tmp_path: Path) -> Iterator[Scene]:
    """The cluster, and a daemon with one standby node."""
    made = Scene(eager, tmp_path / "state")
    made.start(standby={"size": 1})
    yield made
    made.clean_up()


@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("requeue", ["--requeue", "--requeue=expedite"])
def test_job_never_starts_outside_its_seat(stage: Scene, requeue: str) -> None:
    """With free nodes and a competitor that waits for more, in every round: one start more, in the seat, no suspect."""
    ran = stage.box / f"ran{requeue.strip('-')}"
    python = f"exec {shlex.quote(sys.executable)} {stage.box}/wrapper.py {stage.box}"
    starts = list[str]()
    for number in range(ROUNDS):
        log = f"{ran}.{number}"
        job = stage.submit(requeue, "-N3", "--exclusive", script=f"echo $SLURM_JOB_NODELIST >> {log}\n{python}")
        before = stage.watched(job)
        competitor = stage.submit("-N6", "--exclusive", "--nice=-100", script="sleep 600")
        suspect = before.nodes[number % 3]
        stage.claim(job, [suspect])
        incident = stage.await_incident(job, 60, outcome="resumed")
        seat = {*incident["recovery"]["kept"], *incident["recovery"]["standby"]}
        starts = Path(log).read_text().split()
        assert len(starts) == 2, f"round {number}: it started {len(starts) - 1} times after its requeue: {starts}"
        assert set(expand(starts[1])) == seat, f"round {number}: on {starts[1]}, and its seat is {seat}"
        assert suspect not in seat
        assert f"on {stage_nodes(stage, job)}" in incident["reason"]
        assert stage.job(competitor).state == "PENDING", f"round {number}"
        stage.cluster.run(["scancel", str(job), str(competitor)])
        stage.clean_up()
        stage.start(standby={"size": 1})


def stage_nodes(stage: Scene, job: int) -> str:
    """The nodes on which Slurm shows the job, as Slurm writes them."""
    return stage.cluster.run(["squeue", "-h", "-j", str(job), "-o", "%N"]).stdout.strip()
