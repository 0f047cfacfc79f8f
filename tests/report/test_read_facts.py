"""All sources together: what they agree on, and in words what they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fact_worlds import (
    BEGIN_S,
    DAY_S,
    FakeAccounting,
    add_attempt,
    incident_folder,
    incident_row,
    journal_with,
    past_run,
)

from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.reliability import time_back_s
from slurm_robust.report.read import FactSources, read_facts
from slurm_robust.slurm.client import PastRun

AT = int(BEGIN_S)


def read(state: Path | None, *runs: PastRun, cluster: str = "", error_after: int | None = None) -> Facts:
    """The facts of the day; without runs there is no accounting, unless `error_after` is given."""
    client = FakeAccounting(list(runs)) if runs or error_after is not None else None
    if client is not None and error_after is not None:
        client.error_after = error_after
    return read_facts(FactSources(state, client, cluster), BEGIN_S, BEGIN_S + DAY_S, BEGIN_S + DAY_S)


def test_sources_that_agree_leave_no_doubt(tmp_path: Path) -> None:
    """Two attempts of one run, as a restart in place makes them, and an incident with its cause and its size."""
    incident_folder(tmp_path / "job", "a", {"category": "gpu_fault", "blame": "node"})
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 300, str(tmp_path / "job"))])
    add_attempt(journal, end_at_s=BEGIN_S + 310)
    add_attempt(journal, start_at_s=BEGIN_S + 320, first_step_at_s=None, end_at_s=BEGIN_S + 600)
    facts = read(tmp_path, past_run(7, ended_at_s=AT + 600), past_run(8))
    assert facts.doubts == ()
    (incident,) = facts.incidents
    assert (incident.category, incident.nodes, incident.gpus) == ("gpu_fault", 2, 16)
    assert [job.job_id for job in facts.jobs] == [7, 8]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([past_run(7, started_at_s=AT + 3)], "differ in the starts of 1 runs: job 7 by 3 s"),
        ([past_run(8)], "lacks 1 supervised runs (job 7)"),
        ([past_run(7), past_run(8, started_at_s=AT + 50, ended_at_s=AT + 20)], "end before they start: job 8 by 30 s"),
        ([past_run(7), past_run(8, started_at_s=None)], "no start (job 8)"),
        ([past_run(7, ended_at_s=AT + 900_000)], "in the future (job 7)"),
        ([past_run(7, ended_at_s=None), past_run(7, started_at_s=AT + 50)], "have no end in the accounting"),
    ],
)
def test_what_does_not_add_up_is_told_and_kept(tmp_path: Path, runs: list[PastRun], words: str) -> None:
    """Each time stays as its source has it."""
    add_attempt(journal_with(tmp_path))
    facts = read(tmp_path, *runs)
    assert len([doubt for doubt in facts.doubts if words in doubt]) == 1, facts.doubts
    found = sorted((job.job_id, job.started_at_s or 0, job.ended_at_s or 0) for job in facts.jobs)
    assert found == sorted((run.job_id, run.started_at_s or 0, run.ended_at_s or 0) for run in runs)


def test_starts_that_differ_by_two_seconds_are_the_same(tmp_path: Path) -> None:
    """Both sources round."""
    add_attempt(journal_with(tmp_path))
    assert read(tmp_path, past_run(7, started_at_s=AT + 2)).doubts == ()


def test_purged_jobs_are_told_with_the_time(tmp_path: Path) -> None:
    """The accounting begins after the journal."""
    add_attempt(journal_with(tmp_path), end_at_s=BEGIN_S + 50)
    facts = read(tmp_path, past_run(99, eligible_at_s=AT + 5000, started_at_s=AT + 5000, ended_at_s=AT + 6000))
    assert "purged: it has nothing before 2026-09-21 15:53:20 UTC" in facts.doubts[0]


def test_an_accounting_without_any_job_is_told(tmp_path: Path) -> None:
    """But not one that did not answer: what it lacks is not known then."""
    add_attempt(journal_with(tmp_path), end_at_s=BEGIN_S + 50)
    assert ["lacks 1 supervised runs" in doubt for doubt in read(tmp_path, error_after=1).doubts] == [True]
    assert ["was not read" in doubt for doubt in read(tmp_path, error_after=0).doubts] == [True]


def test_clocks_that_differ_in_the_journal(tmp_path: Path) -> None:
    """An attempt whose first step is before its start, an incident that ends before it begins."""
    early = replace(incident_row("a", BEGIN_S + 300), closed_at_s=BEGIN_S + 200)
    add_attempt(journal_with(tmp_path, [early]), first_step_at_s=BEGIN_S - 60)
    assert [doubt.split("(")[0].strip() for doubt in read(tmp_path).doubts] == [
        "1 attempts have times that go backwards",
        "1 incidents end before they begin: a.",
    ]


@pytest.mark.parametrize(
    ("reason", "after_s", "category"),
    [
        ("srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:3b:00 (seen as job 7 ended)", 9, "gpu_lost"),
        ("srobust: XID 79 on GPU 3", -30, "gpu_lost"),
        ("srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:3b:00", 4000, ""),
        ("srobust: XID 31 (GPU memory page fault) on GPU 0000:3b:00", 9, ""),
        ("srobust: something of which no rule knows", 9, ""),
    ],
)
def test_a_drain_tells_what_the_job_did_not_know(tmp_path: Path, reason: str, after_s: float, category: str) -> None:
    """A hang whose XID a check found as the job ended; not one of an hour later, nor one that programs cause, too."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 300)])
    add_attempt(journal, end_at_s=BEGIN_S + 310)
    (evicted,) = read(tmp_path).incidents[0].evict
    NodeLedger(journal).drained(evicted, BEGIN_S + 300 + after_s, reason)
    (incident,) = read(tmp_path).incidents
    assert (incident.category, incident.blame) == (category, "node" if category else "")


