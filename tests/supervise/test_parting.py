"""The wait for a requeue: what is decided at each look, and the tiny process that waits in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from helpers import wait_until

from slurm_robust.claim import Answer
from slurm_robust.config import SlurmConfig
from slurm_robust.model import EXIT_REQUEUE_WANTED, JobRef
from slurm_robust.supervise import nap
from slurm_robust.supervise.parting import ENDED_WITH_JOB, Phase, Wait, next_step

ASKED = Wait(
    JobRef(7),
    0,
    "i-1",
    ("n3",),
    "/tmp/x",
    SlurmConfig(),
    Phase.ASKED,
    until_s=100.0,
    answer_timeout_s=20.0,
    requeue_timeout_s=300.0,
)


def test_it_waits_for_the_answer() -> None:
    """Nothing is done before the time is over."""
    assert next_step(ASKED, None, 99.0, ending=False).wait == ASKED


def test_an_accepted_claim_waits_for_the_requeue() -> None:
    """The daemon's words go into the story; a daemon that comes no more costs a plain requeue, not the job."""
    step = next_step(ASKED, Answer("accepted", "i-1", "seat made"), 50.0, ending=False)
    assert (step.kind, step.text, step.requeue) == ("accepted", "the daemon: seat made", False)
    assert step.wait is not None
    assert (step.wait.phase, step.wait.until_s) == (Phase.ACCEPTED, 70.0)
    late = next_step(step.wait, None, 71.0, ending=False)
    assert (late.kind, late.requeue) == ("unanswered", True)
    assert late.wait is not None
    last = next_step(late.wait, None, 372.0, ending=False)
    assert (last.kind, last.wait, last.code) == ("gave-up", None, EXIT_REQUEUE_WANTED)


@pytest.mark.parametrize(("answer", "now_s"), [(Answer("refused", "i-1", "no seat"), 50.0), (None, 100.0)])
def test_without_the_daemon_the_job_requeues_itself(answer: Answer | None, now_s: float) -> None:
    """Refused, or no answer in time: a plain requeue, once."""
    step = next_step(ASKED, answer, now_s, ending=False)
    assert (step.kind, step.requeue) == ("unanswered", True)
    assert step.wait is not None
    assert step.wait.phase is Phase.REQUEUED
    assert not next_step(step.wait, answer, now_s + 1, ending=False).requeue


@pytest.mark.parametrize("phase", list(Phase))
def test_a_job_that_is_being_requeued_is_left_alone(phase: Phase) -> None:
    """Whatever was waited for: it has come, and nothing more is called."""
    step = next_step(replace(ASKED, phase=phase), None, 1e9, ending=True)
    assert (step.wait, step.requeue, step.code) == (None, False, ENDED_WITH_JOB)


def test_the_wait_travels_as_text() -> None:
    """From one process into the next."""
    assert msgspec.json.decode(ASKED.argv[-1], type=Wait) == ASKED


NAP = "import sys; from slurm_robust.supervise import nap; nap.nap(float(sys.argv[1]), sys.argv[2:])"


def napping(seconds: float, *argv: str, before: str = "") -> subprocess.Popen[str]:
    """A process that naps."""
    command = [sys.executable, "-c", f"{before}\n{NAP}", str(seconds), *argv]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def is_napping(pid: int) -> bool:
    """True once it has become the small shell."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"srobust-waits")
    except OSError:
        return False


@pytest.mark.parametrize("small", [nap._SMALL, "/nonexistent"])
def test_a_nap_ends_in_the_next_command_with_the_same_pid(small: str) -> None:
    """With the small shell and without: argument for argument, and whoever waits goes on waiting."""
    before = f"from slurm_robust.supervise import nap; nap._SMALL = {small!r}"
    began = time.monotonic()
    process = napping(0.6, "/bin/sh", "-c", 'echo $$ "$1"', "x", "two  words", before=before)
    out, err = process.communicate(timeout=20)
    assert (out, err) == (f"{process.pid} two  words\n", "")
    assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_nap_is_ended_by_what_ends_a_process(number: signal.Signals) -> None:
    """`scancel` and Ctrl-C arrive."""
    process = napping(60.0, "/bin/true")
    wait_until(lambda: is_napping(process.pid), timeout_s=10, what="the nap")
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode != 0


def test_a_blocked_or_ignored_alarm_wakes_it_all_the_same() -> None:
    """Whatever was inherited: a nap that never ends would hold the job."""
    before = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.pthread_sigmask(0, [14])"
    process = napping(0.6, "/bin/echo", "awake", before=before)
    assert process.communicate(timeout=10)[0] == "awake\n"


def test_a_command_that_is_not_there_returns() -> None:
    """The shell says so, and ends: nothing sleeps on."""
    process = napping(0.6, "/nonexistent/python")
    process.communicate(timeout=10)
    assert process.returncode != 0


def test_it_dies_with_its_parent_only_where_it_is_told() -> None:
    """Killed with the script's shell; a process of this test is no batch script."""
    assert not nap.is_batch_script(os.getpid())
    inner = f"import os; from slurm_robust.supervise import nap; nap.die_with_parent(os.getppid())\n{NAP}"
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$0" -c "$1" 60 /bin/true & echo $!; wait; true', sys.executable, inner],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    wait_until(lambda: is_napping(pid), timeout_s=10, what="the nap")
    shell.kill()
    shell.wait()
    wait_until(lambda: not is_napping(pid), timeout_s=2, what="its end")
    shell.stdout.close()
