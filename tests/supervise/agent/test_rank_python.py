"""Which Python an agent takes for a rank's: the one of its virtual environment, and none of another program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_stage import AgentStage
from helpers import wait_until

from slurm_robust.supervise.agent.messages import RankFound
from slurm_robust.supervise.agent.rank_python import python_of

Starts = Callable[..., int]
SLEEP = "import sys, time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def starts() -> Iterator[Starts]:
    """Starts a program, waits until it runs, and returns its process id."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], **more: object) -> int:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, **more)  # type: ignore[call-overload]
        processes.append(process)
        assert process.stdout.readline() == b"up\n"
        return int(process.pid)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The Python of a virtual environment: a link to the one that it was made from."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    return python


@pytest.mark.parametrize("way", ["path", "PATH", "folder", "renamed"])
def test_the_python_of_a_virtual_environment_is_found(starts: Starts, environment: Path, way: str) -> None:
    """By its path, through PATH, from the folder that it was started in, and behind a title of its own."""
    home = environment.parents[2]
    env = {"PATH": f"{environment.parent}:/usr/bin", "PWD": str(home), "VIRTUAL_ENV": str(environment.parents[1])}
    if way != "renamed":
        del env["VIRTUAL_ENV"]
    word = {"path": str(environment), "PATH": "python", "folder": "env/bin/python", "renamed": "train: step 5"}[way]
    pid = starts([word, "-S", "-c", SLEEP], executable=str(environment), env=env, cwd=home)
    assert python_of(pid) == str(environment)


def test_an_unknown_start_leaves_the_program_itself(starts: Starts) -> None:
    """Its first word leads nowhere, and no environment is named."""
    python = os.path.realpath(sys.executable)
    assert python_of(starts(["/no/such/python", "-S", "-c", SLEEP], executable=python, env={})) == python


def test_another_program_and_an_ended_one_have_none(starts: Starts) -> None:
    """A test of the node is not made by its means."""
    assert python_of(starts(["/bin/sh", "-c", "echo up; exec sleep 60"])) == ""
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert python_of(gone.pid) == ""


def test_the_agent_tells_it_of_each_rank(stage: AgentStage) -> None:
    """With the rank itself."""
    victim = stage.victim(0)
    wait_until(lambda: python_of(victim.pid) != "", 10, "the rank's Python runs")
    stage.start_agent()
    assert stage.receive(RankFound).python == python_of(victim.pid)
