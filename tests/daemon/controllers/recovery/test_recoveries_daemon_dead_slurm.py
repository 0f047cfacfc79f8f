"""The daemon killed with -9 between two actions of a plan and never started again: the end of it, on real clusters."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from dead_for_good import Times, campaign

pytestmark = [pytest.mark.slurm, pytest.mark.begin_early]


def test_nothing_stays_behind_a_daemon_that_never_comes_back() -> None:
    """The job finishes unheld, each reservation ends in its time, and all nodes are free again.

    Two points side by side: the wrapper has a yes that nobody acts on; the job is in the queue and nobody points it at
    its seat. All ten, also with the times of a real site, are lived through by `scripts/dead-for-good`.
    """
    with tempfile.TemporaryDirectory(prefix="srobust-dead-") as folder:
        Path(folder).chmod(0o755)
        stories = campaign(("answer", "requeue"), Path(folder), Times(), at_once=2)
    assert [story.wrong for story in stories] == [[], []], "\n".join(story.line() for story in stories)
    assert all(story.longest_s > 30 for story in stories), "the seats of both were to be ended by Slurm alone"
