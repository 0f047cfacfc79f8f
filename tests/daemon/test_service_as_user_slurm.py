"""`srobust daemon --user`: an ordinary user's own daemon, outside of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.marks.claim import Claim

pytestmark = pytest.mark.slurm

PROGRAM = """
import asyncio, sys
from pathlib import Path
from slurm_robust.config import site as config
from slurm_robust.daemon.start import run
from slurm_robust.core.model import Mode

def settings():
    return config.load(sys.argv[1]), Mode.ACT

asyncio.run(run(settings, account="nobody", state_dir=Path(sys.argv[2]), as_user=True))
"""


@pytest.fixture
def slurm_as_nobody(scene: Scene, tmp_path: Path) -> Path:
    """Slurm's commands as an ordinary user: this test's own Python may not be executable for anybody else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("scontrol", "squeue", "scancel", "sbatch"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec setpriv --reuid=nobody --regid=nogroup --clear-groups {name} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_owners_requeue(scene: Scene, slurm_as_nobody: Path) -> None:
    """With the owner's rights only: requeued, without the suspect, at once; others' jobs are not its business."""
    path = scene.configure(slurm={"bin_dir": str(slurm_as_nobody)})
    job = scene.submit("-N2", "--exclusive", user="nobody", script="sleep 600")
    other = scene.submit("-N1", "--exclusive")
    suspect = scene.running(job).nodes[0]
    scene.watched(other)
    with scene.log.open("wb") as out:
        argv = [sys.executable, "-c", PROGRAM, str(path), str(scene.state_dir)]
        scene.process = subprocess.Popen(argv, env=scene.cluster.env, stdout=out, stderr=out)
    wait_until((scene.state_dir / "journal.sqlite").exists, 20, "the journal")
    scene.claim(other, list(scene.job(other).nodes))
    scene.say(job, Claim("wants", "l", incident="mine", evict=(suspect,), why="hangs"), user="nobody")
    after = scene.running(job, restart=1)
    assert suspect not in after.nodes
    assert scene.job(other).restart_count == 0
    assert not scene.client.reservations()
    assert not [n for n in scene.client.nodes() if n.drained]
    incident = scene.await_incident(job, kind="owner", outcome="running")
    assert [a.kind for a in incident["actions"]] == ["requeue", "point_job_at_seat", "wait_running"]
    scene.stop(signal.SIGTERM)
