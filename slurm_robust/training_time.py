"""Where did the time of a training go? The facts that tell it.

A training is a lineage: all attempts of a job across requeues and restarts. Every time is seconds since the epoch
(`…_at_s`), every duration is seconds (`…_s`). Pure, standard library only: the daemon shows it live, reports later.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Spent(str, enum.Enum):
    """What a second of a training went into. Every second of it belongs to exactly one."""

    PRODUCTIVE = "productive"
    """Steps that were not lost, at the pace that the training usually has."""
    QUEUE = "queue"
    """Waiting in Slurm's queue, before the first attempt or for a requeue that no failure explains."""
    START = "start"
    """From Slurm's start of an attempt that no failure explains to its first step."""
    DETECTION = "detection"
    """From the last sign of progress before a failure to the suspicion."""
    DIAGNOSIS = "diagnosis"
    """From the suspicion to the decision, tests of nodes included."""
    RESTART = "restart"
    """From the decision to the first step of the next attempt, queueing included."""
    RECOMPUTATION = "recomputation"
    """Steps that had been made before, and were lost."""
    CHECKPOINT = "checkpoint"
    """Steps stand still for a save or a load of a checkpoint while the training runs."""
    SLOW = "slow"
    """What steps took beyond the usual pace of the training."""
    UNKNOWN = "unknown"
    """Nobody saw what the training did: it reports no steps, or was not watched."""


@dataclass(frozen=True)
class TrainingAttempt:
    """One attempt of a training, as it was seen: a run of a job, or a restart within one.

    Attributes:
        lineage: The training.
        job: Its address in Slurm.
        restart: SLURM_RESTART_COUNT.
        nodes: How many.
        gpus: On all nodes together; 0 where unknown.
        eligible_at_s: Since when it could have started.
        start_at_s: When Slurm started it.
        first_step_at_s: When it completed its first step.
        first_new_step_at_s: When it completed its first step that no earlier attempt had made.
        last_step_at_s: When it completed its last step so far.
        seen_at_s: When it was last seen alive.
        end_at_s: When it ended; None while it runs.
        resume_step: Step of the checkpoint that it started from; -1 for none.
        last_step: The highest step that it has reached; -1 where it has reported none.
        checkpoint_s: Seconds after the first step in which steps stood still for a checkpoint.
        slow_s: Seconds that steps took beyond the usual pace.
    """

    lineage: str
    job: str
    restart: int
    nodes: int
    gpus: int
    eligible_at_s: float
    start_at_s: float
    first_step_at_s: float | None = None
    first_new_step_at_s: float | None = None
    last_step_at_s: float | None = None
    seen_at_s: float = 0.0
    end_at_s: float | None = None
    resume_step: int = -1
    last_step: int = -1
    checkpoint_s: float = 0.0
    slow_s: float = 0.0
