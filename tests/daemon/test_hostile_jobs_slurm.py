"""Jobs of an ordinary user that try to deafen the daemon, on a real Slurm: all is read, and a claim is answered."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from daemon_scene import Scene

from slurm_robust.core.model import JobRef
from slurm_robust.slurm import values

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.variant,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

UID = 1
"""Any account but root; newer Slurm takes no name of `nobody`."""
FORGED = "x Nodes=n[1-8000000] CPU_IDs=0 Mem=0 GRES=gpu:fake:2(IDX:0-1)"
HOSTILE: tuple[tuple[str | bytes, ...], ...] = (
    ("--begin=now+99999999weeks",),
    ("--begin=9999-01-01",),
    ("--begin=now+9999999999weeks",),
    ("--begin=now+999999999999999seconds",),
    ("--begin=now+9999999999999weeks", "--hold"),
    ("--deadline=now+99999999weeks", "--hold"),
    ("-t", "4294967294", "--hold"),
    ("-t", "99999999", "--hold"),
    ("-t", "-5", "--hold"),
    ("-J", FORGED, "--comment", FORGED, "--hold"),
    ("-J", "two\nJobId=1 JobName=y UserId=root(0) JobState=RUNNING", "--hold"),
    (
        "-J",
        "a\nb\tc|d=e \x01\x1b[31m \x85\u202e",
        "--comment",
        "k\nReservationName=x EndTime=soon\nNodeName=n1",
        "--hold",
    ),
    (b"-J\xff\xfe bad", b"--comment=\xff\xc3\x28", "--hold"),
    ("-J", "x" * 1000, "--comment", "é" * 500, "--hold"),
    ("-A", "acc ount\n=x", "--wckey=a b\nc", "--mail-user=a\nb", "--mcs-label=x\ny", "--network=a\nb", "--hold"),
    ("-D", "/tmp/a\nb c=d", "-o", "/tmp/a\nb %j", "-e", "c\td|e", "--export=X=a\nb", "--hold"),
    ("--array=0-3%2", "-J", FORGED, "--hold"),
    ("--array=1,5,7-100:3", "--hold"),
    ("-x", "n[1-4]", "--hold"),
    ("-N", "2-9999999", "--nice=999999999", "--hold"),
    ("-n", "4294967", "--hold"),
    ("--switches=1@9999999-00", "--delay-boot=99999999999", "--signal=9@65535", "--hold"),
    ("-n1", "--hold", ":", "-n1", "-J", FORGED),
)


def attack(scene: Scene) -> int:
    """Submit all of them as an ordinary user; how many Slurm took."""
    taken = 0
    for words in HOSTILE:
        argv = ["sbatch", "--parsable", *words]
        script = b"#!/bin/sh\nsleep 300\n"
        env = {**scene.cluster.env, "HOME": "/"}
        done = subprocess.run(
            argv, input=script, capture_output=True, env=env, cwd=scene.cluster.layout.work, timeout=30, check=False,
            user=UID, group=UID, extra_groups=[],
        )  # fmt: skip
        taken += done.returncode == 0
    return taken


@pytest.fixture
def hostile(scene: Scene) -> Iterator[Scene]:
    """The scene; afterwards without these jobs."""
    yield scene
    theirs = [str(job.ref.job_id) for job in scene.client.jobs() if job.uid == UID]
    scene.cluster.run(["scancel", *theirs], check=False)


def test_no_job_of_a_user_deafens_the_daemon(hostile: Scene) -> None:
    """Every reading shows every job, times are in the calendar, and another user's claim is answered in seconds."""
    scene = hostile
    mine = scene.submit("-N2", "--exclusive", "-J", FORGED)
    scene.watched(mine)
    taken = attack(scene)
    assert taken >= len(HOSTILE) - 4, "so many does Slurm refuse at most"
    client = scene.client
    jobs = client.jobs()
    listed = scene.cluster.run(["squeue", "-h", "--all", "-t", "all", "-o", "%A"]).stdout.split()
    assert sorted(str(job.ref.job_id) for job in jobs) == sorted(listed)
    assert len(jobs) > taken
    assert not any(client.unread.values())
    for job in jobs:
        assert all(0 <= at_s <= values.MAX_TIME_S for at_s in (job.start_at_s, job.end_at_s, job.eligible_at_s))
    assert any(job.start_at_s == values.MAX_TIME_S for job in jobs)
    assert any(job.name == FORGED for job in jobs if job.uid == UID)
    assert all(client.job(job.ref) for job in jobs if job.ref.array_job_id is None and not job.hetjob_id)
    assert (len(client.nodes()), client.reservations()) == (4, [])
    assert {name for names in client.node_listing().values() for name in names} == {"n1", "n2", "n3", "n4"}
    assert set(client.job_gpus(JobRef(mine))) == set(scene.job(mine).nodes)

    scene.start()
    evict = scene.job(mine).nodes[0]
    began_s = time.monotonic()
    scene.claim(mine, [evict])
    scene.await_incident(mine, 20)
    assert time.monotonic() - began_s < 20
    again = scene.running(mine, restart=1, timeout_s=60)
    assert evict not in again.nodes
    log = scene.log.read_text()
    assert "daemon.error" not in log
    assert "slurm.away" not in log
