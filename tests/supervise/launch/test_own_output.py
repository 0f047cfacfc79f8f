"""Which files a process's output goes to, asked of real pipelines of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.supervise.launch.own_output import own_output_files

ASKS = """
import sys, time
from slurm_robust.supervise.launch.own_output import own_output_files
while not (found := own_output_files()) and time.monotonic() < float(sys.argv[2]):
    time.sleep(0.02)
open(sys.argv[1], "w").write("\\n".join(path.name for path in found))
"""
"""The program of the pipelines: it asks about itself, until its neighbours in the pipeline have opened their files."""


def answer(folder: Path, script: str, wait_s: float = 20.0) -> list[str]:
    """What the program in the place of ASK finds; the shell's own output goes to the file `job.out`."""
    (folder / "asks.py").write_text(ASKS)
    ask = f"{sys.executable} {folder}/asks.py {folder}/answer {time.monotonic() + wait_s}"
    with (folder / "job.out").open("w") as out:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            ["bash", "-c", script.replace("ASK", ask)], stdout=out, stderr=out, cwd=folder, env=env, check=False
        )
    wait_until((folder / "answer").exists, 20, "the answer")
    return (folder / "answer").read_text().split()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("ASK", ["job.out"]),
        ("ASK > log 2>&1", ["log"]),
        ("ASK > log", ["log", "job.out"]),
        ("ASK | tee log", ["job.out"]),  # tee's own output is the job's, and has all lines
        ("ASK 2>&1 | tee -a log", ["job.out"]),
        ("ASK 2>&1 | tee log > /dev/null", ["log"]),
        ("ASK |& tee log | grep -v nothing", ["log"]),  # whole, where grep's may lack lines
        ("ASK 2>&1 | cat | tee log", ["job.out"]),
        ("ASK > >(tee log > /dev/null) 2>&1", ["log"]),
    ],
)
def test_the_file_is_found_behind_pipes(tmp_path: Path, script: str, expected: list[str]) -> None:
    """As users write it in batch scripts."""
    assert answer(tmp_path, script) == expected


def test_a_pipe_that_nobody_writes_to_a_file_leads_nowhere() -> None:
    """A program that reads us, as a test does, is no file."""
    argv = [sys.executable, "-c", ASKS, "/dev/stdout", "0"]
    done = subprocess.run(
        argv, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.stdout == ""


def test_of_a_process_that_is_gone_nothing_is_found() -> None:
    """It may end while somebody asks about it."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert own_output_files(process.pid) == []
