"""An array that its user submits into the open seat of a job, on a real Slurm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.marks.claim import Claim

pytestmark = [pytest.mark.slurm, pytest.mark.variant]  # half a minute
RESERVED = {"n2": "the suspect in quarantine", "n5": "a standby node", "n6": "in the site's own reservation"}


@pytest.fixture
def scene(devcluster_factory: Callable[[Spec], DevCluster], tmp_path: Path) -> Iterator[Scene]:
    """Six nodes: a job on two of them, two on standby, and one that the site has reserved for root."""
    cluster = devcluster_factory(Spec(nodes=6, gpus_per_node=0, prolog=False, kill_wait_s=2, slurmd_timeout_s=6))
    stage = Scene(cluster, tmp_path / "state")
    yield stage
    cluster.run(["scontrol", "delete", "ReservationName=site"], check=False)
    stage.clean_up()


@pytest.mark.parametrize("more", [("--array=0-9",), ("--begin=now+400hours", "--twice")])
def test_other_jobs_in_the_open_seat_take_no_reserved_node_and_do_not_keep_it(
    scene: Scene, more: tuple[str, ...]
) -> None:
    """From the second in which the user is let in, each task of an array may start; and a job that waits may stay.

    The second one names the seat twice, which Slurm shows as it was written.
    """
    reserve = ["ReservationName=site", "Nodes=n6", "Users=root", "StartTime=now", "Duration=60"]
    scene.cluster.run(["scontrol", "create", "reservation", *reserve])
    unchecked, check = scene.waiting_check()
    scene.start(standby={"size": 2}, quarantine={"recheck_command": check})
    job = scene.submit("-N2", "--exclusive", "--requeue", user="daemon", script="exec sleep 600")
    suspect = scene.running(job).nodes[1]
    wait_until(lambda: scene.log.read_text().count("standby.checked") >= 2, 20, "the standby nodes are checked")
    unchecked.touch()
    ended, entered = threading.Event(), list[str]()

    def attack() -> None:
        seat = f"srobust-seat-{job}"
        into = ["--exclusive", "--output=/dev/null", "--wrap=sleep 600"]
        into += [f"--reservation={seat},{seat}", *more[:-1]] if "--twice" in more else [f"--reservation={seat}", *more]
        while not ended.is_set() and not entered:
            done = scene.cluster.run(["sbatch", "--parsable", *into], user="daemon", check=False)
            entered.extend(done.stdout.split())

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        scene.say(job, Claim("wants", "l", incident="i1", evict=(suspect,), why="hangs"), user="daemon")
        scene.running(job, restart=1)
        wait_until(lambda: not [name for name in scene.ours() if "seat" in name], 20, "the seat has gone")
    finally:
        ended.set()
        attacker.join()
    assert entered, "an array came into the open seat"
    taken = {n for one in scene.client.jobs() if one.ref.array_job_id and one.state == "RUNNING" for n in one.nodes}
    assert not taken & set(RESERVED), {name: RESERVED[name] for name in taken & set(RESERVED)}
    back = ("running", "resumed")
    wait_until(lambda: scene.await_incident(job)["outcome"] in back, 10, "the daemon says that the job is back")
