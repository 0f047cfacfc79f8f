"""Counters that no shape reads: what is learned from a log, and above all what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.watch.log_steps import Counters


def read(lines: list[str]) -> list[int | None]:
    """The progress in these lines."""
    counters = Counters()
    return [counters.progress(line) for line in lines]


TRAININGS = [
    "{now} batch {n} loss {loss:.4f}",
    "[{now}] {n}: loss={loss:.4f} acc={loss:.5f}",
    "Minibatch #{n}, train loss {loss:.5f}, lr 0.0010",
    "update {n} | perplexity {loss:.4f} | 1201 tok/s",
    "{n}/5000 loss {loss:.5f}",
    "rank 0: samples {n} of 100000, nll {loss:.5e}",
    "INFO trainer.py:120 it={n} reward={loss:.5f} mem=12.1GB time=0.31s",
    "epoch 3 | batch {n} | loss {loss:.5f} | 12:01:33 elapsed",
]
"""Lines of programs that nobody knows."""

MONITORS = [
    "heartbeat {n}",
    "{now} alive {n}",
    "watchdog: no progress for {n} s, last loss 2.31",
    "[monitor] sample {n}: gpu util 99.5% temperature 61.2",
    "uptime {n} s",
    "elapsed {n}, loss 2.31",
    "elapsed: {n}s | memory {n} MiB | batch 12 | loss 2.3100",
    "pid {n} waits",
    "{n}% done, loss 2.31",
    "time {n} loss 2.31",
    "clock {epoch_s} loss 2.31",
    "memory {n} MB of 81559 MB, loss 2.31",
    "polling {n}/1000",
    "retry {n}/1000 batch",
    "collected {n} samples of power and temperature",
    "NCCL watchdog thread: waited {n} ms for batch 12",
    "loss 2.31 at {now}, {n} seconds ago",
    "{n} heartbeats, loss 2.3{odd}",
    "still waiting, {n} of 1000 samples, accuracy 0.{odd}",
    "queue: 12 batches, {n} polls",
    "{now} loader: 8 workers, queue 12/64 batches",
]
"""Lines that go on while a training hangs: each has a number that grows."""


def drawn(shape: str, index: int, number: int, *, trains: bool) -> str:
    """One line; its time goes on, and its loss does if the training does."""
    at_s = 10 * index
    now = f"2026-01-01 {at_s // 3600 % 24:02}:{at_s // 60 % 60:02}:{at_s % 60:02}"
    loss = 9.0 / (index + 1) + 0.37 * (index % 3) if trains else 2.31
    return shape.format(n=number, now=now, loss=loss, epoch_s=1_795_333_621 + at_s, odd=index % 7)


@pytest.mark.parametrize("shape", TRAININGS)
@pytest.mark.parametrize("stride", [1, 10, 64])
def test_a_counter_of_ones_own_is_learned(shape: str, stride: int) -> None:
    """After a few lines, each one is progress, with the number that the program counts."""
    news = read([drawn(shape, i, stride * (i + 1), trains=True) for i in range(40)])
    assert news[20:] == [stride * (i + 1) for i in range(20, 40)]


@pytest.mark.parametrize("shape", MONITORS)
def test_what_a_monitor_prints_is_no_progress(shape: str) -> None:
    """Not before a training, and not after it hangs."""
    assert read([drawn(shape, i, 10 * i, trains=False) for i in range(300)]) == [None] * 300


@given(
    st.sampled_from(TRAININGS), st.sampled_from(MONITORS), st.integers(6, 40), st.integers(1, 64), st.integers(1, 64)
)
def test_a_hang_is_silent_whatever_its_monitor_prints(
    shape: str, monitor: str, trained: int, stride: int, ticks: int
) -> None:
    """A training that was learned hangs; a thread of its program prints on, and ranks repeat their last line."""
    counters = Counters()
    for i in range(trained):
        counters.progress(drawn(shape, i, stride * i, trains=True))
        counters.progress(drawn(monitor, i, ticks * i, trains=True))
    last = drawn(shape, trained - 1, stride * (trained - 1), trains=True)
    counters.progress(last)
    after = []
    for i in range(trained, trained + 60):
        after += [counters.progress(drawn(monitor, i, ticks * i, trains=True)), counters.progress(last)]
    assert after == [None] * len(after)


@given(st.sampled_from(TRAININGS), st.integers(1, 40), st.integers(1, 64))
def test_a_counter_without_a_new_loss_is_no_progress(shape: str, trained: int, stride: int) -> None:
    """Something counts on and prints the last loss: that is a monitor. Only work towards a total may do without."""
    counters = Counters()
    for i in range(trained):
        counters.progress(drawn(shape, i, stride * i, trains=True))
    counters.progress(drawn(shape, trained, stride * trained, trains=False))
    lines = [drawn(shape, trained, stride * i, trains=False) for i in range(trained + 1, trained + 60)]
    counted = [counters.progress(line) for line in lines]
    assert counted == [None] * 59 or "of 100000" in shape


WORDS = st.sampled_from(["gpu", "tick", "node", "n", "count", "poll", "x", "beat", "status", "info", "loss", "lr"])
PIECE = st.one_of(
    WORDS,
    st.sampled_from(
        ["{clock}", "{epoch_s}", "{n}%", "{n} s", "{n}ms", "{n} MiB", "{n}GB", "pid {n}", "[{n}]", "{n}.5"]
    ),
)


@given(st.lists(PIECE, min_size=1, max_size=8), st.integers(0, 1000), st.integers(1, 100))
def test_clocks_pids_sizes_and_percentages_are_never_learned(pieces: list[str], first: int, stride: int) -> None:
    """Whatever words are beside them, while no metric of the training changes."""
    shape = " ".join(pieces)
    lines = []
    for i in range(60):
        n, at_s = first + stride * i, 30 * i
        clock = f"{at_s // 3600:02}:{at_s // 60 % 60:02}:{at_s % 60:02}"
        # A size or a time beside `loss` may be taken for one: it is not, for it has no decimals, or is no loss.
        lines.append(
            shape.replace("{clock}", clock).replace("{epoch_s}", str(1_795_333_621 + at_s)).replace("{n}", str(n))
        )
    if any(p == "{n}.5" for p in pieces) and {"loss", "lr"} & set(pieces):
        return
    assert read(lines) == [None] * 60


@given(st.lists(st.integers(0, 10**12), max_size=60), st.sampled_from(TRAININGS))
def test_no_number_is_an_error(numbers: list[int], shape: str) -> None:
    """Whatever is counted."""
    read([drawn(shape, i, n, trains=True) for i, n in enumerate(numbers)])


def test_a_number_that_does_not_grow_steadily_is_not_learned() -> None:
    """Sizes of batches, ports and ids jump about."""
    numbers = [7, 3, 12, 40, 41, 2, 90, 95, 96, 11, 400, 402, 409, 500, 501, 600]
    assert read([f"chunk {n} loss {i / 7:.3f}" for i, n in enumerate(numbers)]) == [None] * len(numbers)
    # A word says that this one counts work, so it may grow by any amount; falls are too many for it.
    assert read([f"batch {n} loss {i / 7:.3f}" for i, n in enumerate(numbers[:13])]) == [None] * 13
    assert read([f"batch {n} loss {i / 7:.3f}" for i, n in enumerate(numbers)])[-2:] == [501, 600]


def test_an_epoch_is_not_learned_as_a_step() -> None:
    """It is progress, and no step, although it grows steadily beside a loss."""
    counters = Counters()
    assert [counters.progress(f"Ep {n}: train_loss={7 / (n + 1):.3f}") for n in range(30)] == list(range(30))
    assert counters.training.falls


def test_a_counter_that_begins_again_with_each_epoch_is_life() -> None:
    """Once it is learned, only its fall is no progress. It does not number the steps of the training."""
    counters = Counters()
    news = []
    for epoch in range(3):
        news += [counters.progress(f"batch {n} loss {9 / (n + 1) + epoch / 10:.4f}") for n in range(0, 200, 10)]
    assert news[5:] == list(range(50, 200, 10)) + ([None, *list(range(10, 200, 10))]) * 2
    assert counters.training.falls


def test_what_a_shape_reads_is_believed_first() -> None:
    """Nothing is learned while a known counter goes on, and what was learned gives way to it."""
    counters = Counters()
    for i in range(20):
        counters.progress(f"minibatch {i} loss {9 / (i + 1):.3f}")
    assert counters.training.step == 19
    for i in range(500, 503):
        counters.progress(f"step {i} loss 2.3")
    assert counters.training.step == 502
    assert (
        read([f"step {i}" for i in range(4)] + [f"minibatch {i} loss {9 / (i + 1):.3f}" for i in range(20)])[4:]
        == [None] * 20
    )


def test_a_bar_of_what_comes_before_training_does_not_keep_it_from_being_learned() -> None:
    """A data set was prepared, with a bar that is known."""
    bar = [f"Preparing: {n}%|# | {n}/100 [00:01<00:02, 3.1it/s]" for n in range(0, 101, 10)]
    assert read(bar + [f"minibatch {i} loss {9 / (i + 1):.3f}" for i in range(20)])[-10:] == list(range(10, 20))


def test_ranks_that_print_in_turn_are_learned_and_fall_silent_together() -> None:
    """Each rank prints the same counter with its own loss."""
    lines = [f"[rank{r}]: minibatch {i} loss {9 / (i + 1) + r / 10:.3f}" for i in range(20) for r in range(4)]
    counters = Counters()
    news = [counters.progress(line) for line in lines]
    assert {n for n in news if n is not None} >= set(range(10, 20))
    assert counters.training.step == 19
    again = [f"[rank{r}]: minibatch 19 loss {9 / 20 + r / 10:.3f}" for _ in range(9) for r in range(4)]
    assert [counters.progress(line) for line in again] == [None] * 36


@pytest.mark.parametrize(
    "shape",
    [
        "{task}: loss {loss:.4f}",
        " {task}: minibatch {n}, loss {loss:.4f}",
        "[{pid}] loss {loss:.4f}",
        "[{pid}] minibatch {n} loss {loss:.4f}",
        "I0101 10:00:00.000000 {pid} train.py:48] loss {loss:.4f}",
        "I0101 10:00:00.000000 {pid} train.py:48] [{pid}] loss = {loss:.4f}",
        "2026-01-01 10:00:00 {pid} INFO minibatch {n} loss {loss:.4f}",
    ],
)
def test_ranks_that_print_in_turn_do_not_teach_their_pids(shape: str) -> None:
    """Their pids and tasks grow steadily, from each line to the next."""
    counters = Counters()
    for i in range(40):
        for task in range(8):
            loss = 9 / (i + 1) + task / 7
            number = counters.progress(shape.format(task=task, pid=4711 + task, n=1000 + i, loss=loss))
            assert number is None or number == 1000 + i
    assert ("{n}" in shape) is (counters.training.step == 1039)


def test_monitors_of_many_ranks_print_old_losses() -> None:
    """Nothing tells the ranks apart, and each one's last loss is another one."""
    lines = [f"minibatch {i} loss {9 / (i + 1) + r / 10:.3f}" for i in range(20) for r in range(16)]
    counters = Counters()
    assert [n for n in map(counters.progress, lines) if n is not None][-1] == 19
    hung = [f"minibatch {i} loss {9 / 20 + r / 10:.3f}" for i in range(20, 60) for r in range(16)]
    assert [counters.progress(line) for line in hung] == [None] * len(hung)


def test_very_many_kinds_of_lines_are_bounded() -> None:
    """A log of lines that are all different does not fill the memory."""
    counters = Counters()
    for i in range(2000):
        word = "".join(chr(97 + i // 26**k % 26) for k in range(3))
        counters.progress(f"{word} batch {i} loss {i / 7:.3f}")
    assert len(counters._learned._kinds) <= 64
