"""A full state folder: the daemon lives, does nothing that it cannot write down, and says why."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import mounted_tmpfs, wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.begin_early,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk"),
]


@pytest.fixture
def small_disk(scene: Scene) -> Iterator[Path]:
    """The state folder on a disk of its own, of one MiB."""
    with mounted_tmpfs(scene.state_dir, "1m") as disk:
        yield disk
        scene.stop()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill(folder: Path) -> Path:
    """Take every byte that is left."""
    path = folder / "somebody-elses"
    with path.open("wb", buffering=0) as f:
        try:
            while f.write(b"x" * 4096):
                pass
        except OSError:
            return path
    raise AssertionError("the disk has no end")


def status(scene: Scene, http: dict[str, object] | None = None) -> str:
    """All that `srobust status` says, in one line."""
    path = scene.configure(daemon={"state_dir": str(scene.state_dir), **({"http": http} if http else {})})
    done = scene.cluster.run(["srobust", "status", "--config", str(path)], check=False)
    return " ".join((done.stderr + done.stdout).split())


@pytest.mark.variant
def test_status_says_that_the_disk_is_full_and_not_that_the_daemon_is_gone(scene: Scene, small_disk: Path) -> None:
    """What is wrong, where, and what to type; when there is room again, nothing needs a person any more."""
    scene.start()
    wait_until(lambda: "breaker closed" in status(scene), 60, "a snapshot", poll_s=0.5)
    filler = fill(small_disk)
    said = wait_until(lambda: s if "old" in (s := status(scene)) else "", 90, "the snapshot grows old", poll_s=3)
    assert "full" in said
    assert f"df -h {small_disk}" in said
    assert "does not run" not in said
    assert "Needs a person now" in said
    assert scene.process is not None
    assert scene.process.poll() is None, scene.tail()
    filler.unlink()
    wait_until(lambda: "Nothing needs a person now." in status(scene), 60, "a fresh snapshot", poll_s=1)


@pytest.mark.variant
def test_over_http_the_daemon_itself_says_what_is_wrong(scene: Scene, small_disk: Path) -> None:
    """Its HTTP side is fed on, so that other machines learn it too, with a fresh picture of the cluster."""
    http = {"enabled": True, "port": free_port()}
    scene.start(daemon={"http": http})
    wait_until(lambda: "breaker closed" in status(scene, http), 60, "a snapshot", poll_s=0.5)
    fill(small_disk)

    def shown() -> str:
        words = status(scene, http)
        return words if "cannot be written" in words else ""

    said = wait_until(shown, 90, "the daemon's own words", poll_s=3)
    assert said.startswith("Needs a person now: ")
    assert f"df -h {small_disk}" in said
    assert "idle" in said, "and what it sees of the cluster stands there as usual"


def test_a_slurm_that_is_away_is_not_told_as_a_dead_daemon(scene: Scene) -> None:
    """The snapshot stays fresh while the daemon cannot ask Slurm, and says so."""
    scene.start()
    wait_until(lambda: "breaker closed" in status(scene), 60, "a snapshot", poll_s=0.5)
    scene.cluster.kill_slurmctld()
    try:
        wanted = ("Needs a person", "warning")
        said = wait_until(lambda: s if any(w in (s := status(scene)) for w in wanted) else "", 90, "words", poll_s=3)
        assert "cannot ask Slurm" in said
        assert "does not run" not in said
    finally:
        scene.cluster.start_slurmctld()
    wait_until(lambda: "Nothing needs a person now." in status(scene), 90, "Slurm is back", poll_s=1)
