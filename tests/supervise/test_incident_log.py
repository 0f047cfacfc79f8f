"""How many suspicions a job may trip before they are no news, and what stands on a page when its line is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.config import Config
from slurm_robust.supervise.incident import incident_page
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_log import Book
from slurm_robust.supervise.supervisor import Supervisor, whence


def test_a_job_that_trips_a_suspicion_every_minute_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve that came to nothing are enough for an hour, which is said once, with what to do about it."""
    clock = [1_000_000.0]
    monkeypatch.setattr("slurm_robust.supervise.incident.incident_log.time.time", lambda: clock[0])
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


def test_the_page_is_written_when_its_line_is_told(tmp_path: Path) -> None:
    """Who waits for `resumed` in the story reads the incident next: its last times stand there by then."""
    page, seen = tmp_path / "5-r0-1" / "incident.json", list[dict[str, Any]]()

    class Reader(Folder):
        def tell(self, kind: str, text: str, **data: Any) -> None:
            super().tell(kind, text, **data)
            seen.append(json.loads(page.read_text())["times"] if page.exists() else {})

    async def say(**_: Any) -> None:
        pass

    folder = Reader(tmp_path, quiet=True)
    supervisor: Any = SimpleNamespace(
        folder=folder,
        book=Book(SimpleNamespace(config=Config(), folder=folder)),  # type: ignore[arg-type]
        present=SimpleNamespace(
            fleet=SimpleNamespace(mark=lambda _: 0.0, first_step=lambda _: (6, 2000.0), alive=[]), last_sign_s=2001.0
        ),
        start=SimpleNamespace(step=5),
        roads=SimpleNamespace(lineage=SimpleNamespace(reached=10), so_far=SimpleNamespace(reached=10)),
        beginning=SimpleNamespace(first=6, started_over=-1),
        context=SimpleNamespace(say=say),
    )
    record = incident_page.Record("5-r0-1", "5", "5.0.0.0", 1990.0)
    asyncio.run(Supervisor.resumed(supervisor, record, 6))
    assert seen == [{"first_new_step": 2000.0}]


@pytest.mark.parametrize(
    ("offered", "first", "told"),
    [
        (20, 21, "step 20 (verified checkpoint)"),
        (20, 26, "step 20 (verified checkpoint, or something newer)"),
        (-1, 1, "the beginning"),
        (-1, 116, "what the program found by itself"),
        (20, -1, "step 20 (verified checkpoint)"),
        (-1, -1, "a step that was not seen"),
    ],
)
def test_where_training_went_on_from(offered: int, first: int, told: str) -> None:
    """A Checkpointer's memory is newer than any checkpoint that the supervisor knows of: no word says otherwise."""
    assert whence(offered, first) == told
