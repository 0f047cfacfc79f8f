"""The srun that stands first on PATH: what becomes `srobust run`, and what stays srun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

FOLDER = Path(__file__).resolve().parents[2] / "srun_wrapper"
CALLED = 'printf "%s" "$(basename "$0")"; for word in "$@"; do printf "|%s" "$word"; done; printf "\\n"\n'


class Commands:
    """A fake srun and a fake srobust, which print how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("srun", CALLED)
        self.write("srobust", f'[ "$2" = --robust-ready ] && exit 0\n{CALLED}')

    def write(self, name: str, text: str) -> Path:
        """Make one of them say something else."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        return path

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Type `srun WORDS` in job 7 with the shim first on PATH; a variable set to nothing is unset."""
        path = f"{FOLDER}:{self.folder}:/usr/bin:/bin"
        values = {k: v for k, v in {"PATH": path, "SLURM_JOB_ID": "7", **env}.items() if v}
        argv = ["/bin/sh", "-c", 'srun "$@"', "sh", *words]
        return subprocess.run(argv, env=values, capture_output=True, text=True, timeout=20, check=False)


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Both commands, in a folder of their own."""
    return Commands(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py"),
        ("-N4", "--ntasks-per-node=1", "python3.11", "train.py", "--lr", "1e-3"),
        ("-n", "8", "bash", "-c", "cd /work && torchrun --nproc-per-node=8 train.py"),
        ("./train.py",),
        ("bash", "-c", "exec ./train.py --lr 1"),
        ("--container-image=a b", "--", "accelerate", "launch", "x"),
        # What `deepspeed --launcher=slurm` 0.19.8 types.
        ("-n", "4", "--export=ALL,PYTHONUNBUFFERED=1,PYTHONPATH=/work", "/opt/bin/python3.11", "-u", "train.py"),
    ],
)
def test_a_training_step_becomes_srobust_run_with_the_same_words(commands: Commands, words: tuple[str, ...]) -> None:
    """Every word arrives as it was typed, blanks and all."""
    done = commands.run(*words)
    assert done.stdout == "|".join(("srobust", "run", *words)) + "\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("hostname",), {}),
        (("python", "x.py"), {"SLURM_JOB_ID": ""}),
        (("python", "x.py"), {"SLURM_STEP_ID": "0"}),
        (("python", "x.py"), {"SROBUST_SRUN": "off"}),
        (("python", "x.py"), {"SROBUST_SHIM": "7"}),
        (("python", "x.py"), {"SROBUST_WATCH": "1"}),
        (("--pty", "python"), {}),
        (("--jobid=9", "python", "x.py"), {}),
        (("--jobid", "9", "python", "x.py"), {}),
        (("--overlap", "python", "x.py"), {}),
        (("python", "a.py", ":", "python", "b.py"), {}),
        (("--version",), {"SROBUST_SRUN": "all"}),
    ],
)
def test_everything_else_is_the_real_srun(commands: Commands, words: tuple[str, ...], env: dict[str, str]) -> None:
    """Short commands, login nodes, steps within steps, terminals, other jobs, het jobs, and whoever said off."""
    assert commands.run(*words, **env).stdout == "|".join(("srun", *words)) + "\n"


@pytest.mark.parametrize("step", ["4294967291", "4294967290", "-5", "-6"])
def test_the_batch_step_of_newer_slurms_is_no_step_inside(commands: Commands, step: str) -> None:
    """They number the batch script's and the interactive step in SLURM_STEP_ID."""
    assert commands.run("python", "x.py", SLURM_STEP_ID=step).stdout.startswith("srobust|run")


def test_all_takes_every_step(commands: Commands) -> None:
    """SROBUST_SRUN=all is for launch scripts whose names tell nothing."""
    assert commands.run("./launch.sh", SROBUST_SRUN="all").stdout == "srobust|run|./launch.sh\n"


def test_the_srun_that_srobust_calls_is_the_real_one(commands: Commands) -> None:
    """No loop: srobust finds this shim on PATH too."""
    commands.write("srobust", '[ "$2" = --robust-ready ] && exit 0\nshift\nexec srun --kill-on-bad-exit=0 "$@"\n')
    assert commands.run("python", "x.py").stdout == "srun|--kill-on-bad-exit=0|python|x.py\n"


