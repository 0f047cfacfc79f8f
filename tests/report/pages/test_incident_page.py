"""An incident's own page: what its folder and the journal say, escaped, and what cannot be read as sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from example_pages import AT_S, HOSTILE, INCIDENT, incident, incident_folder
from html_reading import PageReader

from slurm_robust.cli.commands import incidents
from slurm_robust.cli.diagnosis.incident_files import read_sources
from slurm_robust.cli.main import cli
from slurm_robust.localize.evidence import Evidence
from slurm_robust.report.pages.incident_assemble import IncidentSources, incident_view, stages_of, tables_of_test
from slurm_robust.report.pages.incident_page import incident_html
from slurm_robust.report.pages.incident_view import IncidentView, RankActivity
from slurm_robust.report.pages.rank_rows import rank_rows, states_of

JOURNAL: dict[str, Any] = {
    "id": INCIDENT,
    "job": "1234",
    "user": "ada",
    "mode": "act",
    "outcome": "resumed",
    "reason": "step 1201",
    "opened_at_s": AT_S,
    "attempt": {"cluster": "dev"},
    "times": {"accepted": AT_S + 11.4},
    "plan": {"road": "seat", "standby": ["n0009"], "seat": "srobust-seat-1234", "time_limit_min": None},
    "actions": [{"kind": "requeue", "target": "1234", "called_at_s": AT_S + 12, "done_at_s": None, "error": ""}],
}


def read(folder: Path, journal: dict[str, Any] | None = None) -> IncidentView:
    """The view of a folder, as the command makes it."""
    return incident_view(read_sources(folder, journal or {}, folder.parent / "x.html"), AT_S + 99, 0)


def test_everything_in_the_folder_is_on_the_page(tmp_path: Path) -> None:
    """Verdict, plan, stages, ranks, stacks, tests, story, and links that work."""
    folder = incident_folder(tmp_path)
    view = read(folder, JOURNAL)
    page = PageReader(incident_html(view)).check()
    for wanted in (
        "Culprit: rank 17 on n0002",
        "n0002 is left out",
        "gpu 3 computed other bits",
        "seat: without n0002",
    ):
        assert wanted in page.text
    for wanted in ("srobust-seat-1234", "ada", "all_reduce", "n0003: no answer", "▶"):
        assert wanted in page.text
    assert {n.key: n.value for n in view.numbers} == {
        "back_s": 58.0,
        "noticed_s": pytest.approx(10.1),
        "decided_s": pytest.approx(5.1),
        "ranks": 32,
    }
    assert [round(s.end_s - s.begin_s, 1) for s in view.stages][:4] == [10.1, 0.9, 4.0, 0.2]
    assert "daemon decided" in [s.label for s in view.stages]
    links = [str(attrs["href"]) for tag, attrs in page.tags if tag == "a" and str(attrs["href"]).startswith("./")]
    assert len(links) == len(view.files) == 7
    assert all((folder.parent / link).is_file() for link in links)


def test_a_plan_that_the_daemon_only_recorded_stands_there_once(tmp_path: Path) -> None:
    """The road and the reason of a restart that the job made by itself."""
    folder = incident_folder(tmp_path)
    plan = json.loads((folder / "incident.json").read_text())["plan"]
    same = {**JOURNAL, "plan": {"road": plan["road"], "reason": plan["reason"], "seat": "srobust-seat-1234"}}
    text = PageReader(incident_html(read(folder, same))).check().text
    assert "daemon: seat" in text
    assert "daemon: road" not in text
    assert "daemon: reason" not in text


def test_each_rank_has_its_state(tmp_path: Path) -> None:
    """By the last capture, with who ended and who did not answer; laid out by pipeline stage."""
    evidence = read_sources(incident_folder(tmp_path), {}, tmp_path / "x").evidence
    assert evidence is not None
    states = states_of(evidence)
    assert states[17] is RankActivity.ELSEWHERE
    assert states[5] is RankActivity.HELD
    assert states[9] is RankActivity.ENDED
    assert states[30] is RankActivity.MISSING
    assert states[0] is states[1] is RankActivity.WAITS
    rows, told = rank_rows(evidence, frozenset({17}))
    assert [row.label for row in rows] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert all(len(group) == 2 for row in rows for group in row.groups)
    assert [c.label for row in rows for group in row.groups for c in group if c.suspect] == ["17"]
    assert "tp = 2, dp = 4, pp = 4" in told


def test_many_ranks_are_shown_by_their_groups() -> None:
    """Of 100,000 ranks a cell is a node, and the worst of its ranks is seen."""
    where = {rank: f"n{rank // 8:05}" for rank in range(100_000)}
    rows, told = rank_rows(Evidence(100_000, where), frozenset({81_234}))
    cells = [cell for row in rows for group in row.groups for cell in group]
    assert len(cells) == 12_500
    assert "a cell is a whole group" in told
    assert [cell.hint.split(":")[0] for cell in cells if cell.suspect] == ["ranks 81232-81239 on n10154"]


def test_hostile_words_stay_text(tmp_path: Path) -> None:
    """In verdict, plan, story, tests and names of files."""
    folder = incident_folder(tmp_path, words=HOSTILE.replace("\x00", "").replace("\ud800", ""))
    (folder / "javascript:alert(1)").write_text("")
    (folder / '"><img src=x>\u202e').write_text("")
    journal = {**JOURNAL, "user": HOSTILE, "reason": HOSTILE, "plan": {"road": HOSTILE, "evict": [HOSTILE]}}
    text = incident_html(read(folder, journal))
    page = PageReader(text).check()
    assert not {tag for tag, _ in page.tags} & {"img", "iframe"}
    assert "<script>alert(1)</script>" in page.text
    assert not [c for c in text if c != "\n" and not c.isprintable()]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Half-written files, a link out of the folder, a pipe, no folder at all."""
    folder = incident_folder(tmp_path)
    (tmp_path / "secret").write_text('{"verdict": "SECRET"}')
    (folder / "tests-2.json").symlink_to(tmp_path / "secret")
    (folder / "tests-3.json").write_text('{"verdict": ')
    (tmp_path / "words").write_text("root:SECRET words")
    for name in ("layout.txt", "rank-7.txt", "ras-7.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "words")
    os.mkfifo(folder / "tests-4.json")
    (folder / "stacks-1" / "n0001.json.gz").write_bytes(b"\x1f\x8b half")
    with (folder.parent / "story.jsonl").open("a") as story:
        story.write('{"at_s": 1e999, "incident": 7}\n[]\nnot json\n')
    page = PageReader(incident_html(read(folder))).check()
    assert "SECRET" not in page.text
    assert "layout.txt: cannot be read: it is a link, and links are not followed" in page.text
    assert "tests-3.json: 1 of its lines are no JSON" in page.text
    assert "n0001.json.gz" in page.text
    gone = PageReader(incident_html(read(tmp_path / "gone", JOURNAL))).check()
    assert "cannot be read from here: only the daemon's journal is shown" in gone.text
    assert "srobust-seat-1234" in gone.text
    (folder / "incident.json").write_text('{"id": 7')
    assert "not an incident" in PageReader(incident_html(read(folder))).check().text


def test_stamps_that_cannot_be_true_are_told() -> None:
    """A clock that was years off is not drawn, and one that ran backwards is said."""
    stages, doubts = stages_of({"fault": AT_S, "suspected": AT_S + 5, "running": AT_S + 4e8, "nonsense": 7.0})
    assert [stage.label for stage in stages] == ["until it was suspected"]
    assert "a clock was wrong" in doubts[0]
    _, doubts = stages_of({"fault": AT_S + 9, "suspected": AT_S})
    assert "clocks of its nodes differ" in doubts[0]
    assert stages_of({}) == ((), ())
    assert incident_html(incident_view(IncidentSources(journal={"times": {"fault": 1e400}}), AT_S, 0))


def test_odd_tests_are_shown_as_far_as_they_go() -> None:
    """A file of another version, or of somebody else."""
    tables = tables_of_test({"findings": "x", "nodes": 7, "stages": [{"name": "a", "took_s": "long"}, 3]}, 1)
    assert [table.rows for table in tables] == [(("", "", "", "nothing was found"),), (("a", None),)]


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """From an incident's folder, and the newest from a job's; elsewhere it says what to name."""
    folder = incident_folder(tmp_path)
    for named in (folder, folder.parent):
        out = tmp_path / "page.html"
        done = CliRunner().invoke(cli, ["incidents", str(named), "--html", str(out)])
        assert done.exit_code == 0, done.output
        assert incident().id in out.read_text()
        out.unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    done = CliRunner().invoke(cli, ["incidents", str(empty), "--html", str(tmp_path / "page.html")])
    assert (done.exit_code, "name a folder that holds incident.json" in done.output) == (1, True)
    done = CliRunner().invoke(cli, ["incidents", str(folder), "--html", str(tmp_path / "no" / "page.html")])
    assert (done.exit_code, "was not written: No such file" in done.output) == (1, True)
    assert CliRunner().invoke(cli, ["incidents", "--html", "x"]).exit_code == 2
    assert not list(tmp_path.glob(".page*"))


def test_an_incident_of_the_journal_is_found_by_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is where the journal says; of a job with several the newest is written, the others named."""
    folder = incident_folder(tmp_path)
    entry = {**JOURNAL, "key": "k1", "report": str(folder.parent), "verdict": {}}
    older = {**entry, "key": "k0", "id": "1234-r0-1"}
    monkeypatch.setattr(incidents, "_load", lambda _: [entry, older])
    site = tmp_path / "robust.yaml"
    site.write_text("mode: act\n")
    out = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["incidents", "1234", "--html", str(out), "--config", str(site)])
    assert done.exit_code == 0, done.output
    assert "the newest of 2 incidents; others: 1234-r0-1" in done.output
    text = PageReader(out.read_text()).check().text
    assert "srobust-seat-1234" in text
    assert "Culprit: rank 17" in text
