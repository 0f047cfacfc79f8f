"""The SPANK plugin's stories: untouched scripts with a plain srun under `sbatch --robust`, whose ranks hang or die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until
from spank_jobs import command_lines

from slurm_robust.devcluster import members
from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]
ROBUST = ("--robust", "--robust-checkpoint-dir=ck")


def with_plugin(cluster: Cluster, plugstack: Path, **wanted: Any) -> DevCluster:
    """A cluster that loads the plugin.

    No node is lost in these stories; Slurm 24.11 takes a node for lost that is three seconds late on a busy machine.
    """
    return cluster(slurm_conf_extra=f"PlugStackConfig={plugstack}", slurmd_timeout_s=10, **wanted)


def sruns(job: Training) -> set[int]:
    """The processes of the script's srun."""
    lines = command_lines(job.cluster, job.id)
    return {pid for pid, words in lines.items() if words.startswith(b"srun\0") and b"train.py" in words}


def kill_step(job: Training, node: str) -> None:
    """Kill -9 all of the training step on a node, its slurmstepd included: srun learns of no task's end there."""
    title = f"slurmstepd: [{job.id}.0]".encode()
    steps = [p.pid for p in members.stepds(job.cluster.record, node)]
    stepds = [pid for pid in steps if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title)]
    assert stepds
    lines, here = command_lines(job.cluster, job.id), job.cluster.processes(int(job.id), node)
    for pid in (*stepds, *(pid for pid in here if b"train.py" in lines.get(pid, b""))):
        os.kill(pid, signal.SIGKILL)


def test_an_untouched_script_lives_through_a_hung_rank(cluster: Cluster, submit: Submit, plugstack: Path) -> None:
    """`sbatch --robust train.sbatch` with a plain srun in it: suspected, named, requeued without the node, resumed."""
    dev = with_plugin(cluster, plugstack)
    job = submit(dev, command="srun", fault={"kind": "dead_mount", "rank": 1, "step": 30}, sbatch=ROBUST)
    suspect = job.hears("suspect", 90)["node"]
    job.hears("claimed")
    resumed = job.hears("resumed", 90)
    assert resumed["step"] > 25
    running = job.job()
    assert suspect not in running.nodes
    assert running.restart_count == 1
    ended = job.ends(120)
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
    assert job.output().count("resumed from step ") >= 1, job.everything()
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_job_whose_rank_is_killed_comes_back_and_resumes(cluster: Cluster, submit: Submit, plugstack: Path) -> None:
    """Kill -9 of one rank ends all ranks of a DDP job within a second, and srun with them.

    The batch script must not go on before the requeue is asked for: the job is requeued, resumes from its checkpoint
    and ends well.
    """
    dev = with_plugin(cluster, plugstack)
    job = submit(dev, command="set -e\nsrun", fault={"kind": "kill", "rank": 1, "step": 40}, sbatch=ROBUST)
    job.hears("claimed", 90)
    assert job.hears("resumed", 90)["step"] > 35
    ended = job.ends(120)
    assert (ended.state, ended.exit_code, ended.restart_count) == ("COMPLETED", "0:0", 1), job.everything()
    assert job.output().count("resumed from step ") >= 1, job.everything()
    assert all(not n.drained for n in job.client.nodes())
    job.assert_clean_slurm()


@pytest.mark.variant
def test_the_programs_own_error_is_given_to_the_script(cluster: Cluster, submit: Submit, plugstack: Path) -> None:
    """A TypeError is nothing to recover from: srun ends with its own exit code, and the script's next line runs."""
    dev = with_plugin(cluster, plugstack)
    job = submit(
        dev,
        command="trap 'echo srun gave $?' EXIT\nsrun",
        fault={"kind": "exception", "rank": 2, "step": 40},
        again=True,
        sbatch=ROBUST,
    )
    ended = job.ends(120)
    assert (ended.state, ended.exit_code, ended.restart_count) == ("FAILED", "1:0", 0), job.everything()
    assert "srun gave 1" in job.output()
    assert "TypeError" in job.hears("verdict")["text"]
    assert job.told("claimed") == []


def test_the_srun_of_the_old_run_is_ended_with_the_requeue_under_linuxproc(
    cluster: Cluster, submit: Submit, plugstack: Path
) -> None:
    """It waits for a step whose slurmstepd was killed: Slurm leaves it running after the requeue, as init's child.

    32 s after SIGTERM it would cancel its step, which is by then the step of the resumed training.
    """
    dev = with_plugin(cluster, plugstack, proctrack="linuxproc", nodes=3, standby=0)
    job = submit(dev, nodes=2, steps=400, command="srun", sbatch=ROBUST)
    wait_until(lambda: len(list(job.folder.glob("ck/step-*"))) > 1, 60, "two checkpoints")
    old = sruns(job)
    assert old
    kill_step(job, job.job().nodes[1])
    job.hears("claimed", 90)
    job.hears("resumed", 90)
    assert not old & sruns(job), job.everything()


@pytest.mark.variant
def test_people_are_told_of_a_death_in_a_job_that_may_not_be_requeued(
    cluster: Cluster, submit: Submit, plugstack: Path
) -> None:
    """The script's last line is its srun: the job would be over before anybody had looked at what the ranks said."""
    dev = with_plugin(cluster, plugstack, nodes=2, standby=0)
    # Late enough for the watch to be there on a busy machine: an srun that is not watched yet waits for nobody.
    fault = {"kind": "kill", "rank": 1, "step": 150}
    job = submit(dev, nodes=2, steps=300, command="srun", fault=fault, sbatch=(*ROBUST, "--no-requeue"))
    job.hears("verdict", 90)
    ended = job.ends(60)
    assert (ended.state, ended.restart_count) == ("FAILED", 0), job.everything()
    incident = job.incident_closed()
    assert incident["outcome"] == "stopped", incident
    assert "may not be requeued" in incident["reason"], incident
    assert job.told("claimed") == []


def test_steps_are_seen_behind_a_pipe(cluster: Cluster, plugstack: Path, tmp_path: Path) -> None:
    """`srun … | tee FILE`, as many scripts have it, by `srobust run` and under `sbatch --robust`."""
    dev = with_plugin(cluster, plugstack, nodes=2, standby=0)
    program = (
        "import time\nfor step in range(600): print('step', step, 'loss', 1 / (1 + step), flush=True); time.sleep(0.1)"
    )
    (tmp_path / "train.py").write_text(program)
    for launch, options in (("srobust run", ()), ("srun", ("--robust",))):
        folder = tmp_path / launch.replace(" ", "-")
        folder.mkdir()
        (folder / "job.sh").write_text(f"#!/bin/bash\n{launch} python3 -u {tmp_path}/train.py 2>&1 | tee -a log\n")
        paths = (f"--output={folder}/o-%j.out", f"--chdir={folder}", str(folder / "job.sh"))
        dev.run(["sbatch", "-N1", "--exclusive", "--requeue", *options, *paths], env=dev.env)
        wait_until(
            lambda within=folder: [p for p in within.rglob("story.jsonl") if '"training"' in p.read_text()], 60, launch
        )
