"""The same programs under `srun` and under `srobust run`: what a script and its tasks see is the same."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import spec  # type: ignore[import-not-found]
from equal_cases import CASES  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(400)]

ADDED = re.compile(r"(?:SLURM_)?SROBUST_\w+|TORCH_FR_\w+|TORCH_NCCL_\w+|TORCH_INCLUDE_STACK_TRACE")
"""Variables that `srobust run` adds: docs/engineer.md has them."""
OF_THE_STEP = re.compile(
    r"SLURM_(?:JOB_?ID|JOB_(?:START|END)_TIME|STEP_?ID|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|TASK_PID)|PWD|OLDPWD"
)
"""Variables whose values differ between any two steps."""
SIGNALLED = ("interrupted once", "interrupted twice", "quit", "terminated", "hung up", "SIGUSR1", "step cancelled")
"""Which tasks srun reports in which state differs from one srun to the next."""


def lines_of_srun(text: str) -> list[str]:
    """Standard error without our story, numbers of steps and times; in order, since tasks end as they like."""
    kept = [line for line in text.splitlines() if not line.startswith("srobust: ")]
    return sorted(re.sub(r"\d+\.\d+|\d{4}-\S+|job \d+|/tmp/\S*/(?:srun|robust)\S*/", "#", line) for line in kept)


def comparable(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal of one case; what differs between any two sruns is left out."""
    files, code = dict(result["files"]), result["code"]
    errors = files.pop("stderr")
    files = {path: text for path, text in files.items() if not path.startswith("slurm-robust")}
    if name == "given":
        given = json.loads(files.pop("stdout"))
        given["cwd"] = Path(given["cwd"]).name
        given["env"] = {
            key: "" if OF_THE_STEP.fullmatch(key) else value
            for key, value in given["env"].items()
            if not ADDED.fullmatch(key)
        }
        files["given"] = given
    if name == "label":
        files["stdout"] = sorted(files["stdout"].splitlines())
    if name == "interrupted twice" and code in (130, 137):
        code = "130, or 137 where a third one came"
    return {"code": code, "files": files, "errors": [] if name in SIGNALLED else lines_of_srun(errors)}


def start(cluster: DevCluster, folder: Path, *launcher: str) -> str:
    """Submit the job that runs all cases under this launcher; returns its number."""
    folder.mkdir()
    folder.chmod(0o777)
    script = f"exec {sys.executable} {Path(__file__).with_name('equal_cases.py')} {folder} {' '.join(launcher)}"
    options = ["--nodes=2", "--ntasks=4", "--overcommit", "--requeue", "--open-mode=append", "--job-name=equal"]
    done = cluster.run(
        ["sbatch", "--parsable", *options, f"--output={folder}/job.out", f"--chdir={folder}", "--wrap", script]
    )
    return done.stdout.strip().split(";")[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Two nodes for each of the jobs that run side by side."""
    made = DevCluster.up(spec(standby=0, daemon=False, nodes=4))
    yield made
    made.down()


def test_what_a_script_and_its_tasks_see_is_the_same(cluster: DevCluster, tmp_path: Path) -> None:
    """Exit codes, bytes, environment, limits, signals, stdin, files, what was run how often: no difference at all."""
    launchers = {"srun": ("srun",), "robust": ("srobust", "run")}
    for name, words in launchers.items():
        start(cluster, tmp_path / name, *words)
    found = {}
    for name in launchers:
        path = tmp_path / name / "results.json"
        wait_until(path.exists, 300, f"the results of {name}: {sorted(tmp_path.glob('*/*'))}")
        found[name] = json.loads(path.read_text())
    plain, ours = ({case: comparable(case, r[case]) for case in CASES} for r in (found["srun"], found["robust"]))
    differences = {case: (plain[case], ours[case]) for case in CASES if plain[case] != ours[case]}
    assert differences == {}, "\n".join(f"{case}: {found['robust'][case]}" for case in differences)
    assert {plain[case]["code"] for case in ("ok", "interrupted once", "given", "files")} == {0}
    assert plain["one of four runs fails"]["files"]["done"] == ""
    fail = (*SIGNALLED[1:], "exit 3", "no program", "wrong option", "one of four runs fails")
    assert all(plain[case]["code"] != 0 for case in fail)


def test_a_cancelled_job_is_over(cluster: DevCluster, tmp_path: Path) -> None:
    """`scancel JOB`: CANCELLED and not requeued. Its exit code is the script's, which Slurm has ended by a signal."""
    ends = {}
    for name, launcher in {"srun": "srun", "robust": "srobust run"}.items():
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(0o777)
        script = f"{launcher} -n1 sh -c 'touch up; exec sleep 300'"
        options = ["--nodes=1", "--requeue", f"--output={folder}/job.out", f"--chdir={folder}"]
        job = cluster.run(["sbatch", "--parsable", *options, "--wrap", script]).stdout.strip().split(";")[0]
        wait_until((folder / "up").exists, 60, "the task")
        cluster.run(["scancel", job])

        def shown(job: str = job) -> str:
            text = cluster.run(["scontrol", "-o", "show", "job", job]).stdout
            return text if "JobState=CANCELLED" in text else ""

        text = wait_until(shown, 60, "the job's end")
        ends[name] = re.findall(r"(?:JobState|Restarts)=\S+", text)
    assert sorted(ends["robust"]) == sorted(ends["srun"]) == ["JobState=CANCELLED", "Restarts=0"]
