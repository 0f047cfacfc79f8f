"""Tells whether the user ends the training step, from the signals that its srun has received. Pure.

srun itself ends the step at a SIGTERM, SIGHUP or SIGQUIT. At the first Ctrl-C srun only shows the tasks; a second
Ctrl-C within a second is passed on to the tasks, which may go on all the same.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_TWICE_S = 1.5
"""srun waits one second for the second Ctrl-C; the launcher may be late by the time that starting a process takes."""
_ENDS_WITHIN_S = 3.0
"""srun kills the tasks that the second Ctrl-C does not end at once."""
_INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGKILL)
_LEAVES_TIME_S = 600.0
"""Time for a program that saves a checkpoint at an interrupt; if it still trains later, it ignored the interrupt."""
_SURE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FIRST_COUNTS = {"X", "disable-status", "q", "quit-on-interrupt"}
"""srun's options with which the first Ctrl-C already reaches the tasks, or ends the step."""


class Received(NamedTuple):
    """A signal that srun has received, and when the launcher received it, too, on the monotonic clock."""

    number: int
    at_s: float


def user_end(
    signals: Sequence[Received], now_s: float, options: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """Return the name of the signal by which the user ends the step; empty if the user does not end it.

    `options` are srun's by name, and `now_s` is on the monotonic clock.
    """
    sure = next((s.number for s in signals if s.number in _SURE), 0)
    if sure:
        return signal.Signals(sure).name
    interrupts = [s.at_s for s in signals if s.number == signal.SIGINT]
    first_counts = bool(_FIRST_COUNTS & set(options)) or "SLURM_DISABLE_STATUS" in environment
    pairs = [later for earlier, later in pairwise(interrupts) if later - earlier <= _TWICE_S]
    telling = interrupts if first_counts else pairs
    return "SIGINT" if telling and now_s - telling[-1] <= _LEAVES_TIME_S else ""


def merged_interrupt_s(signals: Sequence[Received], exit_code: int, ended_s: float) -> float | None:
    """Return when a second Ctrl-C came that the launcher has missed; None if there is no sign of one.

    The kernel keeps only one of two equal signals that arrive while the launcher does something else. srun has a thread
    for signals, so it received both, and ended with one of the exit codes for this case at `ended_s` on the monotonic
    clock.
    """
    interrupts = [received.at_s for received in signals if received.number == signal.SIGINT]
    if len(interrupts) != 1 or exit_code not in _INTERRUPTED or ended_s - interrupts[0] > _ENDS_WITHIN_S:
        return None
    return interrupts[0]
