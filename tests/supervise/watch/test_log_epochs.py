"""Logs that show no step: epochs and full bars are progress, and what a hung job prints again is none."""

from __future__ import annotations

import pytest

from slurm_robust.supervise.watch.log_steps import Counters


def read(*lines: str) -> list[int | None]:
    """What is progress in these lines."""
    counters = Counters()
    return [counters.progress(line) for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch {n}: train_loss {loss}, val_acc 0.31",
        "[{n}/40] train_loss: {loss} - val_loss: {loss}",
        '{{"epoch": {n}, "loss": {loss}}}',
        "2026-05-01 10:00:00,123 INFO epoch {n}/40 | train loss {loss} | 58.1s",
    ],
)
def test_a_line_an_epoch_is_progress(line: str) -> None:
    """Once for each epoch; it does not number the steps of the training."""
    counters = Counters()
    lines = [line.format(n=n, loss=f"{9 / n:.4f}") for n in range(1, 12)]
    assert [counters.progress(text) for text in lines] == list(range(1, 12))
    assert [counters.progress(text) for text in lines[-3:]] == [None] * 3
    assert (counters.training.step, counters.training.falls) == (11, True)


def test_an_epoch_is_no_progress_where_steps_are_shown() -> None:
    """The summary of an epoch is printed after its last step, and says nothing new."""
    lines = [
        "step 10 loss 2.1",
        "step 20 loss 2.0",
        "epoch 1: train loss 2.05",
        "step 30 loss 1.9",
        "epoch 2: loss 1.9",
    ]
    assert read(*lines) == [10, 20, None, 30, None]


def test_a_header_counts_once_another_one_has_come() -> None:
    """The first may stand before the steps of its epoch."""
    assert read("Epoch 1/9", "Epoch 2/9", "Epoch 2/9", "Epoch 3/9") == [None, 2, None, 3]
    assert read("Epoch 1/9", "| 120/703 [", "Epoch 2/9") == [None, 120, None]


def test_what_a_monitor_says_of_an_epoch_is_no_progress() -> None:
    """The training hangs in epoch 3."""
    hung = ["epoch 3 loss 2.31 for 60 s", "epoch 3 loss 2.31 for 120 s", "still in epoch 3 of 9, batch 12"]
    assert read("epoch 2 loss 2.4000", "epoch 3 loss 2.3100", *hung) == [2, 3, None, None, None]


def bar(count: int, spent: str) -> str:
    """A full bar."""
    return f"100%|██████████| {count}/{count} [{spent}<00:00, 12.1it/s]"


def test_full_bars_of_a_notebook_count_and_the_longer_one_is_the_trainings() -> None:
    """A validation's bar follows each of the training's."""
    counters = Counters()
    for _ in range(4):
        assert counters.progress(bar(391, "00:31")) == 391
        assert counters.progress(bar(79, "00:04")) == 79
        assert counters.training.step == 391
    assert counters.training.falls


def test_a_full_bar_that_is_drawn_again_is_no_progress() -> None:
    """It has spent the same time, or more; a new one has spent less."""
    assert read(bar(9, "00:31"), bar(9, "00:31"), bar(9, "01:05"), bar(9, "00:30")) == [9, None, None, 9]


def test_a_percentage_in_brackets_goes_on() -> None:
    """With the batch behind it, and alone beside a loss."""
    assert read("[ 10%] 39/391 loss 2.1", "[ 20%] 78/391 loss 2.0") == [39, 78]
    assert read("[ 10%] loss 2.1", "[ 20%] loss 2.0", "[ 20%] loss 2.0") == [10, 20, None]
    assert read("[ 10%] copying", "[ 20%] copying") == [None, None]


def test_a_part_of_a_percent_goes_on_beside_a_metric() -> None:
    """Decimals count; what only fills up, and what a validation shows, does not."""
    assert read("[  2.5%] loss: 2.1", "[  5.0%] loss: 2.0", "[  5.0%] loss: 2.0") == [2500, 5000, None]
    assert read("[42%] acc=0.31", "[43%] acc=0.32") == [42, 43]
    for line in (
        "mem [{n}%] loss 2.1",
        "[{n}%] Building CXX object loss.cpp.o",
        "val [{n}.5%] loss: 2.1",
        "[{n}%] acc",
    ):
        assert read(*(line.format(n=n) for n in range(10, 14))) == [None] * 4


def test_a_short_word_for_an_epoch_counts_beside_a_metric() -> None:
    """Only there: it stands for much else."""
    lines = [f"ep {n}/200  loss {9 / n:.4f}" for n in range(1, 5)]
    assert read(*lines, lines[-1]) == [1, 2, 3, 4, None]
    assert read("[ep 1] train_acc: 0.41", "[ep 2] train_acc: 0.44") == [1, 2]
    for line in (
        "ep {n} opened",
        "step ep{n}x loss 2.1",
        "ep 10.0.0.{n} loss 2.1",
        "keep {n} loss 2.1",
        "ep {n} batch 7 loss 2.1",
    ):
        assert read(*(line.format(n=n) for n in range(1, 4))) == [None] * 3


def test_rows_of_a_table_count_only_below_its_header() -> None:
    """A row of numbers alone may be anything."""
    rows = [f"{n},{9 / n:.4f},0.31,1e-4" for n in range(1, 5)]
    assert read(*rows) == [None] * 4
    assert read("epoch,train_loss,val_acc,lr", *rows, rows[-1], rows[0]) == [None, 1, 2, 3, 4, None, None]
    assert read("epoch,train_loss,val_acc", *rows) == [None] * 5
    assert read("sample,width,height,score", *rows) == [None] * 5
    assert read("epoch,name,path,kind", *rows) == [None] * 5
    assert read("epoch,train_loss,val_acc,lr", "1," + " , " * 600 + "x") == [None] * 2  # and not after hours


def test_a_validation_with_more_batches_is_not_the_training() -> None:
    """Its bar takes less time."""
    counters = Counters()
    for spent in (4, 5, 3):
        assert counters.progress(bar(100, f"00:1{spent}")) == 100
        assert counters.progress(bar(900, f"00:0{spent}")) == 900
        assert counters.training.step == 100


def at(*bars: tuple[float, str]) -> list[int | None]:
    """What is progress in bars that are read at these seconds."""
    counters = Counters()
    return [counters.progress(line, now_s=now_s) for now_s, line in bars]


def test_a_full_bar_counts_if_it_can_have_begun_since_the_last_one() -> None:
    """An epoch that takes as long as the last one, or longer, is none that is drawn again."""
    bars = [(1000.0 + 36 * n, f"{bar(391, f'00:3{n}')[:-1]}, loss=2.{n}]") for n in range(4)]
    assert at(*bars) == [391] * 4
    same = [(1000.0 + 36 * n, f"{bar(391, '00:31')[:-1]}, loss=2.{n}]") for n in range(4)]
    assert at(*same) == [391] * 4


def test_a_full_bar_that_stays_on_the_screen_never_counts() -> None:
    """A hung job may draw it again, for hours, or somebody prints a copy of it."""
    drawn = [(1000.0 + 60 * n, bar(391, f"{n:02}:31")) for n in range(1, 30)]
    assert at(*drawn) == [391] + [None] * 28
    copied = [(1000.0 + 60 * n, bar(391, "00:31")) for n in range(30)]
    assert at(*copied) == [391] + [None] * 29
    ranks = [(1000.0 + n, f"{bar(391, f'00:3{n}')[:-1]}, rank={n}]") for n in range(8)]
    assert at(*ranks) == [391] + [None] * 7
