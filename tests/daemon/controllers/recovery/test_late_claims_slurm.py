"""A daemon that starts after a job has requeued itself, on a real Slurm: it takes the claim up that nobody answered."""

from __future__ import annotations

import signal

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import parse

pytestmark = [pytest.mark.slurm, pytest.mark.begin_early]


def test_the_suspect_is_checked_and_the_job_does_not_wait_beside_an_idle_standby(scene: Scene) -> None:
    """Three of four nodes, one standby: without the claim the job would wait in Resources, with its exclusion."""
    scene.start(standby={"size": 1})
    wait_until(lambda: any(n.startswith("srobust-standby") for n in scene.ours()), 30, "the pool")
    job_id = scene.submit("--nodes=3", "--exclusive", "--requeue")
    suspect = scene.watched(job_id).nodes[0]
    wait_until(lambda: scene.journal().db.execute("SELECT count(*) FROM attempts").fetchone()[0], 20, "it is seen")
    scene.stop(signal.SIGKILL)
    scene.claim(job_id, [suspect], grade="strong")
    wait_until(lambda: (c := parse(scene.job(job_id).comment)) and c.state == "wants", 20, "it asks")
    scene.client.requeue(JobRef(job_id), without=[])
    wait_until(lambda: scene.job(job_id).state == "PENDING", 30, "it waits")
    scene.client.update_job(JobRef(job_id), exclude=suspect)
    scene.start(standby={"size": 1})
    job = scene.running(job_id, restart=1, timeout_s=30)
    assert suspect not in job.nodes
    incident = scene.await_incident(job_id, 30, outcome="resumed")
    assert incident["id"] == "i1"
    rechecked = [a for a in incident["actions"] if a.kind == "recheck" and a.target == suspect and a.calls]
    assert rechecked, incident["actions"]
    wait_until(lambda: not [n for n in scene.ours() if "quarantine" in n], 30, "it passed its check, and is back")
