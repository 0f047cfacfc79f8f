"""A fault that can wait, in a job without any verified checkpoint: leaving the node would lose all progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_training import Training

from slurm_robust.supervise.launch.attempt_settings import ResumePoint
from slurm_robust.supervise.watch import newest_checkpoint

WAIT_S = 20.0


def empty(job: Training) -> None:
    """The folder is there."""
    Path(job.world.session.checkpoint_dir).mkdir()


def foreign(job: Training) -> None:
    """The program writes its own files."""
    empty(job)
    (Path(job.world.session.checkpoint_dir) / "step_10.pt").write_bytes(b"x")


def missing(_: Training) -> None:
    """The folder has another name."""


@pytest.mark.parametrize("prepare", [empty, foreign, missing])
def test_a_job_without_a_verified_checkpoint_stays_beyond_the_limit(
    tmp_path: Path, prepare: Callable[[Training], None]
) -> None:
    """And that is told once."""
    script = {20: lambda: job.finds("n2", "at_next_checkpoint")}
    job = Training(tmp_path, script, last_step=120, supervise={"fault_wait_s": WAIT_S})
    prepare(job)
    assert job.ends() == 0
    assert job.excluded == []
    assert job.computed == list(range(1, 121))
    (told,) = [line for line in job.world.story if line["kind"] == "note" and "stays in use" in line["text"]]
    assert "no verified checkpoint" in told["text"]
    assert "n2" in told["text"]


def test_its_first_verified_checkpoint_ends_the_wait(tmp_path: Path) -> None:
    """Long after the limit."""
    script = {20: lambda: job.finds("n2", "at_next_checkpoint"), 90: lambda: job.saves(90)}
    job = Training(tmp_path, script, last_step=120, supervise={"fault_wait_s": WAIT_S})
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert job.computed == list(range(1, 121))


def test_a_storage_that_hangs_keeps_the_job_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a checkpoint is there is not known; once it is, the limit is long over."""
    gate, look_up = threading.Event(), newest_checkpoint.look_up

    def hangs(directory: str) -> ResumePoint:
        gate.wait(30)
        return look_up(directory)

    monkeypatch.setattr(newest_checkpoint, "look_up", hangs)
    monkeypatch.setattr(newest_checkpoint, "_LOOK_S", 0.01)
    script = {20: lambda: job.finds("n2", "at_next_checkpoint"), 60: gate.set}
    job = Training(tmp_path, script, last_step=120, supervise={"fault_wait_s": WAIT_S})
    job.saves(10)
    assert job.ends() == 0
    assert job.excluded == ["n2"]
    assert 60 <= max(job.computed[: job.computed.index(11, 1)]) < 120
