from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.devcluster import machine, process
from slurm_robust.devcluster.process import ClusterProcess, Command
from slurm_robust.supervise.launch import attempt_settings


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that a mistake could kill."""
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    """The same pid with another start time is not alive for us, and gets no signal."""
    real = process.identify(sleeper.pid)
    assert real is not None
    assert real.alive
    stale = ClusterProcess(real.pid, real.start_ticks - 1)
    assert not stale.alive
    assert not stale.signal(signal.SIGKILL)
    assert process.end(lambda: [stale]) == []
    assert sleeper.poll() is None


def test_a_zombie_does_not_live(sleeper: subprocess.Popen[bytes]) -> None:
    """A killed child that nobody has reaped yet counts as gone."""
    found = process.identify(sleeper.pid)
    assert found is not None
    assert process.end(lambda: [found]) == []
    assert not found.alive


def test_end_asks_first_where_it_may(tmp_path: Path) -> None:
    """With a grace time SIGTERM comes first, and what handles it ends by itself."""
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    script = f"trap 'echo asked >{mark}; exit' TERM; : >{ready}; while :; do sleep 0.05; done"
    child = subprocess.Popen(["sh", "-c", script])
    wait_until(ready.exists, 5, "the trap is set")
    found = process.identify(child.pid)
    assert found is not None
    assert process.end(lambda: [found], grace_s=5) == []
    assert child.wait() == 0
    assert mark.read_text() == "asked\n"


def test_end_remembers_an_orphan(sleeper: subprocess.Popen[bytes]) -> None:
    """What was found once is ended, although it is not found again (its parent being gone)."""
    found = process.identify(sleeper.pid)
    assert found is not None
    answers = iter([[found]])
    assert process.end(lambda: next(answers, [])) == []
    assert sleeper.wait() == -signal.SIGKILL


def test_launched_processes_outlive_us_and_are_nobodys_zombies(tmp_path: Path) -> None:
    """A launched daemon has its own session, its log and working directory, and is no child of ours."""
    log = tmp_path / "log"
    env = {"PATH": os.environ["PATH"], "WORD": "hello"}
    words = Command("d", ("sh", "-c", "echo $WORD; pwd; exec sleep 60"), env, log, tmp_path)
    gone = Command("d", ("/nonexistent/x",), env, tmp_path / "log2", tmp_path)
    started, failed = process.launch([words, gone])
    try:
        wait_until(lambda: len(log.read_text().splitlines()) == 2, 5, "it has written")
        assert log.read_text().split() == ["hello", str(tmp_path)]
        assert started.alive
        assert os.getsid(started.pid) == started.pid
        stat = process.read_stat(started.pid)
        assert stat is not None
        assert stat.parent != os.getpid()
        wait_until(lambda: not failed.alive, 5, "what cannot be executed ends")
        assert "/nonexistent/x" in (tmp_path / "log2").read_text()
    finally:
        process.end(lambda: [started])


def test_names_with_blanks_and_parentheses_are_read(tmp_path: Path) -> None:
    """/proc/PID/stat is split after the last parenthesis of the name."""
    odd = tmp_path / "a) (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "60"])
    try:
        stat = wait_until(
            lambda: (s := process.read_stat(child.pid)) and s.name == "a) (b" and s, 5, "it has its new name"
        )
        assert stat.parent == os.getpid()
    finally:
        child.kill()
        child.wait()


def test_we_and_our_ancestors_are_never_listed() -> None:
    """`down` from inside a job's shell must not kill that shell."""
    pids = set(process.every_pid())
    assert not pids & {os.getpid(), os.getppid()}


def test_no_port_of_a_cluster_is_one_that_a_training_may_choose() -> None:
    """A slurmd on a training's rendezvous port ends that training before its first step."""
    assert min(attempt_settings._PORTS) >= machine.LAST_PORT
    assert machine.LAST_PORT <= 20000, "examples/train.py begins there"


def test_two_port_blocks_never_overlap() -> None:
    """A block is kept from others while its owner starts up, though nothing listens yet; and one in use is avoided."""
    with machine.port_block() as first, machine.port_block() as second:
        assert first != second
        assert (first - second) % machine.PORT_BLOCK == 0


def test_a_block_with_a_used_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One listener anywhere in a block makes it another's."""
    with machine.port_block() as start:
        pass
    monkeypatch.setattr(machine, "FIRST_PORT", start)
    monkeypatch.setattr(machine, "LAST_PORT", start + machine.PORT_BLOCK + 1)
    with machine.port_block() as again:
        assert again == start
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", start + 33))
        listener.listen()
        with pytest.raises(machine.DevClusterError, match="free ports"), machine.port_block():
            pass
