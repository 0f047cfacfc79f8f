"""A seat is for one job, on a real Slurm: its user submits others into it as fast as sbatch can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks.claim import Claim
from slurm_robust.slurm.client import Reservation

pytestmark = [pytest.mark.slurm, pytest.mark.variant]  # twenty seconds; test_seat_of_one_job.py has the rules by itself


@pytest.fixture
def scene(devcluster_factory: Callable[[Spec], DevCluster], tmp_path: Path) -> Iterator[Scene]:
    """Three nodes: a job on two of them, and one that can replace a suspect."""
    cluster = devcluster_factory(Spec(nodes=3, gpus_per_node=0, prolog=False, kill_wait_s=2, slurmd_timeout_s=6))
    stage = Scene(cluster, tmp_path / "state")
    yield stage
    stage.clean_up()


def test_no_other_job_takes_the_standby_of_a_seat(scene: Scene) -> None:
    """Every sbatch before the start is refused; the job runs on its seat, and nothing of the seat is left."""
    scene.start(standby={"size": 0})
    job = scene.submit("-N2", "--exclusive", "--requeue", user="nobody", script="exec sleep 600")
    before = scene.running(job)
    suspect, spare = before.nodes[1], ({"n1", "n2", "n3"} - {*before.nodes}).pop()
    ended, entered = threading.Event(), list[str]()

    def attack() -> None:
        into = ["--exclusive", "--output=/dev/null", "--wrap=sleep 600", f"--reservation=srobust-seat-{job}"]
        while not ended.is_set() and not entered:
            done = scene.cluster.run(["sbatch", "--parsable", *into], user="nobody", check=False)
            entered.extend(done.stdout.split())

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        scene.say(job, Claim("wants", "l", incident="i1", evict=(suspect,), why="hangs"), user="nobody")
        after = scene.running(job, restart=1)
        assert set(after.nodes) == {before.nodes[0], spare}
        scene.await_incident(job, outcome="running")
    finally:
        ended.set()
        attacker.join()
    assert not [name for name in scene.ours() if "seat" in name]
    if entered:  # between the job's start and the end of its seat
        assert spare not in scene.job(entered[0]).nodes
        assert scene.job(entered[0]).reservation == ""


HET = "sbatch --parsable --exclusive --begin=now+400hours --reservation={0} : --exclusive --reservation={0} --wrap=x"


@pytest.mark.parametrize("by", ["a het job", "jobs that come again"])
def test_its_user_cannot_keep_a_seat(scene: Scene, by: str) -> None:
    """Slurm deletes no reservation that a job stands in: it is closed before they are taken out, and ends soon.

    Of a het job, no part can be taken out; other jobs' user puts them in again, faster than the daemon takes them out.
    """
    scene.start(standby={"size": 0})
    run = partial(scene.cluster.run, user="daemon", check=False)
    job = scene.submit("-N2", "--exclusive", "--requeue", user="daemon", script="exec sleep 600")
    suspect, seat, ended = scene.running(job).nodes[1], f"srobust-seat-{job}", threading.Event()
    late = ["sbatch", "--parsable", "--exclusive", "--begin=now+400hours", "--wrap=x"]
    several = [run(late).stdout.strip() for _ in range(8)] if "again" in by else []
    again = "".join(f"update JobId={one} ReservationName={seat}\n" for one in several) * 5

    def attack() -> None:
        while not ended.is_set():
            if again:
                run(["scontrol"], input=again)
            elif run(HET.format(seat).split()).returncode == 0:
                return

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        scene.say(job, Claim("wants", "l", incident="i1", evict=(suspect,), why="hangs"), user="daemon")
        scene.running(job, restart=1)
        gone = Reservation(seat)
        wait_until(lambda: scene.ours().get(seat, gone).end_at_s < time.time() + 61, 10, "the seat ends soon")
        wait_until(lambda: seat not in scene.ours(), 110, "the seat has gone")
        scene.await_incident(job, outcome="running")
    finally:
        ended.set()
        attacker.join()
