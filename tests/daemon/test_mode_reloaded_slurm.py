"""SIGHUP has the running daemon read robust.yaml again, on a real Slurm; a broken file changes nothing and is told."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from daemon_scene import Scene
from helpers import wait_until

pytestmark = pytest.mark.slurm


def state(scene: Scene) -> dict[str, Any]:
    """What the daemon last published of itself: its first line."""
    path = scene.state_dir / "state.json"
    wait_until(path.exists, 20, scene.tail())
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_mode_reaches_the_daemon_in_both_directions(scene: Scene) -> None:
    """One process all along; the recovery that is under way is taken up; since when is kept over a plain restart."""
    process = scene.start(mode="observe")

    def reload(**sections: Any) -> None:
        scene.configure(**sections)
        process.send_signal(signal.SIGHUP)

    wait_until(lambda: state(scene)["mode"] == "observe", 20, scene.tail())
    began_s = state(scene)["mode_since_s"]
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    reload(mode="on")
    wait_until(lambda: "cannot be used, the settings of before hold" in "".join(state(scene)["troubles"]), 20, "")
    assert f"{scene.state_dir.name}.yaml:" in state(scene)["troubles"][0]
    assert (state(scene)["mode"], state(scene)["mode_since_s"]) == ("observe", began_s)
    reload(mode="act")
    wait_until(lambda: state(scene)["mode"] == "act" and not state(scene)["troubles"], 20, scene.tail())
    assert state(scene)["mode_since_s"] > began_s
    scene.claim(job, [suspect])
    scene.await_incident(job, state="open")
    reload(mode="act", quarantine={"recheck_timeout_s": 99})
    assert suspect not in scene.running(job, restart=1).nodes
    scene.await_incident(job, outcome="resumed")
    since_s = state(scene)["mode_since_s"]
    assert process.poll() is None
    scene.start(mode="act")
    wait_until(lambda: state(scene)["pid"] == scene.process.pid, 20, scene.tail())  # type: ignore[union-attr]
    assert state(scene)["mode_since_s"] == since_s
