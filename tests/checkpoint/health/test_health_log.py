"""The record is there when it is needed, costs nothing, and never stands in a training's way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurm_robust.checkpoint.health import health_log
from slurm_robust.checkpoint.health.health_log import HEALTH_NAME, HealthLog, read
from slurm_robust.checkpoint.health.loss_health import HealthLimits
from slurm_robust.cli.commands.ckpt import command

Make = Callable[..., Path]
LIMITS = HealthLimits(window=20, settle_steps=10)


def latest_healthy(directory: Path) -> tuple[int, Any]:
    """Exit code and the object printed."""
    result = CliRunner().invoke(command, ["latest", str(directory), "--healthy", "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_back_to_before_the_spike(make: Make, directory: Path) -> None:
    """The newest healthy one is chosen, the others tell why not, and the data loader is told what to leave out."""
    log = HealthLog(directory, LIMITS)
    for step in range(1, 41):
        log.observe(step, loss=2.0 if step < 38 else math.nan, grad_norm=1.0)
        if step % 10 == 0:
            make(step)
    log.write()
    code, found = latest_healthy(directory)
    assert (code, found["step"]) == (0, 20)
    assert found["skip"] == {"first_step": 37, "last_step": 40}
    assert [one["why"].partition(":")[0] for one in found["passed_over"]] == ["unhealthy", "unhealthy"]
    text = CliRunner().invoke(command, ["latest", str(directory), "--healthy"])
    assert text.stdout == f"{directory / 'step-00000020'}\n"
    assert "skip the batches of steps 37 to 40" in text.stderr


def test_nobody_told_a_loss(make: Make, directory: Path) -> None:
    """Without a record none is known to be healthy: 1, and why; one that cannot be read is 1, too."""
    make(1)
    for content in (None, "{", '{"version": 7}'):
        if content is not None:
            (directory / HEALTH_NAME).write_text(content)
        result = CliRunner().invoke(command, ["latest", str(directory), "--healthy"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert HEALTH_NAME in result.stderr


def test_what_begins_badly_is_written_at_once(directory: Path) -> None:
    """The process may be dead a step later; while all goes well, it is written now and then."""
    log = HealthLog(directory, LIMITS, write_every_s=1e9)
    log.observe(1, loss=2.0)
    first = (directory / HEALTH_NAME).read_bytes()
    log.observe(2, loss=2.0)
    assert (directory / HEALTH_NAME).read_bytes() == first
    assert log.observe(3, loss=math.nan) == "loss nan at step 3"
    known, _ = read(directory)
    assert known is not None
    assert [spell.first_step for spell in known.trend.spells] == [3]


def test_a_restart_goes_on_from_the_record(directory: Path) -> None:
    """What was usual is still known."""
    log = HealthLog(directory, LIMITS)
    for step in range(1, 30):
        log.observe(step, loss=2.0)
    log.write()
    assert HealthLog(directory).observe(30, loss=30.0).startswith("loss 30 at step 30, 15.0 times")


class Tensor:
    """Whoever turns it into a number waits for the GPU."""

    def __float__(self) -> float:
        raise AssertionError("synchronised")


def test_tensors_are_not_touched(directory: Path) -> None:
    """They count as not told."""
    assert not HealthLog(directory).observe(1, loss=Tensor(), grad_norm=Tensor())  # type: ignore[arg-type]


def test_a_number_beyond_all_floats(directory: Path) -> None:
    """Bad, and no error in the training that tells it."""
    assert HealthLog(directory).observe(1, loss=10**400) == "loss inf at step 1"


def test_a_folder_that_cannot_be_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(health_log.files, "write_atomic", full)
    log = HealthLog(directory)
    assert log.observe(1, loss=math.nan)
    assert not log.write()
