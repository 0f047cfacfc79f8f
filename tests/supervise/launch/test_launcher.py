"""The outer process of `srobust run`, with real processes standing in for srun and the supervisor."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import wait_until

DRIVER = """
import sys
from slurm_robust.supervise.launch import launcher
launcher._FIRST_MESSAGE_S, launcher._TICK_S = float(sys.argv[1]), float(sys.argv[4])
sys.exit(launcher.Launcher(["sh", "-c", sys.argv[2]], [sys.executable, "-c", sys.argv[3], "{fd}"]).run())
"""
TALK = """
import json, os, socket, sys
s = socket.socket(fileno=int(sys.argv[1])); f = s.makefile("r")
def say(**m): s.sendall(json.dumps(m).encode() + b"\\n")
def launch(script):
    say(do="launch", argv=["sh", "-c", script], env={"SROBUST_ATTEMPT": "1.0.1"}, unset=[], attempt="1.0.1")
"""


def start(
    tmp_path: Path, supervisor: str, *, plain: str = "exit 41", first_word_s: float = 10.0, tick_s: float = 60.0
) -> subprocess.Popen[str]:
    """A launcher in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(first_word_s), plain, TALK + supervisor, str(tick_s)],
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
f.readline(); code = json.loads(f.readline())["code"]; say(do="exit", code=code); f.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_an_interrupt_sent_to_the_launcher_alone_reaches_the_command(tmp_path: Path, number: int) -> None:
    """A wrapper's `kill -INT PID` is no key on a terminal: srun has not heard of it, and is told once."""
    process = start(tmp_path, COUNTS)
    wait_until((tmp_path / "up").exists, timeout_s=10, what="the command")
    process.send_signal(number)
    wait_until((tmp_path / "got").exists, timeout_s=10, what="the signal")
    (tmp_path / "stop").touch()
    process.communicate(timeout=20)
    assert process.returncode == 12
    assert (tmp_path / "got").read_text() == "x\n"


def test_a_key_on_the_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """Ctrl-C: the terminal has told srun already."""
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
