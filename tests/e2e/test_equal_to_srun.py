"""The same programs under `srun` and under `srobust run`: what a script and its tasks see is the same."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import spec  # type: ignore[import-not-found]
from equal_cases import CASES  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(900)]

ADDED = re.compile(r"(?:SLURM_)?SROBUST_\w+|TORCH_FR_\w+|TORCH_NCCL_\w+|TORCH_INCLUDE_STACK_TRACE")
"""Variables that `srobust run` adds: docs/engineer.md has them."""
OF_THE_STEP = re.compile(
    r"SLURM_(?:JOB_?ID|JOB_(?:START|END)_TIME|STEP_?ID|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|TASK_PID)|PWD|OLDPWD"
)
"""Variables whose values differ between any two steps."""
WAITS_FOR_A_STEP = re.compile(r"^srun: (?:Job \d+ step creation temporarily disabled|Step created for)")
"""srun says so if an earlier step has not ended everywhere."""
SIGNALLED = ("interrupted once", "interrupted twice", "quit", "terminated", "hung up", "SIGUSR1", "step cancelled")
"""Which tasks srun reports in which state differs from one srun to the next."""


def lines_of_srun(text: str) -> list[str]:
    """Standard error without our story, numbers of steps and times; in order, since tasks end as they like."""
    kept = [line for line in text.splitlines() if not (line.startswith("srobust: ") or WAITS_FOR_A_STEP.search(line))]
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


def start(cluster: DevCluster, folder: Path, *launcher: str, cases: Sequence[str] = ()) -> str:
    """Submit the job that runs these cases under this launcher, or all of them; returns its number."""
    folder.mkdir()
    folder.chmod(0o777)
    words = [sys.executable, str(Path(__file__).with_name("equal_cases.py")), str(folder), ",".join(cases), *launcher]
    script = f"exec {shlex.join(words)}"
    options = ["--nodes=2", "--ntasks=4", "--overcommit", "--requeue", "--open-mode=append", "--job-name=equal"]
    done = cluster.run(
        ["sbatch", "--parsable", *options, f"--output={folder}/job.out", f"--chdir={folder}", "--wrap", script]
    )
    return done.stdout.strip().split(";")[0]


def results(cluster: DevCluster, folder: Path, *, cases: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """What comes of these cases, or of all, under plain srun and then under srobust run, as far as it is comparable."""
    folder.mkdir()
    launchers = {"srun": ("srun",), "robust": ("srobust", "run")}
    for name, words in launchers.items():
        start(cluster, folder / name, *words, cases=cases)
    for name in launchers:
        path = folder / name / "results.json"
        # Many steps, one after the other: on a busy machine plain srun alone took five minutes.
        wait_until(path.exists, 600, f"the results of {name}: {sorted(folder.glob('*/*'))}")
        yield {case: comparable(case, found) for case, found in json.loads(path.read_text()).items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Two nodes for each of the jobs that run side by side."""
    made = DevCluster.up(spec(standby=0, daemon=False, nodes=4))
    yield made
    made.down()


def test_what_a_script_and_its_tasks_see_is_the_same(cluster: DevCluster, tmp_path: Path) -> None:
    """Exit codes, bytes, environment, limits, signals, stdin, files, what was run how often: no difference at all.

    On a busy machine srun itself says other things now and then, as when a task ends before it has read its input. So
    cases that differ are run once more, and must not differ in the same job twice.
    """
    plain, ours = results(cluster, tmp_path / "first")
    assert plain.keys() == ours.keys() == CASES.keys()
    if again := [case for case in CASES if plain[case] != ours[case]]:
        once_more, ours_once_more = results(cluster, tmp_path / "again", cases=again)
        plain, ours = plain | once_more, ours | ours_once_more
    differences = {case: (plain[case], ours[case]) for case in again if plain[case] != ours[case]}
    assert differences == {}
    assert {plain[case]["code"] for case in ("ok", "interrupted once", "given", "files")} == {0}
    assert plain["one of four runs fails"]["files"]["done"] == ""
    fail = (*SIGNALLED[1:], "exit 3", "no program", "wrong option", "one of four runs fails")
    assert all(plain[case]["code"] != 0 for case in fail)


def test_a_cancelled_job_is_over(cluster: DevCluster, tmp_path: Path) -> None:
    """`scancel JOB`: CANCELLED and not requeued. Its exit code is the script's, which Slurm has ended by a signal."""
    ends = {}
    for name, launcher in LAUNCHERS.items():
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


