"""Two supervised runs in one job."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.wire import own_folder


@pytest.fixture
def cluster() -> str:
    """A name that no other test of this machine has: all of one user's are in one folder."""
    return f"test-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def another_process(cluster: str) -> Iterator[bool]:
    """A process that has tried to be the job's supervisor; killed at the end, without a chance to tidy up."""
    held = (
        "import sys; from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock; "
        "s = SupervisorLock(sys.argv[1], '5'); print(s.claim(), flush=True); input()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", held, cluster], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline() == "True\n"
        process.kill()
        process.wait()


def test_the_second_is_told_and_the_first_learns_of_it(cluster: str) -> None:
    """Neither acts from then on; another job, or the next run of the same job, is not concerned."""
    first, second, other = SupervisorLock(cluster, "5"), SupervisorLock(cluster, "5"), SupervisorLock(cluster, "6")
    assert not first.taken
    assert first.claim()
    assert first.taken
    assert other.claim()
    assert not first.shared
    assert not second.claim()
    assert first.shared
    assert (first.accompanied, second.accompanied, other.accompanied) == (True, True, False)
    assert not other.shared
    second.release()
    first.release()
    other.release()
    third = SupervisorLock(cluster, "5")
    assert third.claim()
    assert not third.shared
    third.release()


def test_who_came_second_and_ended_disarms_nobody(cluster: str) -> None:
    """A short step in the background: while it lives neither acts, afterwards the long one does."""
    first = SupervisorLock(cluster, "5")
    assert first.claim()
    with another_process(cluster) as alone:
        assert not alone
        assert first.shared
    assert not first.shared
    first.release()


def test_a_third_knows_of_the_second_that_outlived_the_first(cluster: str) -> None:
    """The name that the second holds stays when the first gives its own up."""
    first, second, third = SupervisorLock(cluster, "5"), SupervisorLock(cluster, "5"), SupervisorLock(cluster, "5")
    assert first.claim()
    assert not second.claim()
    first.release()
    assert third.claim()
    assert third.shared
    second.release()
    assert not third.shared
    third.release()


def test_a_killed_supervisor_leaves_nothing_behind(cluster: str) -> None:
    """Slurm kills it when its job is cancelled: no file stays in /tmp, and the next run of the job acts."""
    with another_process(cluster) as alone:
        assert alone
    assert list(Path(tempfile.gettempdir()).glob(f"*{cluster}*")) == []
    after = SupervisorLock(cluster, "5")
    assert after.claim()
    assert not after.shared
    after.release()


def test_a_folder_that_cannot_be_had_keeps_nobody_from_acting(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock can be held, on a full disk for example: the usual case, one run, must not suffer."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_folder, "first_own", refuse)
    sole = SupervisorLock(cluster, "5")
    assert sole.claim()
    assert not sole.shared
    assert not sole.taken
    assert sole.fd == -1


def test_a_name_goes_on_in_the_process_that_takes_it_over(cluster: str) -> None:
    """A launcher hands it to its supervisor; a descriptor of something else is closed."""
    launcher, supervisor, other = (
        SupervisorLock(cluster, "5"),
        SupervisorLock(cluster, "5"),
        SupervisorLock(cluster, "5"),
    )
    assert launcher.claim()
    supervisor.take_over(os.dup(launcher.fd))
    launcher.release()
    assert not other.claim()
    other.release()
    assert supervisor.claim()
    strange = os.dup(0)
    other.take_over(strange)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(strange)
    supervisor.release()


def test_what_a_killed_one_left_is_removed(cluster: str) -> None:
    """By the next run of any job of this user."""
    with another_process(cluster):
        pass
    folder = Path(f"/tmp/srobust-{os.geteuid()}")
    assert list(folder.glob(f"{cluster}-5.*"))
    after = SupervisorLock(cluster, "6")
    assert after.claim()
    assert not list(folder.glob(f"{cluster}-5.*"))
    after.release()
