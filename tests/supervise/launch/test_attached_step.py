"""One step of a job that somebody else's srun runs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers import wait_until

from slurm_robust.cli.commands import attach
from slurm_robust.cli.main import cli
from slurm_robust.core.model import JobRef
from slurm_robust.marks.claim import Claim
from slurm_robust.slurm.client import Job
from slurm_robust.supervise.agent import procfs
from slurm_robust.supervise.agent.ranks import ProcessFinder, Target
from slurm_robust.supervise.job import SupervisedJob
from slurm_robust.supervise.launch.attached_step import AttachedStep, connection
from slurm_robust.supervise.session import Session


def test_it_is_over_when_its_srun_has_ended() -> None:
    """Seen without asking Slurm, and seen still when the pid is another one's."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        attached = AttachedStep("0", process.pid)
        assert not attached.over
        process.communicate(b"\n")
    wait_until(lambda: attached.over, 5, "its end")
    assert AttachedStep("0", process.pid).over


@pytest.mark.parametrize(("name", "killed"), [("srun", True), ("python3", False)])
def test_an_srun_is_killed_and_no_other_program(tmp_path: Path, name: str, killed: bool) -> None:
    """Killed once: not what has got its pid since."""
    program = tmp_path / name
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-Sc", "input()"], stdin=subprocess.PIPE) as process:
        wait_until(lambda: (found := procfs.stat(process.pid)) and found.command == name, 5, "its start")
        attached, earlier = AttachedStep("0", process.pid), AttachedStep("0", process.pid)
        earlier._srun = (process.pid, 1)  # no test can have a pid used again
        earlier.kill()
        assert process.poll() is None
        attached.kill()
        if not killed:
            process.communicate(b"\n")
    assert process.returncode == (-9 if killed else 0)
    attached.kill()


def held() -> tuple[socket.socket, AttachedStep]:
    """An srun's end of the connection, and the step as its watch has it."""
    srun, ours = socket.socketpair()
    environment = {"SROBUST_HOLD": str(ours.detach())}
    attached = AttachedStep("0", 0, connection(environment))
    assert environment == {}
    return srun, attached


def test_an_srun_that_waits_tells_its_exit_code() -> None:
    """In one piece or in several; before that, nothing is known. A child of ours never keeps it waiting."""
    srun, attached = held()
    with srun:
        assert attached.hold is not None
        assert not os.get_inheritable(attached.hold.fileno())
        assert attached.exit_code is None
        srun.send(b"ended 1")
        assert attached.exit_code is None
        srun.send(b"37\n")
        assert (attached.exit_code, attached.exit_code) == (137, 137)
        attached.release()
        assert srun.recv(1) == b""
        assert attached.exit_code == 137


def test_an_srun_is_kept_waiting_as_long_as_a_requeue_is_on_its_way() -> None:
    """A word at once, and again and again until it is let go; one that is gone is no error."""

    async def requeue() -> None:
        srun, attached = held()
        attached.keep_waiting()
        attached.keep_waiting()
        await asyncio.sleep(0)
        assert srun.recv(9) == b"."
        srun.close()
        attached.release()

    asyncio.run(requeue())


@pytest.mark.parametrize("words", [b"", b"started\n", b"ended x\n", b"ended 1\nended 2\n"])
def test_what_is_no_exit_code_is_none(words: bytes) -> None:
    """Nothing is concluded from it; nor from a descriptor that is none."""
    srun, attached = held()
    srun.send(words)
    srun.close()
    assert attached.exit_code is None
    attached.release()
    assert connection({"SROBUST_HOLD": "x"}) is None
    assert connection({}) is None


def test_without_a_launcher_it_never_is() -> None:
    """The job's end is then the step's."""
    assert not AttachedStep("0").over


@pytest.mark.parametrize(("attempt", "found"), [("step:3", True), ("step:4", False), ("step:", False), ("", True)])
def test_agents_take_ranks_of_that_step_only(attempt: str, found: bool) -> None:
    """A job's other steps are neither judged nor killed."""
    env = {"SLURM_JOB_ID": "77000001", "SLURMD_NODENAME": "n1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "3"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        members = ProcessFinder(Target("77000001", "n1", attempt, "9")).processes()
        assert [m.pid for m in members] == ([process.pid] if found else [])
        process.communicate(b"\n")


def in_job(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    """A Slurm that knows this job."""
    client: Any = None
    supervised = SupervisedJob(client, "c", job, None, Claim("watching", "line"))
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    monkeypatch.setattr(attach, "connect", lambda config: None)
    monkeypatch.setattr(attach.job, "read", lambda client, ref: supervised)


def test_a_heterogeneous_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch step cannot start beside it, and would see one component's nodes alone."""
    in_job(monkeypatch, Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1",), hetjob_id=1))
    done = CliRunner().invoke(cli, ["attach", "1"])
    assert done.exit_code == 3
    assert "job 1 is part of a heterogeneous job" in done.output


def test_the_order_of_a_layout_reaches_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `srobust run`: sizes without their order are another layout."""
    given: list[Session] = []

    class Watch:
        def __init__(self, session: Session) -> None:
            given.append(session)

        async def run(self) -> None:
            return None

    in_job(monkeypatch, Job(JobRef(1), "RUNNING", "ann", 1000, "main", nodes=("n1",)))
    monkeypatch.setattr(attach, "Supervisor", Watch)
    done = CliRunner().invoke(cli, ["attach", "--step=0", "--layout=tp=2,pp=2,order=pp-tp", "1"])
    assert done.exit_code == 0, done.output
    assert (given[0].layout, given[0].layout_order) == ({"tp": 2, "pp": 2}, "pp-tp")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--step=x"], "expected the number behind the point"),
        (["--launcher=1"], "--launcher goes with --step"),
        (["--step=0", "--hang-timeout=soon"], "--hang-timeout=soon: expected seconds, 1 to 604800"),
        (["--step=0", "--layout=tp=0"], "--layout=tp=0: layout: not understood: 'tp=0'"),
    ],
)
def test_wrong_options_are_told_under_the_names_they_have_here(words: list[str], told: str) -> None:
    """Exit 2, before Slurm is asked."""
    done = CliRunner().invoke(cli, ["attach", *words, "1"])
    assert done.exit_code == 2
    assert told in done.output
