"""The outer process of `srobust run`, with real processes standing in for srun and the supervisor."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import wait_until
from launcher_stage import DRIVER, TALK, start  # type: ignore[import-not-found]

EARLY = """
import os, sys
from slurm_robust.supervise.launch import early_launch, launcher
from slurm_robust.supervise.launch.attempt_settings import ResumePoint
launcher._QUIET_START_S, launcher._FIRST_MESSAGE_S = float(sys.argv[1]), float(sys.argv[5])
launch = early_launch.EarlyLaunch(
    "5.0.7.1", ("sh", "-c", sys.argv[2]), {"GIVEN": "yes"}, "ab12", ResumePoint(), {"/out": 3}, sys.argv[4] == "alone"
)
srun = early_launch.start(launch, os.environ)
sys.exit(launcher.Launcher(["sh", "-c", "exit 41"], [sys.executable, "-c", sys.argv[3], "{fd}"], early=srun).run())
"""


def start_early(
    tmp_path: Path, srun: str, supervisor: str, *, quiet_s: float = 0.0, alone: bool = True, first_word_s: float = 20.0
) -> subprocess.Popen[str]:
    """A launcher whose srun was started before it."""
    words = [str(quiet_s), srun, TALK + supervisor, "alone" if alone else "", str(first_word_s)]
    return subprocess.Popen(
        [sys.executable, "-c", EARLY, *words],
        cwd=tmp_path,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_stdin_stdout_and_exit_code_are_the_commands_own(tmp_path: Path) -> None:
    """Nothing stands between."""
    supervisor = """
f.readline(); launch('read x; echo got $x; exit 7'); f.readline()
say(do="exit", code=json.loads(f.readline())["code"]); f.readline()
"""
    process = start(tmp_path, supervisor)
    out, err = process.communicate("hello\n", timeout=20)
    assert (process.returncode, out) == (7, "got hello\n"), err


def test_a_supervisor_that_prepares_something_is_waited_for(tmp_path: Path) -> None:
    """The user's srun is not started plainly meanwhile."""
    supervisor = """
import time
f.readline(); say(do="prepares", within_s=30.0); time.sleep(0.6); launch('exit 7'); f.readline()
say(do="exit", code=json.loads(f.readline())["code"]); f.readline()
"""
    process = start(tmp_path, supervisor, first_word_s=0.5)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 7, err
    assert "sent nothing" not in err


def test_the_supervisor_learns_the_code_and_decides(tmp_path: Path) -> None:
    """A relaunch after a failure, then the code of the second."""
    supervisor = """
f.readline(); launch('exit 3'); f.readline()
assert json.loads(f.readline()) == {"ev": "ended", "code": 3, "attempt": "1.0.1"}
launch('echo second $SROBUST_ATTEMPT'); f.readline(); f.readline(); say(do="exit", code=0); f.readline()
"""
    process = start(tmp_path, supervisor)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "second 1.0.1\n"), err


def test_a_silent_supervisor_does_not_hold_the_launch(tmp_path: Path) -> None:
    """Fail open: the user's srun starts as typed."""
    process = start(tmp_path, "f.readline(); f.readline(); f.readline()", plain="echo plain; exit 5", first_word_s=0.3)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, "plain\n")
    assert "running without it" in err


def test_a_supervisor_that_cannot_live_leaves_a_plain_srun(tmp_path: Path) -> None:
    """A supervisor that dies at each start: the command runs all the same, once, with its own exit code."""
    process = start(tmp_path, "sys.exit(1)", plain="echo plain; exit 5")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "plain\n")


def test_a_killed_supervisor_is_started_anew_and_the_command_goes_on(tmp_path: Path) -> None:
    """The second supervisor is told which attempt runs."""
    supervisor = """
first = json.loads(f.readline())
if first["ev"] == "ready":
    launch('while [ ! -e go ]; do sleep 0.05; done; exit 9'); f.readline()
    open("pid", "w").write(str(os.getpid())); f.readline()
else:
    open("second", "w").write(json.dumps(first))
    code = json.loads(f.readline())["code"]; say(do="exit", code=code + 1); f.readline()
"""
    process = start(tmp_path, supervisor)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text(), timeout_s=10, what="the first supervisor")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    wait_until((tmp_path / "second").exists, timeout_s=10, what="the second supervisor")
    assert process.poll() is None
    (tmp_path / "go").touch()
    process.communicate(timeout=20)
    assert process.returncode == 10


