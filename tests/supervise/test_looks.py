"""Quiet looks, without a cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slurm_robust.config import Config
from slurm_robust.supervise.folder import Folder
from slurm_robust.supervise.looks import Looks
from slurm_robust.supervise.present import Present


def scene(tmp_path: Path, *, silent: tuple[str, ...] = ()) -> tuple[Any, Looks]:
    """An attempt that was launched ten minutes ago, and of which no rank was ever seen."""
    present = Present("5.0.1.1", ("n1", "n2"), job_id=5, layout={}, paths=(), log_pattern="")
    present.began_at_s = time.time() - 600
    supervisor: Any = SimpleNamespace(
        present=present,
        config=Config(),
        folder=Folder(tmp_path, quiet=True),
        context=SimpleNamespace(ref=SimpleNamespace(job_id=5)),
        silent_nodes=list(silent),
        ended=None,
    )
    return supervisor, Looks(supervisor, present.began_at_s)


def told(tmp_path: Path) -> str:
    """The story so far."""
    story = tmp_path / "story.jsonl"
    return story.read_text() if story.exists() else ""


def test_a_step_that_never_gets_a_rank_is_said_once(tmp_path: Path) -> None:
    """It may wait for another step, or for an image: nothing is done, and the log says where to look."""
    _, looks = scene(tmp_path)
    for _ in range(3):
        assert asyncio.run(looks.due()) is None
    assert told(tmp_path).count("no rank has been seen in 10 min") == 1
    assert "squeue --steps --jobs 5" in told(tmp_path)


def test_nodes_without_an_agent_are_named_beside_it(tmp_path: Path) -> None:
    """Then it is no waiting step: the nodes themselves do not answer."""
    _, looks = scene(tmp_path, silent=("n2",))
    asyncio.run(looks.due())
    assert "no agent answers on n2" in told(tmp_path)


def test_a_step_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Its exit is another matter."""
    supervisor, looks = scene(tmp_path)
    supervisor.ended = 1
    asyncio.run(looks.due())
    assert told(tmp_path) == ""
