"""When does a watch over somebody else's training end?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.slurm.errors import SlurmError
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.launch import attached_step


def scene(tmp_path: Path, answer: Any, *, agents: bool = False, ended: int | None = None) -> Any:
    """A supervisor whose Slurm answers so."""

    def job(ref: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(
        attached=None,
        ended=ended,
        present=SimpleNamespace(fleet=SimpleNamespace(alive=True, ranks={0: object()})),
        agents=SimpleNamespace(running=agents),
        context=SimpleNamespace(client=SimpleNamespace(job=job), ref=None),
        folder=Folder(tmp_path, quiet=True),
    )


def comes(supervisor: Any) -> bool:
    """One look."""
    return asyncio.run(attached_step.End(supervisor).come())


def test_it_ends_with_the_job(tmp_path: Path) -> None:
    """Slurm knows it no more, or as anything but running."""
    assert comes(scene(tmp_path, None))
    assert comes(scene(tmp_path, SimpleNamespace(state="COMPLETED")))
    assert not comes(scene(tmp_path, SimpleNamespace(state="RUNNING")))


def test_an_srun_that_waits_for_us_is_no_end(tmp_path: Path) -> None:
    """Its step has failed, and the script goes on only when we have decided."""
    assert not comes(scene(tmp_path, SimpleNamespace(state="COMPLETED"), ended=137))


def test_a_cluster_that_is_gone_is_not_watched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is waited out; after an hour without anybody's word the watch ends, and says so."""
    gone = scene(tmp_path, SlurmError("no answer"))
    assert not comes(gone)
    monkeypatch.setattr(attached_step, "_GIVE_UP_AFTER_S", 0.0)
    assert comes(gone)
    assert "this watch ends" in (tmp_path / "story.jsonl").read_text()
    assert not comes(scene(tmp_path, SlurmError("no answer"), agents=True))
