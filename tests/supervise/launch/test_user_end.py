"""Which signals say that the user ends the training step."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM

import pytest

from slurm_robust.supervise.launch.user_end import Received, merged_interrupt_s, user_end


def by(*signals: tuple[int, float], now_s: float = 20.0, option: str = "", env: str = "") -> str:
    """The signal that counts, of those that srun has received."""
    return user_end([Received(*s) for s in signals], now_s, {option: ""}, {env: "1"})


@pytest.mark.parametrize("number", [SIGTERM, SIGHUP, SIGQUIT])
def test_srun_ends_the_step_at_these_however_long_that_takes(number: int) -> None:
    """Srun itself kills the tasks: a rank that takes minutes to end was ended by the user all the same."""
    assert by((number, 10.0), now_s=5000.0) == number.name  # type: ignore[attr-defined]


def test_the_first_ctrl_c_only_shows_the_tasks() -> None:
    """Neither one key, nor two that are seconds apart, end anything under srun."""
    assert by((SIGINT, 10.0)) == ""
    assert by((SIGINT, 10.0), (SIGINT, 14.0)) == ""
    assert by() == ""


def test_two_within_a_second_end_it() -> None:
    """The tasks receive the second one; they may save a checkpoint first."""
    assert by((SIGINT, 10.0), (SIGINT, 10.4)) == "SIGINT"
    assert by((SIGINT, 2.0), (SIGINT, 10.0), (SIGINT, 10.9), now_s=300.0) == "SIGINT"


def test_a_training_that_takes_no_notice_is_supervised_again() -> None:
    """A program that ignores SIGINT trains on for hours: a fault then is a fault."""
    assert by((SIGINT, 10.0), (SIGINT, 10.4), now_s=3600.0) == ""


@pytest.mark.parametrize("option", ["X", "disable-status", "q", "quit-on-interrupt"])
def test_with_sruns_own_options_one_is_enough(option: str) -> None:
    """`--disable-status` passes the first one on, and `--quit-on-interrupt` ends the step at it."""
    assert by((SIGINT, 10.0), option=option) == "SIGINT"


def test_the_variable_counts_like_the_option() -> None:
    """SLURM_DISABLE_STATUS stands in for --disable-status."""
    assert by((SIGINT, 10.0), env="SLURM_DISABLE_STATUS") == "SIGINT"


@pytest.mark.parametrize(
    ("pressed", "code", "ended_s", "expected"),
    [
        ((10.0,), 130, 11.0, 10.0),  # the tasks ended by it
        ((10.0,), 137, 11.0, 10.0),  # srun killed them
        ((10.0,), 137, 20.0, None),  # a rank was killed, long after the user had looked at the tasks
        ((10.0,), 1, 11.0, None),
        ((10.0, 10.5), 137, 11.0, None),  # both were heard
        ((), 137, 11.0, None),
    ],
)
def test_a_second_ctrl_c_that_the_kernel_merged_with_the_first_is_told_by_sruns_end(
    pressed: tuple[float, ...], code: int, ended_s: float, expected: float | None
) -> None:
    """The launcher was busy; srun was not."""
    signals = [Received(SIGINT, at_s) for at_s in pressed]
    assert merged_interrupt_s(signals, code, ended_s) == expected
