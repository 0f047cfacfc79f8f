"""Another version of the code for a running job: a bad one is taken back, a good one changes a value and no node."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, SMALL, Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]


class Project:
    """A folder with the example's code, which prints a value at its start."""

    def __init__(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        self.path = tmp_path / "project"
        self.path.mkdir()
        for name in ("train.py", "faults.py"):
            shutil.copy(EXAMPLES / name, self.path)
        self.train = self.path / "train.py"
        (self.path / "value.py").write_text("VALUE = 1\n")
        text = self.train.read_text()
        text = text.replace("\nimport torch\n", "\nimport torch\nfrom value import VALUE\n", 1)
        self.train.write_text(
            text.replace("\n\ndef arguments()", "\nprint('value', VALUE, flush=True)\n\n\ndef arguments()", 1)
        )


def start(cluster: Cluster, submit: Submit, project: Project, folder: Path, *, inside: bool = False) -> Training:
    """Train from it, on two of the three nodes; `inside` it, all paths are relative."""
    dev = cluster(nodes=3, standby=0)
    code, saved, train = (".", "ck", "train.py") if inside else (project.path, f"{folder}/ck", project.train)
    options = f"--robust-code={code} --robust-checkpoint-dir={saved}"
    command = f"{sys.executable} {train} --checkpoint-dir {saved} --steps 2000 --step-time-s 0.1 {SMALL}"
    where = (f"--chdir={project.path}",) if inside else ()
    job: Training = submit(dev, nodes=2, command=f"srobust run {options} {command} #", sbatch=where)
    job.hears("training")
    return job


def update(job: Training, *words: str) -> str:
    """`srobust update`; what it prints."""
    return job.cluster.run(["srobust", "update", job.id, *words]).stdout


def shown(job: Training) -> dict[str, Any]:
    """`srobust update --show --json`."""
    found: dict[str, Any] = json.loads(update(job, "--show", "--json"))
    return found


def test_a_bad_update_is_taken_back_and_training_goes_on(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """A syntax error: the older version runs again by itself, on the same nodes, and nobody is blamed."""
    project = Project(tmp_path)
    job = start(cluster, submit, project, tmp_path / "job")
    nodes = job.job().nodes
    wait_until(lambda: shown(job)["proven"] == [1], 60, "the first new step")
    text = project.train.read_text()
    project.train.write_text(text + "\nthis is no Python\n")
    assert "1 file changed" in update(job, "--when", "now"), job.everything()
    resumed = job.hears("resumed", 120)
    assert resumed["resume_step"] >= 0, job.everything()
    (decided,) = job.told("decided")
    assert "VERSION 2 OF THE CODE IS TAKEN BACK: version 1" in decided["text"], job.everything()
    assert (decided["road"], decided["evict"]) == ("restart_in_place", []), job.everything()
    assert "SyntaxError" in job.output()
    assert job.told("suspect") == [], job.everything()
    found = shown(job)
    assert (found["in_force"], found["taken_back"]) == (1, [2]), found
    after = job.job()
    assert (after.nodes, after.restart_count, after.state) == (nodes, 0, "RUNNING"), job.everything()
    assert all(not job.node(name).reason for name in nodes)
    assert "no Python" not in (job.story_folder / "code" / "1" / "train.py").read_text()
    assert "+this is no Python" in (job.story_folder / "code" / "2.diff").read_text()
    job.cluster.run(["scancel", job.id])


@pytest.mark.variant
def test_an_update_after_the_next_checkpoint_changes_a_value_and_no_node(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """An edit alone changes nothing; the update does, without a requeue, and a rollback by hand undoes it."""
    project = Project(tmp_path)
    job = start(cluster, submit, project, tmp_path / "job", inside=True)
    nodes = job.job().nodes
    wait_until(lambda: shown(job)["proven"] == [1], 60, "the first new step")
    (project.path / "value.py").write_text("VALUE = 2\n")
    text = update(job)
    assert "1 file changed (+1 -1 lines)" in text
    assert "right after the next verified checkpoint" in text
    update_line = job.hears("update", 90)
    assert "is verified, asked for by" in update_line["text"], job.everything()
    job.hears("resumed", 90)
    assert "value 2" in job.output(), job.everything()
    update(job, "--rollback")
    job.hears("resumed", 90, count=2)
    wait_until(lambda: job.output().count("value 1") == 4, 60, "the older value again")
    after = job.job()
    assert (after.nodes, after.restart_count) == (nodes, 0), job.everything()
    assert (job.told("suspect"), job.told("suspected")) == ([], []), job.everything()
    found = shown(job)
    assert found["in_force"] == 1
    assert [Path(version["shared"]["ck"]) for version in found["versions"]] == [project.path / "ck"] * 2
    assert list((project.path / "ck").iterdir()), "checkpoints are where they were"
    job.cluster.run(["scancel", job.id])


@pytest.mark.variant
def test_a_requeued_job_runs_what_was_in_force(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """Somebody edits the folder and requeues the job: the next attempt prints the old value."""
    project = Project(tmp_path)
    job = start(cluster, submit, project, tmp_path / "job")
    wait_until(lambda: shown(job)["proven"] == [1], 60, "the first new step")
    (project.path / "value.py").write_text("VALUE = 2\n")
    job.cluster.run(["scontrol", "requeue", job.id])
    wait_until(lambda: job.job().state == "PENDING" and not job.job().completing, 60, "the job waits")
    job.cluster.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"])
    job.hears("training", 90, count=2)
    assert (job.output().count("value 1"), job.output().count("value 2")) == (4, 0), job.everything()
    assert job.job().restart_count == 1
    assert shown(job)["in_force"] == 1
    job.cluster.run(["scancel", job.id])
