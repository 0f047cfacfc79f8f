"""The accounting day by day: each run once."""

from __future__ import annotations

from fact_worlds import BEGIN_S, DAY_S, FakeAccounting, past_run
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.report.facts import RanJob
from slurm_robust.report.sources import accounting

SPANS = st.lists(
    st.tuples(st.integers(-200_000, 400_000), st.integers(0, 400_000), st.booleans()), min_size=1, max_size=20
)


def read(client: FakeAccounting, to_s: float, now_s: float | None = None) -> tuple[tuple[RanJob, ...], tuple[str, ...]]:
    """All of the time from the begin on."""
    found = accounting.read(client, BEGIN_S, to_s, now_s or to_s, lambda: 0.0)
    assert found.whole == (len(client.asked) <= client.error_after)
    return found.jobs, found.doubts


@given(SPANS, st.integers(1, 400_000))
def test_each_run_counts_once(spans: list[tuple[int, int, bool]], lasts_s: int) -> None:
    """Whatever it spans, and wherever its end lies; nothing that overlaps with the time is left out."""
    at_s = int(BEGIN_S)
    runs = [
        past_run(
            number, eligible_at_s=at_s + a, started_at_s=at_s + a, ended_at_s=None if endless else at_s + a + lasted
        )
        for number, (a, lasted, endless) in enumerate(spans, start=1)
    ]
    jobs, doubts = read(FakeAccounting(runs), BEGIN_S + lasts_s)
    ids = [job.job_id for job in jobs]
    assert len(set(ids)) == len(ids)
    inside = {
        run.job_id
        for run in runs
        if run.eligible_at_s < BEGIN_S + lasts_s and (run.ended_at_s is None or run.ended_at_s >= BEGIN_S)  # type: ignore[operator]
    }
    assert inside <= set(ids)
    assert not doubts


def test_no_answer_is_large() -> None:
    """A day for each call; the last one looks ahead for what waits for its requeue, where the time ends now."""
    client = FakeAccounting([])
    read(client, BEGIN_S + 3.5 * DAY_S)
    assert len(client.asked) == 4
    assert all(to_s - from_s <= DAY_S + 2 for from_s, to_s in client.asked[:-1])
    assert client.asked[-1][1] >= BEGIN_S + 3.5 * DAY_S + 600
    past = FakeAccounting([])
    read(past, BEGIN_S + 10, BEGIN_S + DAY_S)
    assert past.asked == [(int(BEGIN_S) - 1, int(BEGIN_S) + 11)]


def test_an_error_keeps_what_was_read() -> None:
    """And says from when on it is missing, in one line."""
    client = FakeAccounting([past_run(1), past_run(2, ended_at_s=int(BEGIN_S + 2 * DAY_S))], error_after=1)
    jobs, doubts = read(client, BEGIN_S + 3 * DAY_S)
    assert [job.job_id for job in jobs] == [1]
    assert len(doubts) == 1
    assert "from 2026-09-22 14:13:20 UTC on" in doubts[0]
    assert "Problem talking to the database: Connection refused" in doubts[0]
    jobs, doubts = read(FakeAccounting([], error_after=0), BEGIN_S + DAY_S)
    assert jobs == ()
    assert "Jobs that are not supervised are missing" in doubts[0]


def test_runs_of_a_requeued_job_are_numbered() -> None:
    """In the order of their starts; an id that somebody else had before is another job."""
    at_s = int(BEGIN_S)
    runs = [past_run(7, started_at_s=at_s + 500, ended_at_s=at_s + 700), past_run(7), past_run(7, user="bob")]
    jobs, _ = read(FakeAccounting(runs), BEGIN_S + DAY_S)
    assert sorted((job.user, job.started_at_s, job.restart) for job in jobs) == [
        ("ann", at_s, 0),
        ("ann", at_s + 500, 1),
        ("bob", at_s, 0),
    ]


def test_gpus_that_nobody_tracks_are_a_doubt() -> None:
    """With the line that slurm.conf lacks."""
    jobs, doubts = read(FakeAccounting([past_run(1, gpus=0)]), BEGIN_S + 10)
    assert len(jobs) == 1
    assert "AccountingStorageTRES=gres/gpu" in doubts[0]


def test_runs_that_cannot_be_read_are_missing_and_told() -> None:
    """Each once, whatever number of days they span; the other runs count."""
    client = FakeAccounting([past_run(1)], unread={"past_runs": ["job 7: in another form", "job 9: in another form"]})
    jobs, doubts = read(client, BEGIN_S + 3 * DAY_S)
    assert [job.job_id for job in jobs] == [1]
    assert len(doubts) == 1
    assert "job 7: in another form, job 9: in another form" in doubts[0]
