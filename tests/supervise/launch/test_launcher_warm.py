"""The launcher with the srun of a warm step beside the user's own; shells stand in for srun."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from helpers import wait_until
from launcher_stage import start  # type: ignore[import-not-found]

WARM = """
def warm(script):
    argv = ["sh", "-c", script]
    say(do="warm", argv=argv, env={"SROBUST_ATTEMPT": "1.0.2"}, unset=["GONE"], attempt="1.0.2")
f.readline()
"""


def lives(pid: Path) -> bool:
    """Whether the process runs whose number is in this file."""
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_released_warm_step_is_the_attempt(tmp_path: Path) -> None:
    """Its exit code counts, and its environment is that of the order; what srun writes comes through from then on."""
    supervisor = """
warm('echo early >&2; while [ ! -e go ]; do sleep 0.05; done; echo late $SROBUST_ATTEMPT >&2; exit 6')
launch('exit 3'); f.readline(); assert json.loads(f.readline())["code"] == 3
say(do="adopt-warm", attempt="1.0.2", evicted=["n3"])
started = json.loads(f.readline())
assert (started["ev"], started["attempt"]) == ("started", "1.0.2")
open("go", "w"); ended = json.loads(f.readline())
assert ended["attempt"] == "1.0.2"
say(do="exit", code=ended["code"]); f.readline()
"""
    process = start(tmp_path, WARM + supervisor)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (6, "early\nlate 1.0.2\n")


def test_what_a_warm_step_that_failed_has_written_is_no_line_of_the_job(tmp_path: Path) -> None:
    """The supervisor gets it; a line such as `srun: error: n2: task 1: Killed` would be read as a rank's end."""
    supervisor = """
launch('while [ ! -e go ]; do sleep 0.05; done; exit 0'); f.readline()
warm('echo "srun: error: n2: task 1: Killed" >&2; exit 9')
ended = json.loads(f.readline())
assert (ended["ev"], ended["code"], ended["text"]) == ("warm-ended", 9, "srun: error: n2: task 1: Killed"), ended
open("go", "w"); say(do="exit", code=json.loads(f.readline())["code"] + 4); f.readline()
"""
    process = start(tmp_path, WARM + supervisor)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (4, "")


def test_one_that_has_ended_just_before_its_release_is_an_attempt_that_ended(tmp_path: Path) -> None:
    """Nobody waits for it, and the supervisor decides what follows."""
    supervisor = """
warm('exit 0'); assert json.loads(f.readline())["ev"] == "warm-ended"
say(do="adopt-warm", attempt="1.0.2"); ended = json.loads(f.readline())
assert (ended["ev"], ended["attempt"], ended["code"]) == ("ended", "1.0.2", 1)
launch('exit 7'); f.readline(); say(do="exit", code=json.loads(f.readline())["code"]); f.readline()
"""
    process = start(tmp_path, WARM + supervisor)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (7, "")


def test_a_warm_step_ends_with_the_launcher_and_with_its_supervisor(tmp_path: Path) -> None:
    """By an exit, and where the supervisor is killed: another one does not know it."""
    supervisor = """
if not os.path.exists("first"):
    open("first", "w").write(str(os.getpid()))
    warm('echo $$ > one; exec sleep 60'); launch('while [ ! -e go ]; do sleep 0.05; done'); f.readline()
    f.readline()
else:
    warm('echo $$ > two; exec sleep 60')
    json.loads(f.readline()); say(do="exit", code=5); f.readline()
"""
    process = start(tmp_path, WARM + supervisor)
    one, two = tmp_path / "one", tmp_path / "two"
    wait_until(lambda: one.exists() and one.read_text(), 10, "the first warm step")
    os.kill(int((tmp_path / "first").read_text()), signal.SIGKILL)
    wait_until(lambda: not lives(one), 10, "its end")
    wait_until(lambda: two.exists() and two.read_text(), 10, "the second warm step")
    (tmp_path / "go").touch()
    process.communicate(timeout=20)
    assert process.returncode == 5
    assert not lives(two)


def test_an_srun_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    """And one that is asked for again replaces the one before it."""
    supervisor = """
say(do="warm", argv=["./no-such-srun"], env={}, unset=[], attempt="1.0.2")
ended = json.loads(f.readline()); assert (ended["code"], "no-such-srun" in ended["text"]) == (127, True), ended
warm('exec sleep 60'); say(do="end-warm", attempt="1.0.9"); say(do="end-warm", attempt="1.0.2")
launch('exit 8'); f.readline(); say(do="exit", code=json.loads(f.readline())["code"]); f.readline()
"""
    process = start(tmp_path, WARM + supervisor)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (8, "")
