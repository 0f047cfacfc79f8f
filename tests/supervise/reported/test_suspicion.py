"""When silence is suspected, and when it is overdue."""

from __future__ import annotations

import time

import msgspec
import pytest

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.supervise.reported.suspicion import LogLines, RankProgress, SilenceLevel, StepTimes, assess

CONFIG = SuperviseConfig()


def steps_of(duration_s: float, count: int = 50) -> StepTimes:
    """An attempt that has made `count` steps of this length."""
    steps = StepTimes()
    for i in range(count + 1):
        steps.saw(0, i, 1000.0 + i * duration_s)
    return steps


def test_suspected_within_three_p99_and_two_seconds() -> None:
    """The target of the design: not before, and not after."""
    steps = steps_of(0.5)
    rank = RankProgress(0, 50, "train", 2000.0)
    assert assess([rank], steps, 2003.4, CONFIG).level is SilenceLevel.QUIET
    found = assess([rank], steps, 2003.6, CONFIG)
    assert found.level is SilenceLevel.SUSPECT
    assert found.ranks == (0,)
    assert "3.5" in found.why


def test_overdue_past_the_action_limit() -> None:
    """Then it is acted on, whatever the stacks say."""
    rank = RankProgress(0, 50, "train", 2000.0)
    assert assess([rank], steps_of(0.5), 2000 + CONFIG.action_limit_s + 1, CONFIG).level is SilenceLevel.OVERDUE


def test_a_young_attempt_has_no_own_p99() -> None:
    """Fewer than `min_steps` steps: only the action limit counts."""
    rank = RankProgress(0, 2, "train", 2000.0)
    assert assess([rank], steps_of(0.1, 2), 2100.0, CONFIG).level is SilenceLevel.QUIET


def test_start_up_has_its_own_limit() -> None:
    """Compiling, loading and waiting for peers take their time."""
    rank = RankProgress(0, -1, "startup", 2000.0)
    assert assess([rank], StepTimes(), 2000 + CONFIG.startup_limit_s - 1, CONFIG).level is SilenceLevel.QUIET
    assert assess([rank], StepTimes(), 2000 + CONFIG.startup_limit_s + 1, CONFIG).level is SilenceLevel.OVERDUE


def test_an_announced_pause_covers_the_ranks_that_wait_for_it() -> None:
    """Rank 0 evaluates; the others stand in a barrier, in phase train."""
    ranks = [RankProgress(0, 50, "evaluate", 2000.0), RankProgress(1, 50, "train", 2000.0)]
    assert assess(ranks, steps_of(0.5), 2100.0, CONFIG).level is SilenceLevel.QUIET


def test_an_announced_limit_is_the_programs_word() -> None:
    """Beyond `phase(…, timeout_s=60)` something is wrong, long before the site's own limit."""
    ranks = [RankProgress(0, 50, "evaluate", 2000.0, 60.0), RankProgress(1, 50, "train", 2000.0)]
    assert assess(ranks, steps_of(0.5), 2059.0, CONFIG).level is SilenceLevel.QUIET
    assert assess(ranks, steps_of(0.5), 2061.0, CONFIG).level is SilenceLevel.OVERDUE


def test_a_rank_that_moves_speaks_for_the_job() -> None:
    """A rank that has nothing to do, and one whose part has no steps, are silent while the others train."""
    ranks = [RankProgress(0, 50, "train", 2019.9), RankProgress(1, 40, "train", 1000.0)]
    found = assess(ranks, steps_of(0.5), 2020.0, CONFIG)
    assert (found.level, found.ranks) == (SilenceLevel.QUIET, ())
    assert found.silent_s == pytest.approx(0.1)
    later = assess(ranks, steps_of(0.5), 2024.9, CONFIG)
    assert (later.level, later.ranks) == (SilenceLevel.SUSPECT, (0, 1))
    assert later.silent_s == pytest.approx(5.0), "since the last step of any rank"


def test_a_long_step_raises_the_limit_for_the_next() -> None:
    """What an attempt has done once is no surprise the second time."""
    steps = steps_of(0.5, 20)
    steps.saw(0, 21, 1010.0 + 30.0)
    rank = RankProgress(0, 21, "train", 2000.0)
    assert assess([rank], steps, 2060.0, CONFIG).level is SilenceLevel.QUIET


def test_a_resumed_counter_starts_over() -> None:
    """A step number that went back (a second run inside one process) is no negative step time."""
    steps = steps_of(0.5)
    steps.saw(0, 3, 3000.0)
    steps.saw(0, 4, 3000.5)
    assert steps.p99_s() <= 0.5


def test_nobody_reporting_is_quiet() -> None:
    """No rank, no suspicion."""
    assert assess([], StepTimes(), 5.0, CONFIG).level is SilenceLevel.QUIET


def test_a_checkpoint_of_sixteen_thousand_ranks_is_assessed_in_one_look() -> None:
    """Every rank announces the same pause; the work grows with their number, not with its square."""
    ranks = [RankProgress(r, 50, "checkpoint", 2000.0, 600.0) for r in range(16_384)]
    began_s = time.process_time()
    assert assess(ranks, steps_of(0.5), 2100.0, CONFIG).level is SilenceLevel.QUIET
    assert time.process_time() - began_s < 2.0, "with the square it was most of a minute"


def test_log_lines_are_judged_by_their_own_interval() -> None:
    """A line every 1,000 steps, 200 s apart, is no step of 0.2 s; lines hours apart are never overdue in between."""
    steps = StepTimes()
    for i in range(8):
        steps.saw(-1, 1000 * i, 200.0 * i)
    lines = LogLines(1400.0, steps)
    assert assess([], StepTimes(), 1400.0 + 500, CONFIG, lines).level is SilenceLevel.QUIET
    assert assess([], StepTimes(), 1400.0 + 700, CONFIG, lines).level is SilenceLevel.SUSPECT
    slow = StepTimes()
    for i in range(8):
        slow.saw(-1, i, 3000.0 * i)
    now_s = 21000.0 + CONFIG.action_limit_s + 60
    assert assess([], StepTimes(), now_s, CONFIG, LogLines(21000.0, slow)).level is SilenceLevel.QUIET


def test_a_first_line_does_not_end_the_patience_of_the_start() -> None:
    """`Preprocessing step 1: …`, then a long time of nothing: still within the start-up limit."""
    config = msgspec.structs.replace(CONFIG, startup_limit_s=2 * CONFIG.action_limit_s)
    steps = StepTimes()
    steps.saw(-1, 1, 10.0)
    now_s = 10.0 + config.action_limit_s + 60
    assert assess([], StepTimes(), now_s, config, LogLines(10.0, steps)).level is SilenceLevel.QUIET
