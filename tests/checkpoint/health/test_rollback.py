"""From a loss that went bad back to a checkpoint from before it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from slurm_robust import checkpoint
from slurm_robust.checkpoint import HealthLog, latest
from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.health import health_log, rollback
from slurm_robust.checkpoint.health.loss_health import HealthLimits

LIMITS = HealthLimits(window=8, settle_steps=10)


def train(directory: Path, steps: range, *, bad: tuple[int, ...] = (), save_every: int = 5) -> HealthLog:
    """Tell a loss at each step, and save now and then."""
    health = HealthLog(directory, LIMITS)
    for step in steps:
        health.observe(step, loss=math.nan if step in bad else 2.0)
        if step % save_every == 0:
            checkpoint.save(directory, step, {"step": step})
    health.write()
    return health


def test_back_to_the_last_healthy_one(tmp_path: Path) -> None:
    """NaN at 31: 25 and 30 may carry its cause, 20 had ten good steps; everybody starts from 20 from then on."""
    train(tmp_path, range(1, 34), bad=(31, 32, 33))
    found = rollback.due(tmp_path)
    assert found is not None
    assert found.to is not None
    assert (found.to.step, found.before, found.first_batch, found.last_batch) == (20, 0, 30, 33)
    assert latest(tmp_path).step == 30
    told = rollback.go_back(tmp_path, found)
    assert "loss nan at step 31" in told
    assert "back to step 20" in told
    chosen = latest(tmp_path)
    assert (chosen.step, len(chosen.passed_over)) == (20, 2)
    assert all("abandoned" in why for _, why in chosen.passed_over)
    assert rollback.due(tmp_path) is None, "nothing was told since"


def test_what_is_saved_since_counts(tmp_path: Path) -> None:
    """The next way is gone on with, below and beyond the steps that were given up; a second spell adds its batches."""
    train(tmp_path, range(1, 34), bad=(31, 32, 33))
    first = rollback.due(tmp_path)
    assert first is not None
    rollback.go_back(tmp_path, first)
    train(tmp_path, range(21, 28))
    assert latest(tmp_path).step == 25
    train(tmp_path, range(28, 52), bad=(51,))
    assert latest(tmp_path).step == 50
    second = rollback.due(tmp_path)
    assert second is not None
    assert second.to is not None
    # Steps 50 and 51 read four batches further than their own numbers.
    assert (second.to.step, second.before, second.first_batch, second.last_batch) == (40, 0, 54, 55)
    rollback.go_back(tmp_path, second)
    assert checkpoint.skipped_batches(tmp_path).ranges == ((30, 33), (54, 55))
    assert latest(tmp_path).step == 40


def test_it_is_counted(tmp_path: Path) -> None:
    """Bad again on the way from the same checkpoint: the second time."""
    for before in range(3):
        train(tmp_path, range(21 if before else 1, 35), bad=(34,))
        found = rollback.due(tmp_path)
        assert found is not None
        assert found.to is not None
        assert (found.to.step, found.before) == (20, before)
        rollback.go_back(tmp_path, found)


def test_a_good_loss_and_no_record_are_no_reason(tmp_path: Path) -> None:
    """Nothing is bad; nobody told; the spell is over."""
    assert rollback.due(tmp_path) is None
    train(tmp_path, range(1, 34))
    assert rollback.due(tmp_path) is None
    train(tmp_path, range(34, 38), bad=(35, 36))
    assert rollback.due(tmp_path) is None


def test_the_programs_last_words_count(tmp_path: Path) -> None:
    """It ended itself before it told that loss."""
    train(tmp_path, range(1, 34))
    found = rollback.due(tmp_path, line="FloatingPointError: loss is nan", step=33)
    assert found is not None
    assert found.to is not None
    assert (found.why, found.to.step, found.last_batch) == ("FloatingPointError: loss is nan", 20, 34)


def test_unknown_is_better_than_none(tmp_path: Path) -> None:
    """A checkpoint of before anybody told of the loss is taken, a spell's own is not; with neither, nothing is done."""
    for step in (5, 40):
        checkpoint.save(tmp_path, step, {"step": step})
    train(tmp_path, range(31, 42), bad=(41,), save_every=40)
    found = rollback.due(tmp_path)
    assert found is not None
    assert found.to is not None
    assert found.to.step == 5
    checkpoint.demote(tmp_path / "step-00000005", "by hand")
    found = rollback.due(tmp_path)
    assert found is not None
    assert found.to is None
    with pytest.raises(checkpoint.CheckpointError, match="no good checkpoint from before"):
        rollback.go_back(tmp_path, found)


def test_weights_that_are_nan_are_never_chosen_beside_older_ones(tmp_path: Path) -> None:
    """NaN soon after 20, and saved at 25 and 30: none is healthy, but only the spell's own are certainly bad."""
    train(tmp_path, range(16, 32), bad=tuple(range(23, 32)))
    found = rollback.due(tmp_path)
    assert found is not None
    assert found.to is not None
    assert found.to.step == 20
    rollback.go_back(tmp_path, found)
    assert latest(tmp_path).step == 20


def test_a_spike_says_nothing_of_what_was_saved_just_before(tmp_path: Path) -> None:
    """Its cause may be in there, and the weights of the spell itself may recover: nothing is chosen."""
    health = train(tmp_path, range(16, 23))
    health.observe(23, loss=50.0)
    health.write()
    found = rollback.due(tmp_path)
    assert found is not None
    assert found.to is None


def test_the_newest_healthy_one_is_not_removed(tmp_path: Path) -> None:
    """`prune` keeps it, and the next, beside the newest, which may carry a spike that nobody sees yet."""
    train(tmp_path, range(1, 51), save_every=2)
    pruned = checkpoint.prune(tmp_path, 3)
    assert steps(tmp_path) == [40, 42, 46, 48, 50]
    assert ["healthy" in why for _, why in pruned.left] == [True, True]


def test_pruning_at_each_save_leaves_something_to_go_back_to(tmp_path: Path) -> None:
    """The newest two are always younger than it takes to be healthy; still something follows what was healthy."""
    health = HealthLog(tmp_path, LIMITS)
    for step in range(1, 61):
        health.observe(step, loss=2.0)
        checkpoint.save(tmp_path, step, {"step": step})
        health.write()
        checkpoint.prune(tmp_path, 2)
        healthy = [n for n in steps(tmp_path) if n + LIMITS.settle_steps <= step]
        if step > 12:
            assert healthy, step
            assert healthy[-1] + 2 * LIMITS.settle_steps + 2 >= step
        assert len(steps(tmp_path)) <= 4


def steps(directory: Path) -> list[int]:
    """Of all checkpoints there."""
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


def test_an_older_record_without_times_is_read(tmp_path: Path) -> None:
    """Written before anybody noted when a step was told."""
    train(tmp_path, range(1, 34), bad=(33,))
    where = tmp_path / health_log.HEALTH_NAME
    record, _ = health_log.read(tmp_path)
    assert record is not None
    assert abs(record.trend.told_at_s - time.time()) < 60
    where.write_text(where.read_text().replace(f'"told_at_s":{record.trend.told_at_s}', '"x":1'))
    assert rollback.due(tmp_path) is not None
    rollback_log.add(tmp_path, rollback_log.Rollback(at_s=1.0, to_step=1, why="x", first_batch=1, last_batch=1))
    assert rollback.due(tmp_path) is None
