"""Hangs of jobs that are judged by their log lines, and hangs in the first steps of an attempt."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]
from helpers import wait_until

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


MUTE = """
import threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
lock = threading.Lock()
lock.acquire()
if dist.get_rank() == 1:
    lock.acquire()
dist.all_reduce(torch.ones(4))
"""
"""A program that tells nothing of its steps; its rank 1 waits for ever for a lock, and the other one for rank 1."""


@pytest.mark.variant
def test_a_mute_program_that_hangs_under_torchrun_gets_a_word_long_before_it_is_acted_on(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """Its output and `srobust status` say where its ranks stand, and when something will be done."""
    dev = cluster(standby=0, supervise={"quiet_capture_interval_s": 2.0})
    program = tmp_path / "mute.py"
    program.write_text(MUTE)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 {program}"
    job = submit(dev, nodes=1, command=f"srobust run {torchrun} #")
    wait_until(lambda: "have stood still since" in job.output(), 60, "the word of it")
    (line,) = [line for line in job.output().splitlines() if "have stood still since" in line]
    assert "the stacks of all 2 ranks" in line, job.everything()
    assert "rank 0 in " in line
    assert "rank 1 in <module> (" in line
    assert f"srobust stacks {job.id}" in line
    assert not job.told("suspected"), job.everything()
    shown = wait_until(
        lambda: [text] if "have stood still for" in (text := dev.run(["srobust", "status"]).stdout) else [],
        20,
        "the line of srobust status",
    )[0]
    assert "Nothing needs a person now." in shown
    dev.run(["scancel", job.id])
