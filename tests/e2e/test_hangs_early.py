"""Hangs of jobs that are judged by their log lines, and hangs in the first steps of an attempt."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Submit  # type: ignore[import-not-found]

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]

LINES_ONLY = 'SROBUST_PROGRESS=0 srobust run --robust-checkpoint-dir="$PWD/ck"'
"""No rank calls `slurm_robust.progress`: all that is known of the training's progress is its log lines."""


@pytest.mark.variant
def test_our_own_story_in_the_jobs_output_is_no_progress(cluster: Cluster, submit: Submit) -> None:
    """A rank stays in D state, and our story, which names steps, is written into the very file that we read.

    The incident must end in an action, and never in "training moves again".
    """
    dev = cluster(standby=0)
    job = submit(dev, nodes=2, fault={"kind": "dead_mount", "rank": 1, "step": 18}, command=LINES_ONLY)
    job.hears("suspected")
    assert "srobust: " in job.output(), "the story does not stand in the job's output: this test tests nothing"
    decided = job.hears("decided", 90)
    assert "rank 1" in decided["text"], job.everything()
    # Before the fault a busy machine may have paused for longer than the limit; after it nothing can have moved.
    struck = re.search(r"fault: dead_mount at step \d+ at ([\d.]+)", job.output())
    assert struck is not None, job.everything()
    assert not [line for line in job.told("cleared") if line["at_s"] > float(struck[1])], job.everything()
    assert decided["at_s"] - float(struck[1]) < 90, job.everything()
    job.hears("resumed", 90)
    assert job.ends(120).state == "COMPLETED", job.everything()


@pytest.mark.parametrize("command", ["", pytest.param(LINES_ONLY, marks=pytest.mark.variant)])
def test_a_dead_mount_in_the_first_steps_is_acted_on(cluster: Cluster, submit: Submit, command: str) -> None:
    """Three steps say nothing about how long one takes, but D state is strong evidence by itself."""
    dev = cluster(standby=0, supervise={"quiet_capture_interval_s": 4.0})
    job = submit(dev, nodes=2, fault={"kind": "dead_mount", "rank": 1, "step": 3}, command=command)
    assert "rank 1" in job.hears("decided", 90)["text"], job.everything()
    job.hears("resumed", 90)
    assert job.ends(120).state == "COMPLETED", job.everything()


@pytest.mark.variant
def test_a_loader_that_hangs_at_the_second_step_is_found_by_looks_at_the_stacks(
    cluster: Cluster, submit: Submit
) -> None:
    """Before an attempt has its own p99, its stacks are looked at every `quiet_capture_interval_s`."""
    dev = cluster(standby=0, supervise={"quiet_capture_interval_s": 4.0})
    job = submit(dev, nodes=2, fault={"kind": "loader_hang", "rank": 1, "step": 3})
    assert "rank 1" in job.hears("decided", 150)["text"], job.everything()
    job.hears("resumed", 90)
    assert job.ends(120).state == "COMPLETED", job.everything()
