"""What incidents' folders say, however hostile their owner."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fact_worlds import BEGIN_S, incident_folder, incident_row, journal_with

from slurm_robust.report.facts import ClosedIncident
from slurm_robust.report.sources import folders, journal

CAUSE = {"category": "gpu_fault", "blame": "node", "line": "CUDA error"}


@pytest.fixture
def incident(tmp_path: Path) -> ClosedIncident:
    """An incident `a` whose job's folder is `job`."""
    journal_with(tmp_path / "state", [incident_row("a", BEGIN_S, str(tmp_path / "job"))]).close()
    return journal.read(tmp_path / "state", BEGIN_S, BEGIN_S + 10, BEGIN_S + 10).incidents[0]


def read(*incidents: ClosedIncident) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Category and blame of each, and the doubts."""
    found, doubts = folders.with_causes(incidents, lambda: 0.0)
    return [(one.category, one.blame) for one in found], doubts


def test_what_broke(incident: ClosedIncident, tmp_path: Path) -> None:
    """Category and blame; without a cause, or in another form, they stay empty."""
    path = incident_folder(tmp_path / "job", "a", CAUSE)
    assert read(incident) == ([("gpu_fault", "node")], ())
    for text in ('{"cause": {}}', '{"cause": ["x"]}', "[]", '{"cause": {"category": "<b>", "blame": "me"}}'):
        path.write_text(text)
        assert read(incident) == ([("", "")], ())


def test_a_folder_is_never_left(incident: ClosedIncident, tmp_path: Path) -> None:
    """A link, a pipe, a folder, a file that is too large or no JSON, an id with a path: skipped and counted."""
    path = incident_folder(tmp_path / "job", "a", CAUSE)
    secret = path.rename(tmp_path / "secret.json")
    path.symlink_to(secret)
    assert read(incident)[1][0].startswith("The folder of 1 incident cannot be read")
    path.unlink()
    os.mkfifo(path)
    assert len(read(incident)[1]) == 1
    path.unlink()
    path.mkdir()
    assert len(read(incident)[1]) == 1
    path.rmdir()
    path.write_text("[" * 100_000)
    assert len(read(incident)[1]) == 1
    with path.open("wb") as large:
        large.truncate(folders.MAX_BYTES + 1)
    assert len(read(incident)[1]) == 1
    incident_folder(tmp_path / "other", "b", CAUSE)
    assert len(read(replace(incident, id="../other/b"))[1]) == 1
    (tmp_path / "job" / "link").symlink_to(tmp_path / "other" / "b")
    assert len(read(replace(incident, id="link"))[1]) == 1


def test_a_slow_file_system_costs_bounded_time(incident: ClosedIncident, tmp_path: Path) -> None:
    """The newest first; the rest is counted."""
    many = tuple(replace(incident, key=f"k{n}", id=f"i{n}") for n in range(20))
    for one in many:
        incident_folder(tmp_path / "job", one.id, CAUSE)
    clock = itertools.count(step=2)
    found, doubts = folders.with_causes(many, lambda: float(next(clock)))
    assert [bool(one.category) for one in found] == [False] * 15 + [True] * 5
    assert "15 older incidents" in doubts[0]