def test_a_frozen_supervisor_is_killed_and_another_one_started(tmp_path: Path) -> None:
    """It says nothing for ten ticks; one that goes on talking, with as little to tell, is left alone."""
    supervisor = """
import threading, time
def talk():
    while True: say(do="alive"); time.sleep(0.05)
first = json.loads(f.readline())
if first["ev"] == "ready":
    launch('while [ ! -e go ]; do sleep 0.05; done; exit 9'); f.readline()
    import signal; os.kill(os.getpid(), signal.SIGSTOP)
else:
    threading.Thread(target=talk, daemon=True).start(); time.sleep(1.5)
    open("second", "w").write(json.dumps(first))
    code = json.loads(f.readline())["code"]; say(do="exit", code=code + 1); f.readline()
"""
    process = start(tmp_path, supervisor, tick_s=0.1)
    wait_until((tmp_path / "second").exists, timeout_s=20, what="the second supervisor")
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 10
    assert err.count("no sign of the supervisor") == 1


def test_signals_reach_the_command(tmp_path: Path) -> None:
    """What a script sends to its `srobust run` arrives at srun."""
    supervisor = """
f.readline(); launch('trap "exit 12" USR1; touch up; while :; do sleep 0.05; done'); f.readline()
code = json.loads(f.readline())["code"]; say(do="exit", code=code); f.readline()
"""
    process = start(tmp_path, supervisor)
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=20)
    assert process.returncode == 12


def test_a_missing_srun_is_said(tmp_path: Path) -> None:
    """127 and a sentence, as a shell would."""
    supervisor = (
        "f.readline(); say(do='launch', argv=['/nonexistent/srun'], env={}, unset=[], attempt='a'); f.readline()"
    )
    process = start(tmp_path, supervisor)
    began = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 127
    assert "is Slurm installed" in err
    assert time.monotonic() - began < 15


def test_a_requeue_ends_a_launcher_that_waits_for_it(tmp_path: Path) -> None:
    """Srun has ended and a requeue is wanted: SIGTERM is then the requeue itself, and nothing may outlive its job."""
    supervisor = """
f.readline(); launch('exit 9'); f.readline(); f.readline(); open("waiting", "w").close(); f.readline()
"""
    process = start(tmp_path, supervisor)
    wait_until((tmp_path / "waiting").exists, timeout_s=10, what="the wait for the requeue")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143


def test_a_launcher_whose_script_is_gone_starts_no_other_supervisor(tmp_path: Path) -> None:
    """The batch script was killed and the supervisor with it: the next attempt of the job has its own."""
    supervisor = """
f.readline(); launch('exit 9'); f.readline(); f.readline()
open("supervisors", "a").write(str(os.getpid()) + "\\n"); f.readline()
"""
    code = DRIVER.replace("sys.exit(", "code = (").replace("run())", "run()); open('code', 'w').write(str(code))")
    words = [sys.executable, "-c", code, "10", "exit 41", TALK + supervisor, "60"]
    script = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    listed = tmp_path / "supervisors"
    wait_until(lambda: listed.exists() and listed.read_text(), timeout_s=10, what="the wait for the requeue")
    script.kill()
    script.wait()
    os.kill(int(listed.read_text()), signal.SIGKILL)
    wait_until((tmp_path / "code").exists, timeout_s=10, what="the launcher's end")
    wait_until(lambda: (tmp_path / "code").read_text() == "143", timeout_s=5, what="its code")
    assert len(listed.read_text().split()) == 1


COUNTS = """
f.readline(); launch("trap 'echo x >> got' INT QUIT; touch up; while [ ! -e stop ]; do sleep 0.02; done; exit 12")
f.readline()
while (told := json.loads(f.readline()))["ev"] == "signalled":
    print(told["attempt"], told["number"], file=open("told", "a"))
say(do="exit", code=told["code"]); f.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_an_interrupt_sent_to_the_launcher_alone_reaches_the_command(tmp_path: Path, number: int) -> None:
    """A wrapper's `kill -INT PID` is no key on a terminal: srun and the supervisor are told of it, once each."""
    process = start(tmp_path, COUNTS)
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    process.send_signal(number)
    wait_until((tmp_path / "got").exists, timeout_s=10, what="the signal")
    (tmp_path / "stop").touch()
    process.communicate(timeout=20)
    assert process.returncode == 12
    assert (tmp_path / "got").read_text() == "x\n"
    assert (tmp_path / "told").read_text() == f"1.0.1 {int(number)}\n"


