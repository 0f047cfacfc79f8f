"""What ran: counts and hours are those of a simulated month, and 500,000 rows take seconds."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import DAY_S, HOUR_S, NOW_S, facts_of, incident_row, job_row
from simulated_month import simulated_month

from slurm_robust.daemon.store.attempt_ledger import ClusterSize
from slurm_robust.report.characterise.characterisation import (
    CharacterisationOptions,
    JobWindow,
    characterise,
    characterise_rows,
)
from slurm_robust.report.characterise.job_types import JobTypes
from slurm_robust.report.characterise.published import PUBLISHED, published
from slurm_robust.report.facts import RanJob
from slurm_robust.report.figures.spread import spread


@pytest.mark.parametrize("seed", [1, 2])
def test_a_month_is_that_of_the_truth(seed: int) -> None:
    """Runs by state, GPU hours, waiting, and the use of the cluster."""
    facts, truth = simulated_month(seed, jobs=1200)
    found = characterise(facts)
    assert {group.name: group.runs for group in found.by_state} == dict(truth.jobs_by_state)
    for groups in (found.by_state, found.by_size, found.by_type):
        assert sum(group.runs for group in groups) == len(facts.jobs)
        assert sum(group.share for group in groups) == pytest.approx(1.0)
        assert sum(group.gpu_hours for group in groups) == pytest.approx(found.gpu_hours)
    hours = {group.name: group.gpu_hours for group in found.by_state if group.gpu_hours}
    assert hours == pytest.approx(dict(+truth.gpu_hours_by_state))
    waits = [wait for group in found.by_type for wait in [group.waited_s.n]]
    assert sum(waits) == len(truth.waited_s)
    assert found.by_state[0].waited_s.n > 100
    used = sum(point.in_use * (point.end_at_s - point.begin_at_s) for point in found.usage) / HOUR_S
    assert used == pytest.approx(found.gpu_hours, rel=1e-9)
    assert all(point.capacity == 400 and 0 <= (point.share or 0) <= 1 + 1e-9 for point in found.usage)
    day = sum(hour.in_use or 0.0 for hour in found.hours)
    assert day * 30 == pytest.approx(found.gpu_hours, rel=1e-9)
    assert sum(hour.submitted for hour in found.hours) == found.jobs == 1203
    assert found.node_fails.failures == truth.jobs_by_state["NODE_FAIL"]
    assert found.odd == 0


def test_waiting_is_that_of_the_rows() -> None:
    """All groups together have the median of all rows."""
    facts, truth = simulated_month(3)
    found = characterise(facts, CharacterisationOptions(patterns={"all": "."}))
    (group,) = found.by_type
    assert group.waited_s == spread(truth.waited_s)


def test_types_are_told_by_names_where_they_can_be() -> None:
    """A word within another word does not count."""
    types = JobTypes()
    told = {
        "pretrain-7b": "pretraining",
        "PT_llama": "pretraining",
        "Eval-MMLU": "evaluation",
        "sft": "alignment",
        "debug2": "debugging",
        "attest": "other",
        "optimus": "other",
        "": "other",
        "tokenize": "data",
        "vllm": "serving",
        "x" * 5000 + "eval": "other",
        "srobust-standby-check-n5": "checks by slurm_robust",
        "srobust-recheck-n5": "checks by slurm_robust",
        "my-srobust-pair-test": "debugging",
    }
    assert {name: types.of(name) for name in told} == told
    assert JobTypes({"all": "."}).of("srobust-pair-test-n1-n2") == "checks by slurm_robust"


def test_failures_are_sorted_by_what_broke() -> None:
    """By the incident where there is one, by Slurm's state where that says it; what is only FAILED is unknown."""
    jobs = (
        job_row(0.0, HOUR_S, state="FAILED", job_id=7),
        job_row(0.0, HOUR_S, state="FAILED", job_id=8),
        job_row(0.0, 4 * HOUR_S, state="NODE_FAIL", job_id=9),
        job_row(0.0, HOUR_S, state="OUT_OF_MEMORY", job_id=10),
        job_row(0.0, HOUR_S, state="CANCELLED", job_id=11),
        job_row(0.0, HOUR_S, state="REQUEUED", job_id=12),
        job_row(0.0, None, state="RUNNING", job_id=13),
    )
    incidents = (incident_row(10.0), incident_row(20.0, 1, job_id=12, category="", blame="program"))
    found = characterise(facts_of(jobs=jobs, incidents=incidents))
    rows = {(kind.category, kind.infrastructure): (kind.runs, kind.gpu_hours) for kind in found.failures}
    assert rows == {
        ("gpu_lost", True): (1, 8.0),
        ("unknown", False): (2, 16.0),
        ("node_lost", True): (1, 32.0),
        ("host_oom", False): (1, 8.0),
    }
    assert found.failed_share == pytest.approx(4 / 5)
    assert found.infrastructure_of_failures == pytest.approx(2 / 3)
    assert found.infrastructure_of_gpu_time == pytest.approx(40 / 48)