class AtTheLimit(NamedTuple):
    """A job that reaches its time limit: the task and the script around its launch, and what comes of them."""

    task: str
    exit_code: str
    lines: list[str]
    before: str = "trap told=yes TERM\n"
    # The script's own SIGTERM comes before or after that of the step, as it happens.
    after: str = 'code=$?\nuntil [ "$told" ]; do sleep 0.1; done\necho told, and the step gave $code\nexit $code'


AT_THE_LIMIT = {
    "ended by the signal": AtTheLimit("exec sleep 300", "ExitCode=143:0", ["told, and the step gave 143"]),
    "saves and ends well": AtTheLimit(
        "trap 'echo saved; exit 0' TERM; sleep 300 & wait", "ExitCode=0:0", ["saved", "told, and the step gave 0"]
    ),
    "ignores the signal": AtTheLimit("trap '' TERM; while :; do sleep 1; done", "ExitCode=0:15", [], "", ""),
}
LAUNCHERS = {"srun": "srun", "robust": "srobust run"}


def submit_script(cluster: DevCluster, folder: Path, text: str, *options: str) -> str:
    """Submit this script, which may be requeued and runs in a new folder of its own; returns the job's number."""
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "job.sh").write_text(f"#!/bin/bash\n{text}\n")
    words = ["sbatch", "--parsable", "--requeue", "--open-mode=append", f"--output={folder}/job.out", *options]
    done = cluster.run([*words, f"--chdir={folder}", str(folder / "job.sh")])
    return done.stdout.strip().split(";")[0]


def steps(cluster: DevCluster, job: str) -> int:
    """How many steps of this job run now, besides its script."""
    listed = cluster.run(["squeue", "-h", "-s", "-j", job, "-o", "%i"]).stdout.split()
    return sum(step.rpartition(".")[2].isdigit() for step in listed)


def ended(cluster: DevCluster, job: str) -> list[str]:
    """State, exit code and requeues of a job once nothing of it is left; empty until then."""
    shown = cluster.run(["scontrol", "-o", "show", "job", job]).stdout
    if re.search(r"JobState=(?:PENDING|RUNNING|COMPLETING)", shown) or cluster.processes(int(job)):
        return []
    return re.findall(r"\b(?:JobState|ExitCode|Restarts)=\S+", shown)


def own_lines(folder: Path) -> list[str]:
    """What script and tasks printed: neither srun's and slurmstepd's messages nor ours."""
    lines = (folder / "job.out").read_text().splitlines()
    return [line for line in lines if not line.startswith(("srun: ", "slurmstepd", "srobust: "))]


@pytest.mark.begin_early
@pytest.mark.parametrize(
    "name",
    [
        "ended by the signal",
        pytest.param("saves and ends well", marks=pytest.mark.variant),
        pytest.param("ignores the signal", marks=pytest.mark.variant),
    ],
)
def test_a_job_that_reaches_its_time_limit_is_over(cluster: DevCluster, tmp_path: Path, name: str) -> None:
    """TIMEOUT, with srun's exit code and output and no second start, although the job may be requeued.

    Slurm looks at time limits every half minute, and kills after KillWait what has not ended at the first signal.
    """
    case = AT_THE_LIMIT[name]
    program = tmp_path / "task.sh"
    program.write_text(f"echo x >> starts; touch up; {case.task}\n")
    jobs = {
        way: submit_script(cluster, tmp_path / way, f"{case.before}{launcher} -n1 sh {program}\n{case.after}")
        for way, launcher in LAUNCHERS.items()
    }
    wait_until(lambda: all((tmp_path / way / "up").exists() for way in jobs), 120, "both tasks")
    wait_until(lambda: steps(cluster, jobs["robust"]) == 2, 60, "the step that watches")
    for job in jobs.values():
        cluster.run(["scontrol", "update", f"JobId={job}", "EndTime=now"])
    ends = {way: wait_until(lambda job=job: ended(cluster, job), 150, "the end") for way, job in jobs.items()}
    outputs = {way: (tmp_path / way / "job.out").read_text() for way in jobs}
    assert all("DUE TO TIME LIMIT" in text for text in outputs.values()), outputs
    assert sorted(ends["robust"]) == sorted(ends["srun"]), outputs
    assert sorted(ends["srun"]) == [case.exit_code, "JobState=TIMEOUT", "Restarts=0"], outputs
    assert own_lines(tmp_path / "robust") == own_lines(tmp_path / "srun") == case.lines, outputs
    assert {(tmp_path / way / "starts").read_text() for way in jobs} == {"x\n"}, outputs
