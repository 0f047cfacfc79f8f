"""Names times that do not add up, in words. They stay as they were found: a report must not smooth them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from slurm_robust.daemon.store.attempt_ledger import SupervisedAttempt
from slurm_robust.report.facts import Facts, RanJob
from slurm_robust.report.sources.wording import examples, utc

APART_S = 2.0
"""The difference beyond which two sources do not mean the same moment."""


def of(facts: Facts, *, compared: bool) -> tuple[str, ...]:
    """Sentences about the times of these facts; `compared`: the accounting was read to its end."""
    # Of half a million jobs, only those that are compared with something.
    wanted = {attempt.job_id for attempt in facts.attempts} | {job.job_id for job in facts.jobs if job.restart}
    runs: dict[int, list[RanJob]] = defaultdict(list)
    for job in facts.jobs:
        if job.job_id in wanted:
            runs[job.job_id].append(job)
    return tuple(
        sentence
        for sentences in (
            _of_jobs(facts),
            _of_attempts(facts),
            _without_end(runs),
            _compared(facts, runs) if compared else (),
        )
        for sentence in sentences
    )


def _of_jobs(facts: Facts) -> Iterator[str]:
    backwards, startless, ahead = [], [], []
    for job in facts.jobs:
        if job.started_at_s and job.ended_at_s and job.ended_at_s < job.started_at_s:
            backwards.append(f"job {job.job} by {job.started_at_s - job.ended_at_s:.0f} s")
        if job.nodes and job.ended_at_s and not job.started_at_s:
            startless.append(f"job {job.job}")
        if max(job.started_at_s or 0, job.ended_at_s or 0) > facts.read_at_s + APART_S:
            ahead.append(f"job {job.job}")
    if backwards:
        yield f"{len(backwards)} runs in the accounting end before they start: {examples(backwards)}."
    if startless:
        yield (
            f"{len(startless)} runs in the accounting have nodes and an end, but no start ({examples(startless)}): "
            "Slurm forgets it of runs that are requeued within seconds."
        )
    if ahead:
        yield f"{len(ahead)} runs in the accounting start or end in the future ({examples(ahead)}): the clocks differ."


def _of_attempts(facts: Facts) -> Iterator[str]:
    wrong = []
    for attempt in facts.attempts:
        t = attempt.times
        order = (t.start_at_s, t.first_step_at_s, t.first_new_step_at_s, t.last_step_at_s, t.end_at_s)
        known = [at_s for at_s in order if at_s is not None]
        if any(later < earlier - APART_S for earlier, later in pairwise(known)):
            wrong.append(f"job {t.job} restart {t.restart}")
    if wrong:
        yield (
            f"{len(wrong)} attempts have times that go backwards ({examples(wrong)}): a clock was set, or those of the "
            "machines differ."
        )
    closed = [i for i in facts.incidents if i.closed_at_s is not None and i.closed_at_s < i.opened_at_s - APART_S]
    if closed:
        yield f"{len(closed)} incidents end before they begin: {examples([i.id for i in closed])}."


def _without_end(runs: dict[int, list[RanJob]]) -> Iterator[str]:
    endless = [
        f"job {one.job}"
        for several in runs.values()
        for one, after in pairwise(several)
        if one.user == after.user and one.started_at_s and one.ended_at_s is None and after.started_at_s
    ]
    if endless:
        yield (
            f"{len(endless)} runs have no end in the accounting, though their jobs ran again ({examples(endless)}). "
            "Check: sacctmgr show runawayjobs"
        )


def _compared(facts: Facts, runs: dict[int, list[RanJob]]) -> Iterator[str]:
    """Compare the journal's supervised jobs with the accounting, and yield a sentence for each contradiction."""
    missing, apart = [], []
    known_from_s = min((job.ended_at_s for job in facts.jobs if job.ended_at_s), default=facts.read_at_s)
    for attempt in _first_of_each_run(facts.attempts):
        begun_s = attempt.times.start_at_s
        starts = [job.started_at_s for job in runs.get(attempt.job_id, ()) if job.started_at_s]
        nearest_s = min(starts, key=lambda at_s, begun_s=begun_s: abs(at_s - begun_s)) if starts else None  # type: ignore[misc]
        if attempt.job_id not in runs:
            missing.append(attempt)
        # Of a run that began before this time, the attempt may be a restart in place.
        elif nearest_s is not None and abs(nearest_s - begun_s) > APART_S and nearest_s >= facts.from_s:
            apart.append(f"job {attempt.times.job} by {abs(nearest_s - begun_s):.0f} s")
    if apart:
        yield f"The journal and the accounting differ in the starts of {len(apart)} runs: {examples(apart)}."
    if missing:
        names = examples([f"job {a.times.job}" for a in missing])
        older = all((a.times.end_at_s or facts.read_at_s) < known_from_s for a in missing)
        purged = (
            f"they were purged: it has nothing before {utc(known_from_s)}" if older else "they were purged, or not sent"
        )
        yield f"The accounting lacks {len(missing)} supervised runs ({names}): {purged}."


def _first_of_each_run(attempts: Sequence[SupervisedAttempt]) -> list[SupervisedAttempt]:
    """Restarts in place belong to a run that had begun before them: only its first attempt began with it."""
    first: dict[tuple[int, int, str], SupervisedAttempt] = {}
    for attempt in sorted(attempts, key=lambda a: a.times.start_at_s):
        first.setdefault((attempt.job_id, attempt.times.restart, attempt.user), attempt)
    return list(first.values())
