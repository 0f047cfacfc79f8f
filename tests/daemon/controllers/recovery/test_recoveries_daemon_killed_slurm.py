"""kill -9 at the worst moments: of the daemon between any two actions, of slurmctld in the middle of a recovery."""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext

import pytest
from daemon_scene import Scene
from dead_for_good import POINTS
from helpers import wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("last", POINTS)
def test_daemon_killed_after_each_action(scene: Scene, last: str) -> None:
    """Dead: the job runs or is on its way back, unheld, and every reservation of ours is a short one.

    But the seat that its user was let into may not end under the job: it ends soon after its last job has left it.

    (What becomes of that without any daemon is lived through in `dead_for_good.py`.)

    Started again: the job runs on other nodes, the node is checked, and nothing of ours is left.
    """
    daemon = scene.start(crash_after=last)
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[1]
    with scene.nothing_starts() if last == "point_job_at_seat" else nullcontext():
        scene.claim(job, [suspect])
        assert daemon.wait(30) == -signal.SIGKILL, scene.tail()

    left = scene.job(job)
    assert left.priority > 0
    assert left.state in ("RUNNING", "PENDING", "COMPLETING")
    if left.state == "PENDING":
        assert left.reason in ("", "BeginTime", "Resources", "Priority", "PartitionDown")
        assert left.start_at_s <= time.time() + 130
    longest_s = 10 * 60  # seat.duration_min
    short = {r.name for r in scene.ours().values() if r.end_at_s <= time.time() + longest_s + 5}
    until_left = {r.name for r in scene.ours().values() if any("PURGE_COMP" in flag for flag in r.flags)}
    assert until_left <= {f"srobust-seat-{job}"}
    assert short | until_left == set(scene.ours())

    scene.start()
    after = scene.running(job, restart=1)
    assert suspect not in after.nodes
    scene.await_incident(job, outcome="resumed")
    wait_until(lambda: not scene.ours(), 20, "nothing of ours is left")
    assert not scene.node(suspect).drained
    assert scene.job(job).reservation == ""
    assert scene.job(job).restart_count == 1


def test_slurmctld_killed_in_the_middle(scene: Scene) -> None:
    """Slurmctld loses what it had agreed to: the daemon sees that, does it again, and the job runs on other nodes."""
    scene.start()
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[1]
    # What was before must be in its state files, or it would be Slurm that lost the job.
    saved = scene.cluster.layout.state / "slurmctld" / "job_state"
    since_s = time.time()
    scene.cluster.run(["scontrol", "update", f"JobId={job}", "AdminComment=to be saved"])
    wait_until(lambda: saved.exists() and saved.stat().st_mtime > since_s, 20, "slurmctld saved its jobs")
    scene.claim(job, [suspect])
    wait_until(lambda: "action.requeue" in scene.log.read_text(), 20, "the requeue", poll_s=0.002)
    scene.cluster.kill_slurmctld()
    wait_until(lambda: "slurm.away" in scene.log.read_text() or "waits" in scene.log.read_text(), 30, "noticed")
    scene.cluster.start_slurmctld()
    wait_until(
        lambda: (j := scene.job(job)).state == "RUNNING" and j.restart_count >= 1 and suspect not in j.nodes,
        60,
        f"job {job} runs again, see {scene.log}",
    )
    wait_until(lambda: not scene.ours(), 30, "nothing of ours is left")
    assert scene.job(job).reservation == ""