def test_the_failed_share_that_others_publish_is_of_jobs_with_gpus() -> None:
    """With those that ran out of time, as Acme counts; a third of its jobs had no GPU, and these fail less often."""
    rows = (
        *(job_row(0.0, HOUR_S, state="COMPLETED", gpus=0) for _ in range(6)),
        *(job_row(0.0, HOUR_S, state=state) for state in ("FAILED", "TIMEOUT", "COMPLETED", "CANCELLED")),
    )
    found = characterise(facts_of(jobs=rows))
    assert found.failed_share == pytest.approx(1 / 10)
    assert found.failed_of_gpu_runs == pytest.approx(2 / 4)
    without = characterise(facts_of(jobs=rows[:6]))
    assert (without.failed_share, without.failed_of_gpu_runs) == (0.0, None)


def test_nothing_and_what_cannot_be() -> None:
    """No job: None and a sentence. Times that cannot be true are counted, and never make a negative hour."""
    nothing = characterise(facts_of())
    assert (nothing.runs, nothing.failed_share, nothing.node_fails.rate) == (0, None, None)
    assert nothing.by_state == nothing.by_size == nothing.failures == ()
    assert "accounting" in nothing.sentence
    rows = (
        job_row(DAY_S, DAY_S - 5),
        job_row(DAY_S, DAY_S + HOUR_S, eligible_at_s=DAY_S + 50),
        # Its requeue gave the job a start time.
        job_row(DAY_S, DAY_S + HOUR_S, eligible_at_s=DAY_S + HOUR_S + 1, state="REQUEUED"),
        job_row(None, None, state="PENDING", nodes=()),
        job_row(-DAY_S, 2 * NOW_S, gpus=0, node_count=0),
    )
    found = characterise(facts_of(jobs=rows))
    assert (found.runs, found.odd) == (5, 2)
    assert found.gpu_hours == pytest.approx(16.0)
    assert sum(group.never_started for group in found.by_state) == 1


def test_a_cluster_without_gpus_is_counted_in_nodes() -> None:
    """Use and size classes; no share of GPU time that nobody used."""
    jobs = (job_row(0.0, DAY_S, ("n1", "n2", "n3"), gpus=0),)
    found = characterise(facts_of(jobs=jobs, sizes=(ClusterSize(0.0, "", 6, 0),)))
    assert (found.unit, [group.name for group in found.by_size]) == ("node", ["3–4"])
    assert found.by_state[0].gpu_share is None
    assert (found.usage[0].in_use, found.usage[0].share) == (pytest.approx(3.0), pytest.approx(0.5))


@given(
    st.lists(st.tuples(st.floats(-2, 32), st.floats(0, 5), st.integers(0, 64)), max_size=30), st.integers(-43200, 43200)
)
def test_hours_and_points_add_up(rows: list[tuple[float, float, int]], offset_s: int) -> None:
    """Whatever runs: the day's hours and the window's points hold the same GPU time."""
    jobs = [job_row(day * DAY_S, (day + days) * DAY_S, gpus=gpus) for day, days, gpus in rows]
    window = JobWindow(0.0, NOW_S, ())
    found = characterise_rows(jobs, window, options=CharacterisationOptions(offset_s=float(offset_s)))
    width_s = NOW_S / len(found.usage)
    by_points = sum(point.in_use for point in found.usage) * width_s / HOUR_S
    by_hours = sum(hour.in_use or 0.0 for hour in found.hours) * 30
    assert by_points == pytest.approx(by_hours, rel=1e-6, abs=1e-6)
    if found.unit == "gpu":
        assert by_points == pytest.approx(found.gpu_hours, rel=1e-6, abs=1e-6)


def test_published_figures_say_where_they_come_from() -> None:
    """Each has a source; the same quantity may have several."""
    assert all(figure.source and figure.unit for figure in PUBLISHED)
    assert [figure.value for figure in published("failures_per_1000_node_days")] == [6.5, 2.34]
    assert published("nobody measured this") == ()


def many_rows(count: int) -> Iterator[RanJob]:
    """Rows that are made while they are read."""
    base = vars(job_row(0.0, HOUR_S))
    for number in range(count):
        at_s = number * NOW_S / count
        yield RanJob(**(base | {"started_at_s": at_s, "eligible_at_s": at_s - 9, "name": f"run-{number % 3000}"}))


@pytest.mark.variant
def test_half_a_million_rows_take_seconds() -> None:
    """A variant: it measures, and takes as long as everything else here."""
    tracemalloc.start()
    characterise_rows(many_rows(20_000), JobWindow(0.0, NOW_S, ()))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes / 20_000 < 200
    begun_s = time.monotonic()
    assert characterise_rows(many_rows(500_000), JobWindow(0.0, NOW_S, ())).runs == 500_000
    assert time.monotonic() - begun_s < 30


def test_a_failure_belongs_to_the_run_that_started_then() -> None:
    """The accounting may know nothing of earlier runs: the first one that it has is not the job's first."""
    begin_s = 10 * DAY_S
    incident = incident_row(begin_s + 100, attempt=f"c.5.r3.{begin_s:.0f}", job_id=5, restart=3)
    before = incident_row(begin_s - 100, attempt=f"c.5.r0.{begin_s - HOUR_S:.0f}", job_id=5, category="disk_full")
    run = job_row(begin_s + 1, begin_s + 200, state="FAILED")
    (kind,) = characterise(facts_of(jobs=(run,), incidents=(before, incident))).failures
    assert (kind.category, kind.runs) == ("gpu_lost", 1)
