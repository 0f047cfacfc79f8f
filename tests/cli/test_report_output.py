"""`srobust report`: prints, writes, narrows, and says why where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from example_pages import hostile_facts, month_facts

from slurm_robust.cli.commands import report
from slurm_robust.cli.main import cli
from slurm_robust.report.facts import Facts
from slurm_robust.report.narrow import is_empty, of_job, of_user


def typed(monkeypatch: pytest.MonkeyPatch, facts: Facts, *words: str) -> click.testing.Result:
    """What `srobust report WORDS` does with these facts."""
    monkeypatch.setattr(report, "load_facts", lambda _: facts)
    return CliRunner().invoke(cli, ["report", *words])


def test_it_prints_numbers_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For people at a terminal, within its width; hostile names move no cursor."""
    done = typed(monkeypatch, month_facts())
    assert done.exit_code == 0
    assert "How did the cluster do? 2026-03-01 00:00 to 2026-03-31 00:00 UTC" in done.output
    assert "How long does a job run between failures?" in done.output
    assert "srobust report --out report.html" in done.output
    assert max(map(len, done.output.splitlines())) <= 100
    done = typed(monkeypatch, hostile_facts())
    assert done.exit_code == 0
    assert not [c for c in done.output if c != "\n" and not c.isprintable()]


def test_it_writes_each_kind_of_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page, Markdown, JSON: to a file, and the latter two to stdout."""
    out = tmp_path / "out"
    for facts in (month_facts(), hostile_facts()):
        done = typed(monkeypatch, facts, "--out", str(out))
        assert (done.exit_code, done.stdout) == (0, "")
        assert out.read_text().startswith("<!DOCTYPE html>")
        assert typed(monkeypatch, facts, "--markdown", "--out", str(out)).exit_code == 0
        assert out.read_text().startswith("# How did the cluster do?")
        told = json.loads(typed(monkeypatch, facts, "--json").stdout)
        assert told["numbers"]["incidents"] == len(facts.incidents)
    for name, begins in (("x.md", "# How did"), ("x.json", "{"), ("x.html", "<!DOCTYPE html>")):
        assert typed(monkeypatch, month_facts(), "--out", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_text().startswith(begins)
        (tmp_path / name).unlink()
    assert typed(monkeypatch, month_facts(), "--json", "--markdown").exit_code == 2
    done = typed(monkeypatch, month_facts(), "--out", str(tmp_path / "no" / "x.html"))
    assert (done.exit_code, "was not written: No such file or directory" in done.output) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_it_narrows_to_a_job_or_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts of the training, its incidents, and nothing of the others; an unknown one is told what to type."""
    facts = month_facts()
    job = facts.attempts[0]
    told = json.loads(typed(monkeypatch, facts, "--job", job.times.job, "--json").stdout)
    assert told["scope"] == f"job {job.times.job}"
    assert [row["lineage"] for row in told["sections"]["trainings"]["rows"]] == [job.times.lineage]
    mine = [i for i in facts.incidents if i.lineage == job.times.lineage]
    assert told["numbers"]["incidents"] == len(mine)
    assert "standby" not in told["sections"]
    narrowed = of_user(facts, job.user)
    assert {a.user for a in narrowed.attempts} == {j.user for j in narrowed.jobs} == {job.user}
    assert of_job(facts, job.times.lineage).attempts == of_job(facts, str(job.job_id)).attempts != ()
    assert is_empty(of_job(facts, "no such"))
    done = typed(monkeypatch, facts, "--user", "nobody")
    assert (done.exit_code, "nothing is known of user nobody" in done.output) == (1, True)


def test_a_journal_that_was_not_read_is_no_quiet_week(tmp_path: Path) -> None:
    """What nobody looked at is not known: no 0, no "nothing broke"."""
    words = ["report", "--no-accounting", "--journal", str(tmp_path / "nowhere")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0
    assert "Nothing broke" not in done.output
    assert "Nothing was found" not in done.output
    assert "Not known: the daemon's journal was not read." in done.output
    assert "type this there, or name its folder by --journal" in " ".join(done.output.split())
    told = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert told["numbers"]["incidents"] is None
    done = CliRunner().invoke(cli, [*words, "--job", "7"])
    assert (done.exit_code, "The journal was not read" in done.output) == (1, True)


def test_a_site_names_its_own_types_of_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`report.job_types`: its words alone count."""
    site = tmp_path / "robust.yaml"
    site.write_text("report: {job_types: {everything: '.'}}\n")
    told = json.loads(typed(monkeypatch, month_facts(), "--config", str(site), "--json").stdout)
    rows = told["sections"]["jobs"]["rows"]
    assert [row["name"] for row in rows if row["by"] == "type"] == ["everything"]


def test_a_device_is_written_to_and_stays_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--out /dev/stdout` of root must not put a file into that place; a link is written through."""
    (tmp_path / "link").symlink_to(tmp_path / "page")
    assert typed(monkeypatch, month_facts(), "--out", str(tmp_path / "link")).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").read_text().startswith("<!DOCTYPE html>")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "read").open("wb") as read, subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read) as reader:
        assert typed(monkeypatch, month_facts(), "--out", str(tmp_path / "pipe")).exit_code == 0
        assert reader.wait(30) == 0
    assert (tmp_path / "read").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "pipe").is_fifo()
