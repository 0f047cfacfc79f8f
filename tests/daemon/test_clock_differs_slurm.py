"""A daemon on a host whose clock differs from slurmctld's, on a real Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from daemon_scene import Scene
from fault_library import compiled
from helpers import wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("ahead_s", [8, pytest.param(-119, marks=pytest.mark.variant)])
def test_a_job_comes_back_all_the_same(scene: Scene, tmp_path: Path, ahead_s: int) -> None:
    """The seat is there at once, and no start is put off again and again; the difference is said, with what to type.

    Slurm's commands tell no start before `now` of their own host: where that is ahead, the job starts so much later.
    """
    clock = {"LD_PRELOAD": str(compiled(tmp_path, "other_clock")), "SROBUST_TEST_CLOCK_S": str(ahead_s)}
    scene.start(env=clock)
    path = scene.state_dir / "state.json"
    wait_until(
        lambda: path.exists() and json.loads(path.read_text()).get("clock_ahead_s"), 20, f"measured\n{scene.tail()}"
    )
    told = json.loads(path.read_text())
    assert told["clock_ahead_s"] == pytest.approx(ahead_s, abs=2)
    assert any("the clock of this host" in t and t.endswith(": timedatectl") for t in told["troubles"])
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    began_s = time.monotonic()
    scene.claim(job, [suspect])
    assert suspect not in scene.running(job, restart=1, timeout_s=30 + max(0, ahead_s)).nodes
    incident = scene.await_incident(job, outcome="resumed")
    assert time.monotonic() - began_s < 20 + max(0, ahead_s)
    assert abs(incident["opened_at_s"] - time.time()) < 40 + max(0, ahead_s)
