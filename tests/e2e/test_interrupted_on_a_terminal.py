"""The user presses Ctrl-C twice where a training runs in the foreground of a terminal: what is ended stays ended."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import spec  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]

CTRL_C = b"\x03"
ASKS_ONCE_MORE = "one more within 1 sec to abort"
"""What srun says at the first Ctrl-C."""
UP = "echo x >> starts; touch up-$SLURM_PROCID; "
TASKS = {
    "ends by it": f"{UP}exec sleep 300",
    "takes no notice": f"trap '' INT; {UP}while :; do sleep 1; done",
}


class Terminal:
    """A command in the foreground of a terminal of its own."""

    def __init__(self, words: list[str], folder: Path, env: dict[str, str]) -> None:
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(folder)
                os.execvpe(words[0], words, env)
            finally:
                os._exit(127)
        self.text = ""
        """What it has shown so far."""
        self.code: int | None = None
        """Its exit code, once it has ended."""

    def look(self) -> None:
        """Read what has come."""
        while select.select([self._descriptor], [], [], 0)[0]:
            try:
                read = os.read(self._descriptor, 65536)
            except OSError:  # nobody has the terminal open any more
                break
            if not read:
                break
            self.text += read.decode(errors="replace")

    def press(self, key: bytes) -> None:
        """Press a key."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, key)

    def ended(self) -> bool:
        """Whether the command has ended."""
        self.look()
        if self.code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def close(self) -> None:
        """Hang up; what runs on ends by that."""
        os.close(self._descriptor)
        if self.code is None:
            wait_until(lambda: os.waitpid(self._pid, os.WNOHANG)[0], 60, "the command's end after its terminal's")


def press_twice(terminal: Terminal) -> None:
    """Ctrl-C, and another one as soon as srun asks for it.

    On a busy machine the second may come too late for srun, which then asks again.
    """
    deadline_s = time.monotonic() + 120
    while not terminal.ended():
        assert time.monotonic() < deadline_s, terminal.text
        asked = terminal.text.count(ASKS_ONCE_MORE)
        terminal.press(CTRL_C)
        wait_until(
            lambda asked=asked: terminal.ended() or terminal.text.count(ASKS_ONCE_MORE) > asked, 60, "srun's question"
        )
        terminal.press(CTRL_C)
        until_s = time.monotonic() + 20
        while not terminal.ended() and time.monotonic() < until_s:
            time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Two nodes for each of the allocations."""
    made = DevCluster.up(spec(standby=0, daemon=False, nodes=2))
    yield made
    made.down()


def end_of(cluster: DevCluster, folder: Path, terminal: Terminal) -> dict[str, object]:
    """What came of an allocation, once nothing of it is left."""
    job = re.search(r"Granted job allocation (\d+)", terminal.text)
    assert job is not None, terminal.text

    def shown() -> str:
        text = cluster.run(["scontrol", "-o", "show", "job", job[1]]).stdout
        over = "JobState=RUNNING" not in text and "JobState=COMPLETING" not in text
        return text if over and not cluster.processes(int(job[1])) else ""

    found = re.findall(r"\b(?:JobState|ExitCode|Restarts)=\S+", wait_until(shown, 60, "the end of the job"))
    starts = (folder / "starts").read_text().count("x")
    return {"code": terminal.code, "job": sorted(found), "starts": starts, "text": terminal.text}


@pytest.mark.parametrize("name", TASKS)
def test_ctrl_c_twice_in_an_allocation_ends_the_step_for_good(cluster: DevCluster, tmp_path: Path, name: str) -> None:
    """`salloc -N2 srobust run …`: srun's exit code, the same end of the job, and each task was started once.

    srun passes the second Ctrl-C on to the tasks, and kills at once those that it does not end: 130, or 137 where
    the kill came first.
    """
    folders = {way: tmp_path / way for way in ("srun", "robust")}
    ends = {}
    with contextlib.ExitStack() as open_terminals:
        terminals = {}
        for way, words in {"srun": ["srun"], "robust": ["srobust", "run"]}.items():
            folders[way].mkdir()
            command = ["salloc", "-N2", "-n2", *words, "sh", "-c", TASKS[name]]
            terminals[way] = Terminal(command, folders[way], cluster.env)
            open_terminals.callback(terminals[way].close)
        for way, terminal in terminals.items():
            up = [folders[way] / f"up-{task}" for task in (0, 1)]
            wait_until(lambda t=terminal, up=up: t.ended() or all(path.exists() for path in up), 120, "both tasks")
            assert terminal.code is None, terminal.text
            press_twice(terminal)
            ends[way] = end_of(cluster, folders[way], terminal)
    codes = (137,) if name == "takes no notice" else (130, 137)
    for end in ends.values():
        assert end["code"] in codes, ends
        assert end["job"] == [f"ExitCode={end['code']}:0", "JobState=FAILED", "Restarts=0"], ends
        assert end["starts"] == 2, ends
