"""Numbers in log lines: which of them are news, and which is the step of the training."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.watch.log_steps import Counters


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (" iteration    42780/  115311 | consumed samples: 87613440 | elapsed time per iteration (ms): 9", 42780),
        ("Epoch 3:  17%|█▋        | 120/703 [00:31<02:33,  3.79it/s, v_num=1]", 120),
        ("{'loss': 2.31, 'global_step': 500, 'epoch': 0.4}", 500),
        ("[2026-01-01 00:00:00] [Rank 0] step=1000, skipped=0, lr=[0.0003]", 1000),
        ("[titan] 2026-01-01 - root - INFO - step: 90  loss:  3.1  memory: 40GiB", 90),
        ("step 30/200 loss=2.31", 30),
        ("Training epoch 0, iteration 12/99", 12),
        ("loading step files from disk", None),
        ("footstep 12", None),
        ("iter 500: loss 2.31, time per step: 1.93 s", 500),
        ("loss 2.31, sec/step: 2.46", None),
        ("loss 2.31, per step: 150 ms", None),
        ("", None),
    ],
)
def test_progress_lines_of_the_usual_programs(line: str, step: int | None) -> None:
    """Megatron, Lightning, Hugging Face, DeepSpeed, torchtitan, own loops."""
    assert Counters().progress(line) == step


def test_a_sites_own_pattern_replaces_ours() -> None:
    """With `log_pattern`, nothing else counts."""
    own = re.compile(r"tick (?P<step>\d+)")
    assert Counters().progress("tick 5", own) == 5
    assert Counters().progress("step 9", own) is None


def read(*lines: str, own: re.Pattern[str] | None = None) -> list[int | None]:
    """What is news in these lines."""
    counters = Counters()
    return [counters.progress(line, own) for line in lines]


@pytest.mark.parametrize(
    ("lines", "news"),
    [
        (["step 12", "step 12", "step 13"], [12, None, 13]),
        # An old number in a warning, and a stray high one after which training goes on.
        (["step 12", "at step 5", "at step 5", "step 13"], [12, None, None, 13]),
        (["step 12", "next evaluation at step 1000", "step 13", "step 14"], [12, 1000, None, 14]),
        # Ranks that print in turn, one behind the other; then all hang, and say again and again where.
        (["step 5", "step 4", "step 6", "step 5", "step 6", "step 5", "step 6"], [5, None, 6, *[None] * 4]),
        (["step 1", "step 7", "step 8", "step 9", "step 7", "step 8", "step 9"], [1, 7, 8, 9, *[None] * 3]),
        # Bars of the next epoch, and of very short epochs.
        (["| 390/391 [", "| 391/391 [", "| 0/391 [", "| 1/391 [", "| 2/391 ["], [390, 391, None, 1, 2]),
        (["| 0/2 [", "| 1/2 [", "| 2/2 [", "| 0/2 [", "| 1/2 [", "| 2/2 ["], [0, 1, 2, None, 1, 2]),
        (["step 0", "step 100", "step 0", "step 100"], [0, 100, None, 100]),
        # The epoch makes a number another one, in the same line or before it.
        (["Epoch 1: | 3/3 [", "Epoch 2: | 3/3 [", "Epoch 2: | 3/3 [", "Epoch 1: | 3/3 ["], [3, 3, None, None]),
        (["Epoch 1/9", "step 50", "Epoch 2/9", "step 50"], [None, 50, None, 50]),
        # A validation between two steps is another counter.
        (["| 120/703 [", "| 1/50 [", "| 2/50 [", "| 121/703 ["], [120, 1, 2, 121]),
        # A counter that goes down.
        (["step 9", "step 8", "step 8", "step 7", "step 6"], [9, None, None, 7, 6]),
    ],
)
def test_a_number_that_is_only_said_again_is_no_news(lines: list[str], news: list[int | None]) -> None:
    """Nor one that jumps back; but whatever goes on, from wherever it started again, is."""
    assert read(*lines) == news


def test_a_bar_that_is_drawn_again_with_other_times_stands_still() -> None:
    """Bars show how long they have lasted."""
    assert read("| 12/391 [00:10<05:00]", "| 12/391 [00:20<10:00]", "| 12/391 [00:30<15:00]") == [12, None, None]


def test_a_sites_pattern_that_finds_no_number_says_nothing() -> None:
    """`step` may be missing from it, optional, or hold words."""
    for pattern in (r"tick \d+", r"tick(?P<step>\d+)?", r"tick (?P<step>\S+)"):
        assert read("tick five", "tick", own=re.compile(pattern)) == [None, None]


NUMBERS = st.integers(0, 10_000)


@given(st.lists(NUMBERS, max_size=30), st.sets(NUMBERS, min_size=1, max_size=3), st.data())
def test_a_job_that_hangs_falls_silent_whatever_it_repeats(
    past: list[int], stuck: set[int], data: st.DataObject
) -> None:
    """After any past: ranks that hang at up to three steps beyond it, and say so in any order, soon say nothing new."""
    reached = max(past, default=0) + 1
    at = [reached + number for number in stuck]
    counters = Counters()
    for number in past:
        counters.progress(f"step {number}")
    counters.progress(f"step {reached - 1}")
    for number in at:
        counters.progress(f"step {number}")
    again = data.draw(st.lists(st.sampled_from(at), max_size=50))
    assert [counters.progress(f"step {number}") for number in again] == [None] * len(again)


@given(st.lists(NUMBERS, max_size=30), st.integers(0, 1000), st.integers(1, 500), st.integers(1, 20))
def test_a_counter_that_rises_is_life_whatever_was_printed_before(
    past: list[int], first: int, stride: int, count: int
) -> None:
    """At most its first number is no news: whatever stood in the output before, a training that goes on is seen."""
    counters = Counters()
    for number in past:
        counters.progress(f"step {number}")
    rising = [first + i * stride for i in range(count + 5)]
    news = [counters.progress(f"step {number}") for number in rising]
    assert news[4:] == rising[4:]


@given(st.integers(2, 50), st.integers(2, 5), st.booleans())
def test_every_epoch_is_life(length: int, epochs: int, total: bool) -> None:
    """A counter that starts again with each epoch, with nothing in its lines to tell which one it is."""
    counters = Counters()
    for _ in range(epochs):
        lines = [f"| {i}/{length} [" if total else f"step {i} loss" for i in range(length)]
        assert sum(counters.progress(line) is not None for line in lines) >= length - 1


def told(*lines: str) -> Counters:
    """After these lines."""
    counters = Counters()
    for line in lines:
        counters.progress(line)
    return counters


def bar(total: int, *numbers: int, front: str = "") -> list[str]:
    """A progress bar that is drawn again and again."""
    return [f"{front}{n * 100 // total}%|#  | {n}/{total} [00:01<00:02]" for n in numbers]


def test_bars_of_files_and_validations_do_not_take_the_trainings_place() -> None:
    """Saving draws `0/1` and `1/1`, and a validation its own short bar: the training's step stays what it was."""
    counters = told(*bar(500, *range(30)), *bar(1, 0, 1), *bar(8, *range(9)))
    assert (counters.training.step, counters.training.falls) == (29, False)
    # Long validations, at the end of which the job dies, or in the middle of one.
    for last in (201, 90):
        lines = [line for n in (100, 200, 300) for line in (*bar(500, *range(n - 100, n)), *bar(200, *range(201)))]
        assert told(*lines, *bar(500, *range(300, 400)), *bar(200, *range(last))).training.step == 399


