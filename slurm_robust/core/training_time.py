"""Where did the time of a training go? The facts that tell it, and how they divide it.

A training is a lineage: all attempts of a job across requeues and restarts. Every time is seconds since the epoch
(`…_at_s`), every duration is seconds (`…_s`). Pure, standard library only: the daemon shows it live, reports after the
fact. `spent_time` has the categories, the spans that the time is divided into, and the ratio that follows (ETTR).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_robust.core.spent_time import CLOCKS_S, RunningSteps, Timeline
from slurm_robust.core.spent_time import Span as Span  # noqa: PLC0414 (users of the facts find these among them)
from slurm_robust.core.spent_time import Spent as Spent  # noqa: PLC0414
from slurm_robust.core.spent_time import ettr as ettr  # noqa: PLC0414
from slurm_robust.core.spent_time import spent as spent  # noqa: PLC0414
from slurm_robust.core.spent_time import within as within  # noqa: PLC0414

LONG_START_S = 3600.0
"""The longest time for which a running training without a step counts as starting; after that, it counts as unknown."""
_ENDING_S = 10.0
"""The time that an attempt takes from its last step to its end; a longer silence counts as not watched."""


@dataclass(frozen=True)
class TrainingAttempt:
    """The observations of one attempt of a training: a run of a job, with all restarts within it.

    Attributes:
        lineage: The name of the training.
        job: Its address in Slurm.
        restart: SLURM_RESTART_COUNT.
        nodes: The number of nodes.
        gpus: The number of GPUs on all nodes together; 0 if unknown.
        eligible_at_s: Since when Slurm could have started it.
        start_at_s: When Slurm started it; 0 while it waits.
        first_step_at_s: When it completed its first step.
        first_new_step_at_s: When it completed its first step that no earlier attempt had made.
        last_step_at_s: When it completed its last step so far.
        seen_at_s: When it was last seen alive.
        end_at_s: When it ended; None while it runs.
        resume_step: Step of the checkpoint that it started from; -1 for none.
        last_step: The highest step that it has reached; -1 if it has reported none.
        checkpoint_s: Seconds after the first step in which steps stood still for a checkpoint.
        slow_s: Seconds that steps took beyond the usual pace.
        step_s: Seconds that a step usually takes it; 0 if unknown.
        report_every_s: How often it reports its last step; 0 if it reports only at changes of its state.
        restarts_within: When each restart within it completed its first step, and its first step that had not been made
            before (None: not yet).
        unwatched: Stretches in which launches came and went while no daemon read: begin and end.
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
    step_s: float = 0.0
    report_every_s: float = 60.0
    restarts_within: tuple[tuple[float, float | None], ...] = ()
    unwatched: tuple[tuple[float, float | None], ...] = ()

    @property
    def silence_s(self) -> float:
        """The time after the last step in which silence is normal: no report was due yet, or the next step was not."""
        return 2 * self.report_every_s + 3 * self.step_s if self.report_every_s > 0 else math.inf


LEFT_ALONE = frozenset({"observed", "alerted"})
"""Outcomes of incidents about which nothing was done: what follows is no restart."""


@dataclass(frozen=True)
class Stop:
    """One incident of a training, by its stamps.

    A stop after which the training just went on making steps costs no time of its own.

    Attributes:
        times: Seconds since the epoch: keys of `model.TIME_KEYS`, and `accepted`.
        opened_at_s: When the incident was written down; used instead of stamps that are missing.
        left_alone: Nothing was done about the incident: it waits for a person until its attempt ends.
    """

    times: Mapping[str, float]
    opened_at_s: float = 0.0
    left_alone: bool = False

    def at_s(self, *names: str) -> float | None:
        """Return the first of these stamps that can be a time."""
        return next((t for name in names if (t := _time(self.times.get(name))) is not None), None)

    @property
    def noticed_at_s(self) -> float | None:
        """When the incident was noticed; tells in which attempt it happened."""
        return self.at_s("suspected", "decided", "fault", "accepted") or _time(self.opened_at_s)


