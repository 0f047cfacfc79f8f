"""What an attempt's log lines say of its step and of its silence."""

from __future__ import annotations

from pathlib import Path

from supervised import FakeClock
from torchrun_attempt import attempt_of, prints

from slurm_robust.config import SuperviseConfig
from slurm_robust.supervise.watch.suspicion import SilenceLevel


def test_bars_before_the_training_are_life_but_no_step(tmp_path: Path, clock: FakeClock) -> None:
    """A hang right after them is found as in any start: by captures, not by how fast files were loaded."""
    attempt, config = attempt_of(tmp_path / "out", clock), SuperviseConfig()
    for number in range(20):
        clock.at_s += 0.1
        prints(attempt, f"Loading checkpoint shards: {5 * number}%|# | {number}/20 [00:01<00:02,  1.2it/s]")
    assert attempt.reports
    assert attempt.last_sign_s == clock.now_s()
    assert (attempt.step, attempt.first_steps) == (-1, None)
    assert attempt.own_limit_s(config) is None, "captures of a silence that no step time measures go on"
    clock.at_s += 60.0
    assert attempt.assess(config).level is SilenceLevel.QUIET


def test_a_hang_is_suspected_by_the_times_of_steps_alone(tmp_path: Path, clock: FakeClock) -> None:
    """The slow loading of files before it does not raise the limit."""
    attempt, config = attempt_of(tmp_path / "out", clock), SuperviseConfig()
    for number in range(20):
        clock.at_s += 50.0
        prints(attempt, f"Loading checkpoint shards: {5 * number}%|# | {number}/20 [00:01<00:02,  1.2it/s]")
    for step in range(1, 20):
        clock.at_s += 1.0
        prints(attempt, f"minibatch step {step} loss 2.3")
    limit_s = attempt.own_limit_s(config)
    assert limit_s is not None
    assert limit_s < 10.0
    clock.at_s += 10.0
    assert attempt.assess(config).level is SilenceLevel.SUSPECT


def test_a_learned_counter_is_watched_but_not_compared_with_checkpoints(tmp_path: Path, clock: FakeClock) -> None:
    """Nobody knows what it counts, so it cannot show that the program started over."""
    attempt, config = attempt_of(tmp_path / "out", clock), SuperviseConfig()
    for number in range(30):
        clock.at_s += 1.0
        prints(attempt, f"minibatch {number} loss {9 / (number + 1):.4f}")
    assert attempt.step == 29
    assert attempt.first_steps is None
    clock.at_s += 30.0
    assert attempt.assess(config).level is SilenceLevel.SUSPECT
