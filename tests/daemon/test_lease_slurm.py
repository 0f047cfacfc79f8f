"""Two daemons on one real Slurm, each with a journal of its own, as on two hosts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_scene import Scene
from fault_library import compiled
from helpers import wait_until

from slurm_robust.daemon.lease import SURELY_S, VALID_S

pytestmark = pytest.mark.slurm


@pytest.fixture
def second(scene: Scene, tmp_path: Path) -> Iterator[Scene]:
    """Another host's daemon on the same cluster."""
    stage = Scene(scene.cluster, tmp_path / "second")
    yield stage
    stage.stop(signal.SIGKILL)


def lease(stage: Scene) -> dict[str, Any]:
    """What the daemon publishes of the lease."""
    try:
        found: dict[str, Any] = json.loads((stage.state_dir / "state.json").read_text())["lease"]
    except (OSError, ValueError, KeyError):
        return {}
    return found


def acts(stage: Scene, *, timeout_s: float = 10) -> None:
    """Wait until the daemon acts."""
    wait_until(lambda: lease(stage).get("standing_by") is False, timeout_s, f"it acts, see {stage.log}\n{stage.tail()}")


def stands_by(stage: Scene, *, timeout_s: float = 10) -> None:
    """Wait until the daemon stands by for another."""
    told = lambda: lease(stage).get("standing_by") and lease(stage)["host"]  # noqa: E731
    wait_until(told, timeout_s, f"it stands by, see {stage.log}\n{stage.tail()}")


def test_of_two_daemons_one_acts(scene: Scene, second: Scene) -> None:
    """The second says that it stands by and does nothing; the first's own restart goes on at once."""
    scene.start()
    acts(scene)
    second.start()
    stands_by(second)
    assert "lease.standing_by" in second.log.read_text()
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    scene.claim(job, [suspect])
    scene.await_incident(job, outcome="resumed")
    assert second.incident(job) is None
    assert "action." not in second.log.read_text()
    scene.stop(signal.SIGKILL)
    scene.start()
    acts(scene, timeout_s=5)
    assert lease(second)["standing_by"]


@pytest.mark.variant
@pytest.mark.timeout(120)
def test_the_second_acts_soon_after_the_first_was_killed(scene: Scene, second: Scene, tmp_path: Path) -> None:
    """Within 30 s, with another clock, it accepts a claim that was made meanwhile; the first then stands by."""
    scene.start()
    acts(scene)
    second.start(env={"LD_PRELOAD": str(compiled(tmp_path, "other_clock")), "SROBUST_TEST_CLOCK_S": "-119"})
    stands_by(second)
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    scene.stop(signal.SIGKILL)
    killed_at_s = time.monotonic()
    scene.claim(job, [suspect])
    acts(second, timeout_s=SURELY_S)
    took_s = time.monotonic() - killed_at_s
    assert took_s < SURELY_S
    second.await_incident(job, outcome="resumed")
    scene.start()
    stands_by(scene)
    print(f"taken over after {took_s:.1f} s")


@pytest.mark.variant
@pytest.mark.timeout(120)
def test_a_frozen_daemon_does_nothing_once_another_acts(scene: Scene, second: Scene) -> None:
    """It wakes up with a claim before it, and finds out before its next action."""
    scene.start()
    acts(scene)
    second.start()
    stands_by(second)
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    assert scene.process is not None
    os.kill(scene.process.pid, signal.SIGSTOP)
    before = scene.log.read_text().count("action.")
    scene.claim(job, [suspect])
    acts(second, timeout_s=SURELY_S)
    assert VALID_S < SURELY_S
    os.kill(scene.process.pid, signal.SIGCONT)
    stands_by(scene)
    second.await_incident(job, outcome="resumed")
    assert scene.log.read_text().count("action.") == before
    assert "lease.lost" in scene.log.read_text()
