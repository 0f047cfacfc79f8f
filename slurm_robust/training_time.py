"""Where did the time of a training go? The facts that tell it.

A training is a lineage: all attempts of a job across requeues and restarts. Every time is seconds since the epoch
(`…_at_s`), every duration is seconds (`…_s`). Pure, standard library only: the daemon shows it live, reports later.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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


# --- stand-in until the real division is merged: take the other side of this file


@dataclass(frozen=True)
class Stop:
    """The stamps of one incident."""

    times: Mapping[str, float]


@dataclass(frozen=True)
class Span:
    """A stretch of a training's time."""

    begin_at_s: float
    end_at_s: float
    shares: Mapping[Spent, float] = field(default_factory=dict)


def divided(attempts: Sequence[TrainingAttempt], stops: Sequence[Stop], now_s: float) -> tuple[Span, ...]:
    """The time of one training, as spans that follow each other."""
    spans: list[Span] = []
    at_s = attempts[0].eligible_at_s if attempts else now_s

    def until(end_s: float | None, what: Spent) -> None:
        nonlocal at_s
        if end_s is not None and end_s > at_s:
            spans.append(Span(at_s, end_s, {what: end_s - at_s}))
            at_s = end_s

    def steps(a: TrainingAttempt, end_s: float, total_s: float) -> None:
        nonlocal at_s
        if (seconds := end_s - at_s) <= 0:
            return
        saved_s, slow_s = a.checkpoint_s * seconds / total_s, a.slow_s * seconds / total_s
        rest_s = seconds - saved_s - slow_s
        shares = {Spent.PRODUCTIVE: rest_s, Spent.CHECKPOINT: saved_s, Spent.SLOW: slow_s}
        spans.append(Span(at_s, end_s, shares))
        at_s = end_s

    for number, a in enumerate(attempts):
        until(a.start_at_s, Spent.RESTART if number else Spent.QUEUE)
        until(a.first_step_at_s, Spent.RESTART if number else Spent.START)
        until(a.first_new_step_at_s, Spent.RECOMPUTATION)
        end_s = a.end_at_s or now_s
        inner = [s.times for s in stops if at_s <= s.times["fault"] < end_s and "decided" in s.times]
        paused_s = sum(t["first_new_step"] - t["fault"] for t in inner if t["first_new_step"] < end_s)
        total_s = max(1e-9, (a.last_step_at_s or end_s) - at_s - paused_s)
        for t in inner:
            steps(a, t["fault"], total_s)
            until(t["suspected"], Spent.DETECTION)
            until(t["decided"], Spent.DIAGNOSIS)
            if t["first_new_step"] < end_s:
                until(t["first_new_step"], Spent.RESTART)
        if not inner or inner[-1]["first_new_step"] < end_s:
            steps(a, a.last_step_at_s or end_s, total_s)
        until(a.end_at_s, Spent.RESTART)
    until(now_s, Spent.UNKNOWN)
    return tuple(spans)


def within(spans: Sequence[Span], from_s: float, to_s: float) -> tuple[Span, ...]:
    """The part of the spans in a window."""
    out = []
    for span in spans:
        begin_s, end_s = max(from_s, span.begin_at_s), min(to_s, span.end_at_s)
        if end_s > begin_s:
            part = (end_s - begin_s) / (span.end_at_s - span.begin_at_s)
            out.append(Span(begin_s, end_s, {what: s * part for what, s in span.shares.items()}))
    return tuple(out)


def ettr(spans: Sequence[Span]) -> float | None:
    """Productive seconds of all seconds."""
    total_s = sum(sum(span.shares.values()) for span in spans)
    return sum(span.shares.get(Spent.PRODUCTIVE, 0.0) for span in spans) / total_s if total_s else None
