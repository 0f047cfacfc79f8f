"""What an attempt's log lines say of its step and of its silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import FakeClock
from torchrun_attempt import attempt_of, finds, prints

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.reported.suspicion import SilenceLevel
from slurm_robust.supervise.watch.attempt_state import AttemptState


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


def reports(attempt: AttemptState, clock: FakeClock, step: int, phase: str = "train", rank: int = 0) -> None:
    """A rank reports a step."""
    attempt.fleet.feed(
        from_agent({"t": "p", "n": "n1", "r": [[rank, step, phase, 0.0, step + 1, None, None, None]]}), clock.now_s()
    )


@pytest.fixture
def reporting(tmp_path: Path, clock: FakeClock) -> AttemptState:
    """An attempt whose rank 0 has reported 20 steps of a second."""
    attempt = attempt_of(tmp_path / "out", clock)
    finds(attempt, 0)
    for step in range(20):
        clock.at_s += 1.0
        reports(attempt, clock, step)
    return attempt


def test_a_stage_that_only_prints_is_not_silent(reporting: AttemptState, clock: FakeClock) -> None:
    """The first stage called progress, the second has its own loop: its lines show that the job goes on."""
    config = SuperviseConfig()
    for step in range(1, 100):
        clock.at_s += 40.0
        prints(reporting, f"step {step} loss {9 / step:.4f}")
        assert reporting.assess(config).level is SilenceLevel.QUIET
        assert reporting.last_sign_s == clock.now_s()
    clock.at_s += 60.0
    assert reporting.assess(config).level is SilenceLevel.QUIET, "its lines take that long"
    clock.at_s += 100.0
    found = reporting.assess(config)
    assert found.level is SilenceLevel.SUSPECT
    assert (found.silent_s, found.limit_s) == (160.0, 122.0)
    assert found.why == "no progress for 160.0 s, limit 122.0 s (3 × p99 step 40.00 s + 2 s)"


def test_a_line_beside_each_step_leaves_the_limit_of_steps(reporting: AttemptState, clock: FakeClock) -> None:
    """Lines between the steps, and a stage of slow lines before, do not make a hang harder to see."""
    config = SuperviseConfig()
    for step in range(1, 20):
        clock.at_s += 40.0
        prints(reporting, f"preprocessing step {step} of 400")
    for step in range(20, 220):
        clock.at_s += 1.0
        reports(reporting, clock, step)
        if step % 10 == 5:
            prints(reporting, f"global step {step} loss {9 / step:.4f}")
    assert reporting.own_limit_s(config) == 5.0
    clock.at_s += 5.5
    found = reporting.assess(config)
    assert (found.level, found.silent_s, found.ranks) == (SilenceLevel.SUSPECT, 5.5, (0,))


def test_lines_that_tell_nothing_new_hide_no_hang(reporting: AttemptState, clock: FakeClock) -> None:
    """A thread that prints on while the training hangs: the same step, a bar that is drawn again, its own counter."""
    config, hung_s = SuperviseConfig(), clock.now_s()
    prints(reporting, "step 19 loss 0.5")
    for beat in range(1, 40):
        clock.at_s += 1.0
        prints(reporting, f"heartbeat {beat}: alive, step 19, uptime {beat} s")
        prints(reporting, "step 19 loss 0.5")
        prints(reporting, f"[monitor] sample {beat} power {beat % 7}.5 W")
    assert reporting.last_sign_s == hung_s
    assert reporting.assess(config).level is SilenceLevel.SUSPECT


def test_an_announced_pause_covers_lines_as_well(reporting: AttemptState, clock: FakeClock) -> None:
    """An evaluation that prints how far it is, and then computes a figure for minutes."""
    reports(reporting, clock, 19, "evaluate")
    for batch in range(1, 9):
        clock.at_s += 1.0
        prints(reporting, f"step {batch} loss 0.{batch}")
    clock.at_s += 600.0
    assert reporting.assess(SuperviseConfig()).level is SilenceLevel.QUIET