def divided(attempts: Sequence[TrainingAttempt], stops: Sequence[Stop], now_s: float) -> tuple[Span, ...]:
    """Divide the time of one training, from its first attempt's eligibility to its end (or now).

    Spans follow each other without a gap. Any times are accepted: a stretch with contradicting times becomes `UNKNOWN`,
    with a sentence in `Span.doubt`.
    """
    runs = _runs(attempts, now_s)
    if not runs:
        return ()
    by_run: list[list[Stop]] = [[] for _ in runs]
    begins, earlier = [run.start_s for run in runs], list[Stop]()
    for stop in sorted(stops, key=lambda s: s.noticed_at_s or 0.0):
        if stop.noticed_at_s is not None and stop.noticed_at_s < begins[0] - CLOCKS_S:
            earlier.append(stop)
        elif stop.noticed_at_s is not None:
            by_run[max(0, bisect_right(begins, stop.noticed_at_s) - 1)].append(stop)
    # Of an attempt that is not among these, as when a report's time begins while a training is being brought back.
    back_s = earlier[-1].at_s("first_new_step") if earlier else None
    failed, steps_before = bool(earlier) and (back_s is None or back_s >= begins[0]), bool(earlier)
    timeline = Timeline()
    for number, (run, own) in enumerate(zip(runs, by_run, strict=True)):
        following = runs[number + 1] if number + 1 < len(runs) else None
        failed = _lay(timeline, run, own, following, _Before(failed, steps_before, number == 0))
        steps_before = steps_before or run.of.first_step_at_s is not None
    return tuple(timeline.spans(runs[0].eligible_s, max(run.real_end_s for run in runs)))