def test_a_bar_of_what_comes_before_training_gives_way() -> None:
    """A data set is prepared, with more numbers than the training will ever say."""
    assert told(*bar(100_000, *range(0, 100_001, 1000)), *bar(500, *range(4))).training.step == 3
    assert told(*bar(4, *range(5), front="Loading checkpoint shards: "), *bar(1000, 0, 501)).training.step == 501


def test_a_bar_that_is_drawn_anew_in_each_epoch_counts_the_steps_of_the_training() -> None:
    """Lightning's: epoch 2 of 16 steps each, at its fourth step, is step 36; its sanity check is none."""
    lines = [*bar(2, 0, 1, 2, front="Sanity Checking DataLoader 0: ")]
    for epoch in range(3):
        lines += bar(16, *range(17 if epoch < 2 else 5), front=f"Epoch {epoch}: ")
    counters = told(*lines)
    assert (counters.training.step, counters.training.first, counters.training.falls) == (36, [0, 1], False)


def test_an_epochs_counter_without_its_epoch_tells_nothing_of_the_whole() -> None:
    """Nor does one with the epoch somewhere in the line: nobody knows whether the number counts from its beginning."""
    assert told(*bar(16, *range(17)), *bar(16, *range(17))).training.falls
    assert told("epoch 3 step 7", "epoch 3 step 8").training.falls


def test_at_its_end_the_trainings_bar_is_full_too() -> None:
    """Then the one that said most is the training's."""
    assert told(*bar(50, *range(51)), *bar(1, 0, 1)).training.step == 50


def test_the_epoch_of_a_counter_that_counts_anew_is_known() -> None:
    """So that attempts can be compared."""
    counters = told("epoch 3 step 7", "epoch 3 step 8", "epoch 4 step 1", "epoch 4 step 2")
    assert (counters.training.step, counters.training.epoch, counters.training.falls) == (2, 4.0, True)
