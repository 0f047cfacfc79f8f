"""`srobust incidents FOLDER`: what a job's owner sees of it without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from diagnosis_material import CUDA, save_incident

from slurm_robust.cli.main import cli


def typed(*words: object) -> Result:
    """`srobust incidents WORDS`."""
    return CliRunner().invoke(cli, ["incidents", *map(str, words)])


def test_a_folder_is_shown_as_an_incident_of_the_journal(tmp_path: Path) -> None:
    """Of an incident, or of a job with all its incidents, the newest first; no daemon is asked."""
    folder = save_incident(tmp_path / "slurm-robust-1234", [CUDA])
    (folder / "report.md").write_text("## Where the ranks stood\n\n```\nmain\n```\n")
    done = typed(folder)
    assert done.exit_code == 0, done.output
    assert "incident 1234-r0-1795228470   job 1234" in done.output
    assert "culprit on n2: rank 3 on n2 ended first" in done.output
    assert "spare in allocation: without n2" in done.output
    assert done.output.endswith("Where the ranks stood\nmain\n")
    save_incident(tmp_path / "slurm-robust-1234", [CUDA], name="1234-r1-1795228999", helped=True)
    shown = typed(folder.parent).output
    assert shown.count("job 1234") == 2
    assert "attempt 1" in shown
    told = json.loads(typed(folder.parent, "--json").stdout)
    assert {i["state"] for i in told} == {"open", "closed"}
    assert told[0]["plan"]["evict"] == ["n2"]


def test_a_folder_without_an_incident_is_said(tmp_path: Path) -> None:
    """With what a folder needs."""
    done = typed(tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path}: no incident in it" in done.output