def test_a_drain_for_nothing_tells_nothing(tmp_path: Path) -> None:
    """A person took it back: it must not count against the node by another name."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 300)])
    add_attempt(journal, end_at_s=BEGIN_S + 310)
    (evicted,) = read(tmp_path).incidents[0].evict
    ledger = NodeLedger(journal)
    ledger.drained(evicted, BEGIN_S + 309, "srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:3b:00")
    ledger.drain_ended(evicted, BEGIN_S + 600)
    facts = read(tmp_path)
    assert [drain.reverted for drain in facts.drains] == [True]
    assert (facts.incidents[0].category, facts.incidents[0].blame) == ("", "")


@pytest.mark.parametrize(
    ("again", "new_s"),
    [
        ([[1380.0, 1500.0]], 1500.0),
        ([[1380.0, None]], None),
        ([], None),
        ([[1380.0, 1500.0], [1800.0, 1900.0]], 1500.0),
    ],
)
def test_time_is_back_when_lost_steps_are_made_again(tmp_path: Path, again: list[list[float]], new_s: float) -> None:
    """A supervisor stamps the first step after the fault; when all that was lost is made again, its report tells."""
    pairs = [[None if t is None else BEGIN_S + t for t in pair] for pair in again]
    row = incident_row("a", BEGIN_S + 1300)
    row.incident.times.update(first_new_step=BEGIN_S + 1380.2)  # type: ignore[attr-defined]
    add_attempt(journal_with(tmp_path, [row]), restarts_within=json.dumps(pairs), end_at_s=BEGIN_S + 2000)
    (incident,) = read(tmp_path).incidents
    assert incident.times["first_step"] == pytest.approx(BEGIN_S + 1380, abs=0.3)
    assert incident.times.get("first_new_step") == (None if new_s is None else BEGIN_S + new_s)
    assert time_back_s(incident) == (None if new_s is None else new_s - 1295)


def test_a_step_that_was_waited_for_is_the_new_one(tmp_path: Path) -> None:
    """A program that started over is stamped when it has come as far as before: its next attempt tells of both."""
    row = incident_row("a", BEGIN_S + 300)
    row.incident.times.update(first_new_step=BEGIN_S + 900)  # type: ignore[attr-defined]
    journal = journal_with(tmp_path, [row])
    add_attempt(journal, end_at_s=BEGIN_S + 310)
    began = {"start_at_s": BEGIN_S + 320, "first_step_at_s": BEGIN_S + 350, "first_new_step_at_s": BEGIN_S + 900}
    add_attempt(journal, restart=1, **began)
    (incident,) = read(tmp_path).incidents
    assert (incident.times["first_step"], incident.times["first_new_step"]) == (BEGIN_S + 350, BEGIN_S + 900)


def test_one_cluster_alone(tmp_path: Path) -> None:
    """A database may hold several."""
    journal = journal_with(tmp_path, [incident_row("a", BEGIN_S + 300)])
    add_attempt(journal)
    add_attempt(journal, cluster="other", job_id=70)
    runs = (past_run(7), past_run(70, cluster="other"))
    facts = read(tmp_path, *runs, cluster="other")
    assert (facts.cluster, len(facts.incidents), len(facts.attempts), len(facts.jobs)) == ("other", 0, 1, 1)
    assert len(read(tmp_path, *runs).jobs) == 2
    assert read(None, past_run(7)).cluster == "c"


def test_a_cluster_that_nobody_knows_is_told(tmp_path: Path) -> None:
    """With those that there are: a name is easily mistyped."""
    add_attempt(journal_with(tmp_path))
    (doubt,) = read(tmp_path, cluster="atlsa").doubts
    assert doubt == "Nothing is known of a cluster atlsa in this time; the sources have c."


def test_no_source_at_all() -> None:
    """Empty, and no error."""
    assert read(None) == Facts(BEGIN_S, BEGIN_S + DAY_S, BEGIN_S + DAY_S)