def test_the_supervisor_is_told_of_two_interrupts_where_srun_ended_as_it_does_after_two(tmp_path: Path) -> None:
    """The launcher heard one: it was starting a process while the second came."""
    process = start(tmp_path, COUNTS.replace("trap 'echo x >> got' INT QUIT", "trap 'touch got; exit 130' INT"))
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert (tmp_path / "told").read_text() == f"1.0.1 {int(signal.SIGINT)}\n" * 2


def test_a_supervisor_that_is_started_anew_is_told_how_the_step_is_ended(tmp_path: Path) -> None:
    """Its predecessor knew of the SIGTERM and was killed; the next one must not start the training again.

    It is told when the signal came, not when it was told: two Ctrl-C count only where one soon follows the other.
    """
    supervisor = """
import time
first = json.loads(f.readline())
if first["ev"] == "ready":
    launch("trap '' TERM; touch up; while [ ! -e stop ]; do sleep 0.02; done; exit 12"); f.readline(); f.readline()
    open("first_told_at", "w").write(str(time.monotonic())); os.kill(os.getpid(), 9)
open("told", "w").write(f.readline()); code = json.loads(f.readline())["code"]; say(do="exit", code=code); f.readline()
"""
    process = start(tmp_path, supervisor)
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    before_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text(), 10, "the second supervisor")
    (tmp_path / "stop").touch()
    process.communicate(timeout=20)
    assert process.returncode == 12
    told = json.loads((tmp_path / "told").read_text())
    at_s = told.pop("at_s")
    assert told == {"ev": "signalled", "attempt": "1.0.1", "number": int(signal.SIGTERM)}
    assert before_s <= at_s <= float((tmp_path / "first_told_at").read_text())


def test_an_interrupt_after_the_commands_end_leaves_it_its_exit_code(tmp_path: Path) -> None:
    """One Ctrl-C too many: the command had ended by then, and its own exit code is returned, as srun's would be."""
    supervisor = """
f.readline(); launch('exit 9'); f.readline(); f.readline(); open("ended", "w").close(); f.readline()
"""
    process = start(tmp_path, supervisor)
    wait_until((tmp_path / "ended").exists, timeout_s=10, what="the command's end")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 9


