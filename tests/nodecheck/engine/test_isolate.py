from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from helpers import wait_until

from slurm_robust.nodecheck.engine.isolate import Task, run_all


def block_on_pipe(pipe: Path) -> Any:
    """Open a pipe that nobody writes: like a path on a dead mount, this call does not come back."""
    with pipe.open() as file:
        return file.read()


def crash() -> None:
    """Die without a word, as a process does that the OOM killer takes."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stop: a process that gets no CPU any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    """Raise."""
    raise OSError(5, "Input/output error")


def test_a_blocked_function_ends_at_its_deadline_and_harms_no_other(tmp_path: Path) -> None:
    """The blocked, the stopped and the crashed are reported as such; the rest answer as if alone."""
    pipe = tmp_path / "dead-mount"
    os.mkfifo(pipe)
    started_s = time.monotonic()
    outcomes = run_all(
        {
            "dead": Task(lambda: block_on_pipe(pipe), 0.3),
            "stopped": Task(stop, 0.3),
            "crashed": Task(crash, 5.0),
            "failed": Task(fail, 5.0),
            "healthy": Task(lambda: {"n": [1, 2]}, 5.0),
            "large": Task(lambda: "x" * 300_000, 5.0),
        }
    )
    assert 0.25 < time.monotonic() - started_s < 30
    assert outcomes["dead"].timed_out
    assert outcomes["stopped"].timed_out
    assert "wait status 0x9" in outcomes["crashed"].error
    assert outcomes["failed"].error == "OSError: [Errno 5] Input/output error"
    assert outcomes["healthy"].value == {"n": [1, 2]}
    assert len(outcomes["large"].value) == 300_000
    assert list(outcomes) == ["dead", "stopped", "crashed", "failed", "healthy", "large"]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """No process and no descriptor stays, also of those that were abandoned."""
    pipe = tmp_path / "dead-mount"
    os.mkfifo(pipe)
    before = len(list(Path("/proc/self/fd").iterdir()))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    run_all(
        {"dead": Task(lambda: block_on_pipe(pipe), 0.05), "stopped": Task(stop, 0.05), "healthy": Task(os.getpid, 5.0)}
    )
    assert len(list(Path("/proc/self/fd").iterdir())) == before

    def alive() -> list[str]:
        """Children that run; one that was not reaped in time on a busy machine has ended all the same."""
        new = set(children.read_text().split()) - others
        return [c for c in new if Path(f"/proc/{c}/stat").read_text().rpartition(")")[2].split()[0] != "Z"]

    wait_until(lambda: not alive(), 20, "every child has ended")


def test_a_function_has_no_way_to_our_output(capfd: Any) -> None:
    """An abandoned process must not hold slurmd's pipe open: stdin, stdout and stderr are /dev/null in there."""

    def where() -> list[str]:
        os.write(1, b"noise")
        os.write(2, b"noise")
        return [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (0, 1, 2)]

    outcomes = run_all({"where": Task(where, 5.0)})
    assert outcomes["where"].value == [os.devnull] * 3
    assert capfd.readouterr() == ("", "")


def test_what_is_not_json_is_an_error_and_no_crash() -> None:
    """Facts are plain values; a set is told apart from an answer."""
    assert run_all({"set": Task(lambda: {1, 2}, 5.0)})["set"].error.startswith("TypeError")


def test_no_tasks_take_no_time() -> None:
    """Nothing to do is done."""
    assert run_all({}) == {}


def test_a_lane_is_one_process_and_keeps_what_was_read(tmp_path: Path) -> None:
    """Functions of one lane run one after another in one process; another lane is another."""
    outcomes = run_all(
        {
            "a": Task(os.getpid, 5.0, "files"),
            "b": Task(os.getpid, 5.0, "files"),
            "c": Task(os.getpid, 5.0, "other"),
            "d": Task(os.getpid, 5.0),
            "e": Task(os.getpid, 5.0),
        }
    )
    pids = {name: outcome.value for name, outcome in outcomes.items()}
    assert pids["a"] == pids["b"]
    assert len({*pids.values(), os.getpid()}) == 5


def test_one_that_hangs_or_crashes_does_not_take_its_lane_along(tmp_path: Path) -> None:
    """What the lane had still to do is done by a new process, each with its own deadline."""
    pipe = tmp_path / "dead-mount"
    os.mkfifo(pipe)
    outcomes = run_all(
        {
            "first": Task(os.getpid, 5.0, "files"),
            "dead": Task(lambda: block_on_pipe(pipe), 0.2, "files"),
            "crashed": Task(crash, 5.0, "files"),
            "failed": Task(fail, 5.0, "files"),
            "flood": Task(lambda: "x" * (5 << 20), 5.0, "files"),
            "last": Task(os.getpid, 5.0, "files"),
        }
    )
    assert outcomes["dead"].timed_out
    assert "wait status 0x9" in outcomes["crashed"].error
    assert outcomes["failed"].error.startswith("OSError")
    assert "answered more than" in outcomes["flood"].error
    assert outcomes["last"].value not in (None, outcomes["first"].value)


def test_after_two_hangs_the_rest_of_a_lane_is_not_tried(tmp_path: Path) -> None:
    """A hung driver hangs every question to it: the whole run takes two deadlines and not twenty."""
    pipe = tmp_path / "hung-driver"
    os.mkfifo(pipe)
    tasks = {f"q{n}": Task(lambda: block_on_pipe(pipe), 0.2, "driver") for n in range(20)}
    outcomes = run_all({**tasks, "healthy": Task(os.getpid, 5.0, "files")})
    assert [name for name, outcome in outcomes.items() if outcome.timed_out] == ["q0", "q1"]
    assert outcomes["q19"].error == "not tried: q1 hung before it"
    assert not outcomes["healthy"].error