# -- attempts in order ------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """An attempt with times that can be true: eligible ≤ start ≤ end ≤ start of the next attempt.

    `real_end_s` is later than `end_s` if the next attempt began before this one ended.
    """

    of: TrainingAttempt
    eligible_s: float
    start_s: float
    end_s: float
    real_end_s: float
    waits: bool = False
    doubt: str = ""


class _Before(NamedTuple):
    """The history before an attempt."""

    failed: bool
    steps: bool
    nothing: bool


def _time(at_s: float | None) -> float | None:
    return at_s if at_s is not None and math.isfinite(at_s) and at_s > 0 else None


def _run(attempt: TrainingAttempt, now_s: float) -> _Run | None:
    eligible, start, doubt = _time(attempt.eligible_at_s), _time(attempt.start_at_s), ""
    if start is None and attempt.end_at_s is None and eligible is not None:
        until = max(eligible, now_s)
        return _Run(attempt, min(eligible, now_s), until, until, until, waits=True)
    seen = [_time(t) for t in (attempt.first_step_at_s, attempt.last_step_at_s, attempt.seen_at_s)]
    known = [t for t in (start, eligible, *seen) if t is not None]
    if not known:
        return None
    if start is None:
        start, doubt = known[0], "nobody knows when this attempt started"
    end = _time(attempt.end_at_s) if attempt.end_at_s is not None else now_s
    if end is None or end < start - CLOCKS_S:
        doubt = "this attempt ended before it started" if end is not None else "nobody knows when this attempt ended"
        end = max(known)
    eligible = start if eligible is None else min(eligible, start)
    return _Run(attempt, eligible, start, max(start, end), max(start, end), doubt=doubt)


def _runs(attempts: Sequence[TrainingAttempt], now_s: float) -> list[_Run]:
    """Return the attempts with times that can be true, in order of time."""
    found = sorted((run for a in attempts if (run := _run(a, now_s)) is not None), key=lambda r: (r.start_s, r.end_s))
    for number, after in enumerate(found[1:]):
        run = found[number]
        if run.of.end_at_s is None:
            # Nobody was there when it ended, and another one followed.
            seen = [t for t in (_time(run.of.last_step_at_s), _time(run.of.seen_at_s)) if t is not None]
            last = min(max([run.start_s, *seen]), after.start_s)
            run = run._replace(end_s=last, real_end_s=last)
        found[number] = run._replace(end_s=min(run.end_s, after.start_s))
    first = min((run.eligible_s for run in found), default=0.0)
    return [run._replace(eligible_s=first) if not number else run for number, run in enumerate(found)]


# -- one attempt ------------------------------------------------------------------------------------------------------


def _lay(timeline: Timeline, run: _Run, stops: Sequence[Stop], following: _Run | None, before: _Before) -> bool:
    """Lay one attempt, and what follows it, on the timeline; True if a failure ended it."""
    of, waiting = run.of, Spent.RESTART if before.failed else Spent.QUEUE
    if before.nothing:
        timeline.mark(run.eligible_s, waiting)
    if run.waits:
        return before.failed
    timeline.run(RunningSteps(run.start_s, run.end_s, of.checkpoint_s, of.slow_s))
    start = Spent.RESTART if before.failed else Spent.START
    starts = run.of.end_at_s is None and following is None and run.end_s - run.start_s < LONG_START_S
    unseen = of.first_step_at_s is None and not before.steps and not stops and not starts
    why = "this attempt reported no step" if unseen else ""
    timeline.mark(run.start_s, Spent.UNKNOWN if unseen else start, why)
    if run.doubt:
        timeline.doubt(run.start_s, run.end_s, run.doubt)
    for begin_s, end_s in of.unwatched:
        # Pairs come from a file.
        if (since_s := _time(begin_s)) is not None and (until_s := _time(end_s)) is not None:
            timeline.doubt(since_s, min(until_s, run.end_s), "launches came and went while no daemon watched")
    if run.real_end_s > run.end_s + CLOCKS_S:
        timeline.doubt(run.end_s, run.real_end_s, "two attempts of this training overlap")
    steps = (of.first_step_at_s, of.first_new_step_at_s, of.last_step_at_s)
    why = "the times of this attempt's steps contradict each other"
    first, new, last = _stamped(timeline, steps, run.start_s, run.real_end_s, why)
    if first is not None:
        timeline.mark(first, Spent.RECOMPUTATION if before.steps or new is not None else Spent.PRODUCTIVE)
    if new is not None:
        timeline.mark(new, Spent.PRODUCTIVE)
    again = _lay_restarts(timeline, run)
    until = following.start_s if following is not None else run.end_s
    failed = False
    for number, stop in enumerate(stops):
        final = number == len(stops) - 1
        sign = last if final else stops[number + 1].at_s("fault")
        since, before_s = stop.noticed_at_s or 0.0, math.inf if final else stops[number + 1].noticed_at_s or math.inf
        in_place = any(since <= at_s < before_s for at_s in again)
        failed = _lay_stop(timeline, run, stop, _Around(first, sign, final, until, following, in_place))
    # While it runs, two reports may be on their way. Once it has ended, what they would have said is lost: steps, or a
    # hang whose incident nobody has seen.
    over = run.of.end_at_s is not None or following is not None
    silence_s = _ENDING_S + 3 * of.step_s if over and of.report_every_s > 0 else of.silence_s
    quiet_s = max(last, timeline.last_s) + silence_s if last is not None else math.inf
    if not failed and quiet_s < run.end_s:
        why = f"no step was reported in the last {run.end_s - quiet_s + silence_s:.0f} s of this attempt"
        timeline.mark(quiet_s, Spent.UNKNOWN, why)
    if following is not None and not (failed and timeline.last_s > run.end_s):
        timeline.mark(run.end_s, Spent.RESTART if failed else Spent.QUEUE)
    return failed


def _lay_restarts(timeline: Timeline, run: _Run) -> list[float]:
    """Lay the steps of restarts within an attempt on the timeline; returns when each made its first one."""
    begun, why = list[float](), "the times of a restart's steps contradict each other"
    for pair in run.of.restarts_within:
        first, new = _stamped(timeline, pair, run.start_s, run.real_end_s, why)
        if first is not None:
            begun.append(first)
            timeline.mark(first, Spent.RECOMPUTATION)
        if new is not None:
            timeline.mark(new, Spent.PRODUCTIVE)
    return begun


def _stamped(
    timeline: Timeline, stamps: Sequence[float | None], from_s: float, to_s: float, why: str
) -> list[float | None]:
    """Return the stamps that follow each other in this time; mark the time around any other stamp as unknown."""
    found, before_s, wrong = list[float | None](), from_s, False
    for at_s in stamps:
        good = _time(at_s)
        if at_s is not None and (good is None or not before_s - CLOCKS_S <= good <= to_s + CLOCKS_S):
            wrong, good = True, None
        elif good is not None:
            good = min(max(good, before_s), to_s)
            if wrong:
                timeline.doubt(before_s, good, why)
            before_s, wrong = good, False
        found.append(good)
    if wrong:
        timeline.doubt(before_s, to_s, why)
    return found


class _Around(NamedTuple):
    """The position of a stop in its attempt.

    Attributes:
        first_s: The attempt's first step.
        sign_s: The last sign of progress: for the attempt's last stop its last step, for others the last one before the
            next stop.
        final: The stop is the attempt's last one.
        until_s: The attempt's end, or the start of the next attempt.
        following: The next attempt.
        again: A restart within the attempt, after this stop, tells of its own steps.
    """

    first_s: float | None
    sign_s: float | None
    final: bool
    until_s: float
    following: _Run | None
    again: bool


def _lay_stop(timeline: Timeline, run: _Run, stop: Stop, around: _Around) -> bool:
    """Lay an incident on the timeline; True if no step followed it in this attempt."""
    noticed, sign = stop.noticed_at_s or run.start_s, around.sign_s
    stamps, to_s = _stamps(stop, around)
    in_place = around.again or (stamps[3] is not None and stamps[3] < run.end_s)
    acted = stop.at_s("running", "stopped")
    if not in_place and acted is None and sign is not None and sign > (stamps[2] or noticed) + CLOCKS_S:
        return False  # steps went on: what they lost is in the attempt's slow seconds
    why = "the times of an incident contradict each other"
    fault, suspected, decided, new = _stamped(timeline, stamps, run.start_s, to_s, why)
    # Its first step followed the incident; or it has made steps since, and no stamp says when they went on.
    began_after = decided is not None and around.first_s is not None and around.first_s >= decided
    unseen = acted is not None and around.final and sign is not None and sign > acted + CLOCKS_S
    resumed = in_place or began_after or unseen
    begin = _begin(around, fault, suspected, decided if decided is not None else noticed, resumed=resumed)
    timeline.mark(min(begin, around.until_s), Spent.DETECTION)
    then = Spent.DIAGNOSIS if stop.left_alone and acted is None else Spent.RESTART
    for at_s, what in ((suspected, Spent.DIAGNOSIS), (decided, then)):
        if at_s is not None:
            timeline.mark(min(max(at_s, begin), around.until_s), what)
    if new is not None:
        timeline.mark(new, Spent.PRODUCTIVE)
    if unseen and acted is not None and not in_place and not began_after:
        timeline.mark(max(acted, begin), Spent.UNKNOWN, "nobody saw when steps went on after an incident")
    elif not in_place and acted is None and sign is None and decided is not None:
        timeline.mark(decided, Spent.UNKNOWN, "nobody saw whether steps went on after an incident")
    return not resumed


def _stamps(stop: Stop, around: _Around) -> tuple[list[float | None], float]:
    """Fault, suspicion, decision and first step after it, and until when they can be true."""
    ends = [t for t in (stop.times.get("decided"), stop.times.get("tests_done")) if t is not None]
    decided = max(ends) if ends else stop.at_s("accepted", "stopped")
    step = None if around.again else stop.times.get("first_new_step", stop.times.get("first_step"))
    to_s, following = around.until_s, around.following
    if following is not None and following.of.first_step_at_s is None:
        to_s = following.end_s
    elif following is not None:
        # What the next attempt tells of its own steps is not told twice.
        step = step if step is not None and step < to_s else None
    return [stop.times.get("fault"), stop.times.get("suspected"), decided, step], to_s


def _begin(around: _Around, fault: float | None, suspected: float | None, noticed: float, *, resumed: bool) -> float:
    """Return the last sign of progress before the incident."""
    sign = around.sign_s if around.final and not resumed else None
    if fault is None:
        return sign if sign is not None and suspected is not None and sign < suspected else suspected or noticed
    return max(fault, sign) if sign is not None else fault