def test_a_key_on_the_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """Ctrl-C: the terminal has told srun already, and the supervisor hears of it all the same."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        words = [sys.executable, "-c", DRIVER, "10", "exit 41", TALK + COUNTS, "60"]
        os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    os.write(terminal, b"\x03")
    wait_until((tmp_path / "got").exists, timeout_s=10, what="the signal")
    (tmp_path / "stop").touch()
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 12
    assert (tmp_path / "got").read_text() == "x\n"
    assert (tmp_path / "told").read_text() == f"1.0.1 {int(signal.SIGINT)}\n"


def test_a_launcher_in_the_background_is_deaf_between_two_launches(tmp_path: Path) -> None:
    """A script's `srobust run … &` starts with SIGINT ignored, as its srun does: Ctrl-C does not end the wait."""
    supervisor = """
f.readline(); launch('exit 9'); f.readline(); f.readline(); open("waiting", "w").close()
while not os.path.exists("on"): __import__("time").sleep(0.02)
launch('exit 7'); f.readline(); code = json.loads(f.readline())["code"]; say(do="exit", code=code); f.readline()
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(tmp_path, supervisor)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until((tmp_path / "waiting").exists, timeout_s=10, what="the wait between launches")
    process.send_signal(signal.SIGINT)
    (tmp_path / "on").touch()
    process.communicate(timeout=20)
    assert process.returncode == 7


ENDS_WITH_IT = """
say(do="alive"); open("told", "w").write(f.readline())
say(do="exit", code=json.loads(f.readline())["code"] + 1); f.readline()
"""


def test_srun_runs_before_its_supervisor_and_is_taken_over(tmp_path: Path) -> None:
    """Stdin, stdout and variables are as ever; the supervisor is told what srun was given, and that it has failed."""
    process = start_early(tmp_path, "read x; echo $x $GIVEN; exit 7", ENDS_WITH_IT)
    out, err = process.communicate("hello\n", timeout=20)
    assert (process.returncode, out) == (8, "hello yes\n"), err
    told = json.loads((tmp_path / "told").read_text())
    assert (told["ev"], told["attempt"], told["lineage"]) == ("early", "5.0.7.1", "ab12")
    assert told["output_from"] == {"/out": 3}


@pytest.mark.parametrize("code", [0, 7])
def test_a_short_step_that_fails_is_handled_and_one_that_ends_well_needs_nobody(tmp_path: Path, code: int) -> None:
    """It is over before the supervisor is to start."""
    process = start_early(tmp_path, f"exit {code}", ENDS_WITH_IT, quiet_s=10.0)
    process.communicate(timeout=20)
    assert process.returncode == (8 if code else 0)
    assert (tmp_path / "told").exists() is bool(code)


@pytest.mark.parametrize("alone", [True, False])
def test_a_supervisor_that_still_loads_its_modules_is_ended_where_nothing_needs_it(tmp_path: Path, alone: bool) -> None:
    """Where the claim of an attempt before waits for the end of this one, the supervisor has its say."""
    waits = 'open("up", "w").close()\nwhile not os.path.exists("on"): __import__("time").sleep(0.02)\n' + ENDS_WITH_IT
    process = start_early(tmp_path, "while [ ! -e up ]; do sleep 0.02; done", waits, alone=alone)
    if not alone:
        wait_until((tmp_path / "up").exists, timeout_s=10, what="the supervisor")
        (tmp_path / "on").touch()
    process.communicate(timeout=20)
    assert process.returncode == (0 if alone else 1)


def test_a_supervisor_that_has_begun_is_not_ended_by_a_good_end(tmp_path: Path) -> None:
    """It may have written a claim, which only it completes."""
    process = start_early(tmp_path, "while [ ! -e told ]; do sleep 0.02; done", ENDS_WITH_IT)
    process.communicate(timeout=20)
    assert process.returncode == 1


def test_a_supervisor_that_cannot_live_leaves_the_early_srun_alone(tmp_path: Path) -> None:
    """It is said, the command runs once, and its exit code is its own."""
    process = start_early(tmp_path, "echo once; while [ ! -e on ]; do sleep 0.02; done; exit 5", "sys.exit(1)")
    assert process.stderr is not None
    assert "nothing ends it where one of its ranks dies" in process.stderr.readline()
    (tmp_path / "on").touch()
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, "once\n")


def test_signals_reach_an_srun_that_has_no_supervisor_yet(tmp_path: Path) -> None:
    """From its start on."""
    process = start_early(
        tmp_path, 'trap "exit 12" USR1; touch up; while :; do sleep 0.05; done', ENDS_WITH_IT, quiet_s=10.0
    )
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=20)
    assert process.returncode == 13


def test_a_supervisor_that_says_nothing_does_not_hold_the_code_of_an_srun_that_has_failed(tmp_path: Path) -> None:
    """It hangs at its start; nothing was decided yet, so the script goes on with srun's own exit code."""
    silent = 'open("pid", "w").write(str(os.getpid())); f.readline(); f.readline(); f.readline()'
    process = start_early(tmp_path, "while [ ! -s pid ]; do sleep 0.02; done; exit 5", silent, first_word_s=0.3)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "the supervisor sent nothing" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "broken",
    [
        "socket.socketpair = refuse(OSError(24, 'Too many open files'))",
        "threading.Thread.start = refuse(RuntimeError('no new thread'))",
    ],
)
def test_a_user_without_descriptors_or_threads_left_keeps_the_command(broken: str) -> None:
    """An srun that was started already is not orphaned: the launcher goes on without a supervisor."""
    program = f"""
import socket, sys, threading
from slurm_robust.supervise.launch.launcher import Launcher
def refuse(error):
    def call(*_, **__):
        raise error
    return call
{broken}
sys.exit(Launcher(["sh", "-c", "exit 7"], [sys.executable, "-c", "pass"]).run())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False, env=env
    )
    assert done.returncode == 7, done.stderr
    assert "the supervisor cannot be started" in done.stderr