def test_a_rank_that_submits_the_next_job_does_not_switch_it_off(commands: Commands) -> None:
    """A rank's environment goes with sbatch into the next job, which is another one."""
    assert commands.run("python", "x.py", SLURM_JOB_ID="8", SROBUST_SHIM="7").stdout.startswith("srobust|run")


@pytest.mark.parametrize("text", ["echo 'robust.yaml:3: seat: no such key' >&2; exit 2\n", "exit 127\n"])
def test_a_srobust_that_does_not_work_holds_no_job(commands: Commands, text: str) -> None:
    """A broken installation or a wrong robust.yaml: said in one line, and the real srun runs."""
    commands.write("srobust", text)
    done = commands.run("python", "x.py")
    assert done.stdout == "srun|python|x.py\n"
    assert "not supervised" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_srobust_that_is_nowhere_holds_no_job(commands: Commands) -> None:
    """The same where it was never installed on this node."""
    (commands.folder / "srobust").unlink()
    done = commands.run("python", "x.py", SROBUST_COMMAND="/nowhere/srobust")
    assert done.stdout == "srun|python|x.py\n"
    assert "/nowhere/srobust does not work here" in done.stderr


def test_without_a_real_srun_it_says_so(commands: Commands) -> None:
    """Exit 127 as from a shell, not a loop."""
    (commands.folder / "srun").unlink()
    env = {"PATH": f"{FOLDER}:{commands.folder}"}
    done = subprocess.run([FOLDER / "srun", "hostname"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "SROBUST_REAL_SRUN" in done.stderr


def test_exit_code_and_named_real_srun(commands: Commands, tmp_path: Path) -> None:
    """The exit code is the command's own; SROBUST_REAL_SRUN wins over PATH."""
    other = commands.write("other", "exit 42\n")
    assert commands.run("hostname", SROBUST_REAL_SRUN=str(other)).returncode == 42


@pytest.mark.slurm
def test_an_untouched_script_is_supervised(devcluster: DevCluster, tmp_path: Path) -> None:
    """`srun python prog.py` in a batch script, nothing changed but PATH: ranks run, and the story is told."""
    tmp_path.chmod(0o777)
    (tmp_path / "prog.py").write_text(
        "import os, time\nfrom slurm_robust import progress\n"
        "for n in range(20):\n    progress.step(n)\n    time.sleep(0.1)\n"
        "print('rank', os.environ['SLURM_PROCID'], 'attempt', os.environ.get('SROBUST_ATTEMPT'), flush=True)\n"
    )
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun hostname\nsrun {sys.executable} prog.py\n")
    env = {**devcluster.env, "PATH": f"{FOLDER}:{devcluster.env['PATH']}"}
    env["SROBUST_COMMAND"] = str(_srobust(tmp_path))
    args = ["sbatch", "--parsable", "-N2", "--ntasks-per-node=1", f"--output={tmp_path}/out", f"--chdir={tmp_path}"]
    job = devcluster.run([*args, script], env=env).stdout.strip()
    story = tmp_path / f"slurm-robust-{job}" / "story.jsonl"

    def told() -> list[str]:
        return [json.loads(line)["kind"] for line in story.read_text().splitlines()] if story.exists() else []

    wait_until(lambda: "finished" in told(), 40, f"the end of the story; {told()}")
    output = wait_until(
        lambda: text if (text := (tmp_path / "out").read_text()).count("attempt") == 2 else "", 10, "both ranks' words"
    )
    assert f"rank 0 attempt {job}.0." in output
    assert f"rank 1 attempt {job}.0." in output
    assert told().count("finished") == 1, "the hostname step was supervised too"


def _srobust(folder: Path) -> Path:
    """The command, also where the package is not installed but only on PYTHONPATH."""
    path = folder / "srobust"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m slurm_robust.cli.main "$@"\n')
    path.chmod(0o755)
    return path
