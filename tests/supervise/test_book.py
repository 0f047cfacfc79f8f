"""How many suspicions a job may trip before they are no news."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_robust.config import Config
from slurm_robust.supervise.book import Book
from slurm_robust.supervise.folder import Folder


def test_a_job_that_trips_a_suspicion_every_minute_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve that came to nothing are enough for an hour, which is said once, with what to do about it."""
    clock = [1_000_000.0]
    monkeypatch.setattr("slurm_robust.supervise.book.time.time", lambda: clock[0])
    folder = Folder(tmp_path / "story")
    book = Book(SimpleNamespace(config=Config(), folder=folder))  # type: ignore[arg-type]
    looked_into = 0
    for _ in range(180):
        clock[0] += 60
        if not book.full:
            looked_into += 1
            book.came_to_nothing()
    assert looked_into == 3 * 12
    said = [line for line in (tmp_path / "story" / "story.jsonl").read_text().splitlines() if "came to nothing" in line]
    assert len(said) == 3
    assert "progress.phase" in said[0]
