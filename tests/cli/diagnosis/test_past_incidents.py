"""Past incidents by the daemon's journal, its snapshot, and the folders of jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from diagnosis_material import AT_S, CUDA, run, save_incident
from llm_server import answers, serving

from slurm_robust.cli.diagnosis.past import journal_incidents, past_incidents
from slurm_robust.cli.diagnosis.saved_incidents import incidents_in
from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import Attempt, Conclusion, Incident, Plan, Road, Suspect, Verdict
from slurm_robust.daemon.store.journal import CLOSED, IncidentRow, Journal
from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.signature import signature


def site(tmp_path: Path) -> Config:
    """A daemon's state folder."""
    return parse(f"daemon: {{state_dir: {tmp_path}/state}}\n")


def row(name: str, outcome: str, *, mode: str = "act", report: str = "") -> IncidentRow:
    """An incident that the daemon answered with a seat."""
    verdict = Verdict(Conclusion.CULPRIT, f"rank 3 died: {CUDA}", (Suspect("n2", (3,), 0.7, "x"),))
    plan = Plan(Road.SEAT, "n2 is at fault", ("n2",))
    attempt = Attempt("c", "1234", 0, 1)
    incident = Incident(name, "1234", attempt.key, AT_S, verdict=verdict, plan=plan, outcome=f"it {outcome}")
    return IncidentRow(
        name, incident, attempt, 1234, "ann", "claim", mode, state=CLOSED, outcome=outcome, report=report
    )


def written(tmp_path: Path, *rows: IncidentRow) -> Config:
    """A site whose daemon has these in its journal."""
    journal = Journal.open(tmp_path / "state")
    for one in rows:
        journal.add_incident(one)
    journal.close()
    return site(tmp_path)


def test_the_journal_says_what_was_done_and_whether_it_helped(tmp_path: Path) -> None:
    """By its outcome; nobody knows where nothing was carried out."""
    config = written(tmp_path, row("a", "resumed"), row("b", "superseded"), row("c", "observed", mode="observe"))
    past = {one.incident: one for one in past_incidents(journal_incidents(config), ())}
    assert {name: one.helped for name, one in past.items()} == {"a": True, "b": False, "c": None}
    assert (past["a"].done, past["a"].nodes, past["a"].outcome) == ("seat without n2", ("n2",), "resumed: it resumed")
    assert past["c"].done == "would have done: seat without n2"
    assert CUDA in past["a"].text


def test_a_cause_comes_from_the_folder_of_the_journals_incident(tmp_path: Path) -> None:
    """The journal's claims have no room for it. One incident is told once, and the one that is diagnosed never."""
    folder = save_incident(tmp_path / "slurm-robust-1234", ["x"], name="a", cause={"signature": "s", "category": "c"})
    config = written(tmp_path, row("a", "resumed", report=str(folder.parent)), row("b", "ended"))
    rows = journal_incidents(config)
    past = past_incidents(rows, incidents_in(folder.parent), without={"b"})
    assert [(one.incident, dict(one.cause)) for one in past] == [("a", {"signature": "s", "category": "c"})]


def test_who_may_not_read_the_journal_reads_the_snapshot(tmp_path: Path) -> None:
    """Whatever stands there: of another version, or garbled."""
    config = site(tmp_path)
    state = tmp_path / "state"
    assert journal_incidents(config) == []
    state.mkdir()
    (state / "state.json").write_text(json.dumps({"incidents": [{"id": "a"}, 7]}))
    assert past_incidents(journal_incidents(config), ()) == []
    (state / "state.json").write_text("[" * 100_000)
    assert journal_incidents(config) == []
    (state / "journal.sqlite").write_bytes(b"no database")
    assert journal_incidents(config) == []


def test_a_model_is_told_of_past_incidents_with_names_masked(tmp_path: Path) -> None:
    """Their line, what was done, and whether it helped; the page shows it before anything is sent."""
    line = "RuntimeError: flux n2 is not aligned: 7"
    (found,) = findings([line])
    cause = {"category": "runtime", "signature": signature(found), "line": line}
    save_incident(tmp_path / "slurm-robust-9", ["x"], name="9-r0-1795228000", cause=cause, helped=True)
    log = tmp_path / "job.out"
    log.write_text(f"{line}\n")
    with serving(answers("storage", 1)) as server:
        config = tmp_path / "robust.yaml"
        config.write_text(json.dumps({"diagnose": {"llm": {"url": server.url, "model": "m", "samples": 1}}}))
        shown = run(log, "--hint-page", "--config", config).stdout
        told = (
            "P1| RuntimeError: flux <name> is not aligned: 7; done: spare in allocation without <name>; training came"
        )
        assert told in shown
        done = run(log, "--hint", "--config", config)
        assert "and 1 past incidents" in done.stderr
        assert told in json.dumps(server.asked, ensure_ascii=False)


def test_an_incident_that_is_open_is_no_success(tmp_path: Path) -> None:
    """Nor a failure."""
    opened = replace(row("a", ""), state="running")
    (past,) = past_incidents(journal_incidents(written(tmp_path, opened)), ())
    assert past.helped is None


def test_a_report_that_may_not_be_read_is_no_page(tmp_path: Path) -> None:
    """The journal's own words count then. A name that is too long fails as a home that is closed does."""
    config = written(tmp_path, row("a", "resumed", report=f"/{'x' * 300}"))
    assert [dict(one.cause) for one in past_incidents(journal_incidents(config), ())] == [{}]


def test_a_jobs_log_does_not_resemble_its_own_newest_incident(tmp_path: Path) -> None:
    """Earlier ones of the job are told: what was done then did not last."""
    (found,) = findings([CUDA])
    cause = {"category": "cuda_error", "signature": signature(found), "line": CUDA}
    names = ("1234-r0-1795228470", "1234-r1-1795228999")
    for place, name in enumerate(names):
        folder = save_incident(tmp_path / "slurm-robust-1234", [CUDA], name=name, cause=cause)
        page = json.loads((folder / "incident.json").read_text())
        (folder / "incident.json").write_text(json.dumps({**page, "opened_at_s": AT_S + place}))
    for log, told in (("slurm-1234.out", names[:1]), ("slurm-123.out", names[::-1])):
        (tmp_path / log).write_text(f"{CUDA}\n")
        shown = json.loads(run(tmp_path / log, "--json").stdout)["resembles"]
        assert [one["incident"] for one in shown] == list(told)
