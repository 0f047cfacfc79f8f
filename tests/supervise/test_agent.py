"""The node agent, as the real process it is, with real victims beside it; no Slurm needed: it reads environments."""

from __future__ import annotations

import base64
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until

from slurm_robust.supervise.agent import wire
from slurm_robust.supervise.agent.ranks import StepProcess, group
from slurm_robust.supervise.watch.watch_step import py_spy_path

ROOT = Path(__file__).resolve().parents[2]
VICTIM = """
import sys, time
sys.path.insert(0, {root!r})
from slurm_robust import progress
def training_loop():
    for i in range(10**6):
        progress.step(i, loss=0.5)
        time.sleep(0.05)
training_loop()
"""


class Stage:
    """Victims of one made-up job, and the agent that watches them."""

    def __init__(self) -> None:
        self.job = str(secrets.randbelow(10**9) + 10**9)
        self.processes: list[subprocess.Popen[Any]] = []
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.history: list[dict[str, Any]] = []
        self.agent: subprocess.Popen[str] | None = None

    def env(self, procid: int, **more: str) -> dict[str, str]:
        """What Slurm would put into a rank's environment."""
        return {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": self.job,
            "SLURMD_NODENAME": "n1",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(procid),
            "SLURM_STEP_NUM_TASKS": "2",
            "SROBUST_ATTEMPT": "1.0.1",
            **more,
        }

    def victim(
        self, procid: int, *, prefix: tuple[str, ...] = (), code: str = VICTIM, **more: str
    ) -> subprocess.Popen[Any]:
        """Start a rank."""
        argv = [*prefix, sys.executable, "-c", code.format(root=str(ROOT))]
        process = subprocess.Popen(argv, env=self.env(procid, **more))
        self.processes.append(process)
        return process

    def start_agent(self) -> None:
        """Start the agent as the watch step does."""
        boot = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from slurm_robust.supervise.agent.main import main; main(sys.argv[1:])"
        )
        env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "1", "SROBUST_WATCH": "1"}
        self.agent = subprocess.Popen(
            [sys.executable, "-S", "-s", "-E", "-c", boot, self.job, "1.0.1", "0.1", py_spy_path()],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.agent is not None
        assert self.agent.stdout is not None
        decoder = wire.Decoder()
        for line in self.agent.stdout:
            message = decoder.feed(line)
            if message is not None:
                self.said.put(message)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message to the agent."""
        assert self.agent is not None
        assert self.agent.stdin is not None
        for line in wire.encode("supervisor", 1, {"t": kind, **fields}):
            self.agent.stdin.write(line + "\n")
        self.agent.stdin.flush()

    def hear(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for a message with these fields."""

        def found() -> dict[str, Any] | None:
            while not self.said.empty():
                self.history.append(self.said.get())
            for message in self.history:
                if message["t"] == kind and all(message.get(k) == v for k, v in fields.items()):
                    self.history.remove(message)
                    return message
            return None

        return wait_until(found, timeout_s=15, what=f"{kind} {fields}")  # type: ignore[return-value]

    def end(self) -> None:
        """End everything that was started here."""
        for process in [*self.processes, *([self.agent] if self.agent else [])]:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
            if process.stdin:
                process.stdin.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage that is cleared at the end."""
    made = Stage()
    yield made
    made.end()


def archive_of(message: dict[str, Any]) -> dict[str, Any]:
    """What a capture carries."""
    loaded: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(message["blob"])))
    return loaded


def test_ranks_their_progress_and_their_stacks_are_found(stage: Stage) -> None:
    """Found by environment; progress by memfd; a capture names the function each stands in, and leaves it running."""
    victims = [stage.victim(0), stage.victim(1)]
    stage.start_agent()
    stage.hear("hello")
    for rank, victim in enumerate(victims):
        assert stage.hear("rank", rank=rank)["pid"] == victim.pid
    reported = set()
    while reported != {0, 1}:  # one may begin later than the other
        entries = stage.hear("p")["r"]
        assert all(entry[2] == "train" for entry in entries)
        reported |= {entry[0] for entry in entries}
    stage.tell("capture", id=7, round=1, timeout_s=10)
    archive = archive_of(stage.hear("cap", id=7))
    assert [r["rank"] for r in archive["ranks"]] == [0, 1]
    for entry in archive["ranks"]:
        main = entry["processes"][0]
        assert not main["error"]
        functions = [f[0] for t in archive["stacks"][main["stack"]] if t["main"] for f in t["frames"]]
        assert functions[-1] == "training_loop"
        assert entry["progress"]["step"] >= 0
    assert all(v.poll() is None for v in victims)


def test_foreign_processes_are_no_ranks(stage: Stage) -> None:
    """Another job, another node of the same host, another cluster, another attempt, the watch step, batch scripts."""
    stage.victim(0, SLURM_JOB_ID="1")
    stage.victim(1, SLURMD_NODENAME="n2")
    stage.victim(2, SROBUST_ATTEMPT="1.0.0")
    stage.victim(3, SLURM_STEP_ID="1")
    stage.victim(4, SROBUST_WATCH="1")
    stage.victim(6, SLURM_STEP_ID="4294967291")
    stage.victim(7, SLURM_STEP_ID="-5")
    mine = stage.victim(5)
    stage.start_agent()
    assert stage.hear("rank")["pid"] == mine.pid
    stage.tell("capture", id=1, round=1, timeout_s=10)
    assert [r["rank"] for r in archive_of(stage.hear("cap", id=1))["ranks"]] == [5]


def test_a_stopped_and_a_dead_rank_are_reported(stage: Stage) -> None:
    """State T of any process of the tree, its end of it, and a rank that vanished."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.hear("rank", rank=0)
    victim.send_signal(signal.SIGSTOP)
    assert stage.hear("state", rank=0, s="T")["pid"] == victim.pid
    victim.send_signal(signal.SIGCONT)
    stage.hear("state", rank=0, s="")
    victim.kill()
    victim.wait()
    assert stage.hear("gone", rank=0)["pid"] == victim.pid


def test_a_stopped_rank_is_captured_and_stays_stopped(stage: Stage) -> None:
    """What somebody stopped is evidence; only what py-spy left stopped is continued."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.hear("p")
    victim.send_signal(signal.SIGSTOP)
    stage.hear("state", rank=0, s="T")
    stage.tell("capture", id=1, round=1, timeout_s=10)
    main = archive_of(stage.hear("cap", id=1))["ranks"][0]["processes"][0]
    assert main["state"] == "T"
    assert main["stack"]
    assert Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_the_whole_tree_is_captured_and_one_failure_spoils_nothing(stage: Stage) -> None:
    """A shell (no Python: py-spy fails on it) above a rank with a forked helper."""
    code = """
import os, sys, time
def helper():
    time.sleep(1000)
def leader():
    time.sleep(1000)
helper() if os.fork() == 0 else leader()
"""
    script = f"{sys.executable} -c '{code}' & sleep 1000"
    process = subprocess.Popen(["sh", "-c", script], env=stage.env(0), start_new_session=True)
    try:
        stage.start_agent()
        stage.hear("rank", rank=0)

        def captured() -> list[dict[str, Any]]:
            stage.tell("capture", id=1, round=1, timeout_s=10)
            archive = archive_of(stage.hear("cap", id=1))
            got: list[dict[str, Any]] = archive["ranks"][0]["processes"] if archive["ranks"] else []
            return got if sum(1 for p in got if p["stack"]) == 2 else []

        processes = wait_until(captured, timeout_s=15, what="two Python processes with stacks")
        assert len(processes) == 4  # sh, sleep, leader, helper
        assert processes[0]["stack"], "the rank's own process is its first Python, not the shell above it"
        assert sum(1 for p in processes if p["error"]) == 2
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_rank_in_a_container_is_found(stage: Stage) -> None:
    """Another mount and PID namespace, /dev/shm of its own: progress and stack come through all the same."""
    prefix = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    stage.victim(0, prefix=prefix)
    stage.start_agent()
    stage.hear("rank", rank=0)

    def progress() -> bool:
        return any(entry[1] >= 0 for entry in stage.hear("p")["r"])

    wait_until(progress, timeout_s=15, what="progress through the namespaces")
    stage.tell("capture", id=1, round=1, timeout_s=10)
    archive = archive_of(stage.hear("cap", id=1))
    names = [f[0] for threads in archive["stacks"].values() for t in threads for f in t["frames"]]
    assert "training_loop" in names


def test_clean_ends_what_outlived_its_step(stage: Stage) -> None:
    """Orphans of the ended attempt are killed; the answer says that nothing is left; another attempt is not touched."""
    victim, other = stage.victim(0), stage.victim(1, SROBUST_ATTEMPT="1.0.2")
    stage.start_agent()
    stage.hear("rank", rank=0)
    stage.tell("clean", id=3, attempt="1.0.1", timeout_s=10)
    assert stage.hear("clean", id=3)["left"] == []
    stage.tell("clean", id=3, attempt="1.0.1", timeout_s=10)
    stage.tell("clean", id=6, attempt="1.0.1", timeout_s=10)
    assert stage.hear("clean")["id"] == 6, "told again, the same is not begun twice"
    assert victim.wait(10) == -signal.SIGKILL
    assert other.poll() is None


PARENT = """
import os, pathlib, sys, time
child = os.fork()
if child == 0:
    held = b"x" * (256 << 20)  # takes a while to die
    pathlib.Path("{where}/child").write_text(str(os.getpid()))
    time.sleep(1000)
os.waitpid(child, 0)
pathlib.Path("{where}/reacted").touch()
time.sleep(1000)
"""


def test_clean_ends_a_rank_after_its_loaders(stage: Stage, tmp_path: Path) -> None:
    """A slurmstepd that finds processes when its task has ended waits a second; and no rank sees its loader die."""
    rank = stage.victim(0, code=PARENT.replace("{where}", str(tmp_path)))
    stage.start_agent()
    stage.hear("rank", rank=0)
    written = tmp_path / "child"
    child = wait_until(lambda: written.exists() and written.read_text(), 10, "the loader")
    stage.tell("clean", id=4, attempt="1.0.1", timeout_s=10)
    assert rank.wait(timeout=10) == -signal.SIGKILL
    stat = Path(f"/proc/{child}/stat")
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    assert state in ("Z", "X", "gone"), "the loader outlived its rank"
    assert not (tmp_path / "reacted").exists()
    assert stage.hear("clean", id=4)["left"] == []


def test_the_agent_ends_with_its_supervisor(stage: Stage) -> None:
    """End of input ends it, and harms no rank."""
    victim = stage.victim(0)
    stage.start_agent()
    stage.hear("rank", rank=0)
    assert stage.agent is not None
    assert stage.agent.stdin is not None
    stage.agent.stdin.close()
    assert stage.agent.wait(10) == 0
    stage.agent.stdin = None
    assert victim.poll() is None


def test_the_agent_imports_nothing_but_the_standard_library(stage: Stage) -> None:
    """It runs with -S on every node: site-packages are not even visible."""
    stage.start_agent()
    stage.hear("hello")


def member(pid: int, ppid: int, procid: int, rank: int = -1, command: str = "python") -> StepProcess:
    """A process of the step, for the pure part."""
    return StepProcess(pid, ppid, pid, command, procid, rank, "0", 8, 2, "")


def test_torchrun_workers_are_the_ranks() -> None:
    """One task a node, its workers told apart by RANK; a worker's loaders belong to it; the launcher is no rank."""
    members = [
        member(10, 1, 0, command="torchrun"),
        member(11, 10, 0, 0),
        member(12, 10, 0, 1),
        member(13, 11, 0, 0),
        member(14, 12, 0, 1),
    ]
    ranks = group(members)
    assert [(r.rank, [m.pid for m in r.tree]) for r in ranks] == [(0, [11, 13]), (1, [12, 14])]


def test_tasks_without_rank_are_named_by_procid() -> None:
    """One task a rank, a shell above the Python."""
    ranks = group([member(10, 1, 4, command="sh"), member(11, 10, 4), member(20, 1, 5)])
    assert [(r.rank, r.main.pid) for r in ranks] == [(4, 11), (5, 20)]


def test_an_orphaned_loader_stays_with_its_rank() -> None:
    """Its parent died and it was adopted by init: it joins the rank instead of becoming one."""
    ranks = group([member(10, 1, 0), member(15, 1, 0)])
    assert [(r.rank, r.main.pid, len(r.tree)) for r in ranks] == [(0, 10, 2)]


LOADED_RANK = """
import os, pathlib, time
if os.fork() == 0:
    pathlib.Path("{where}/loader").write_text(str(os.getpid()))
time.sleep(1000)
"""


def test_a_dead_ranks_loader_does_not_take_its_place(stage: Stage, tmp_path: Path) -> None:
    """The loader outlives its rank for seconds: the rank is gone all the same, and nobody is above it to decide."""
    victim = stage.victim(0, code=LOADED_RANK.replace("{where}", str(tmp_path)))
    written = tmp_path / "loader"
    loader = int(wait_until(lambda: written.exists() and written.read_text(), 10, "the loader"))
    stage.start_agent()
    try:
        stage.hear("rank", rank=0)
        stage.tell("capture", id=1, round=1, timeout_s=10)
        assert len(archive_of(stage.hear("cap", id=1))["ranks"][0]["processes"]) == 2
        victim.kill()
        victim.wait()
        gone = stage.hear("gone", rank=0)
        assert (gone["pid"], gone["task_lives"]) == (victim.pid, False)
        stage.hear("hb", ranks=0)
        assert not [m for m in stage.history if m["t"] == "rank"]
    finally:
        os.kill(loader, signal.SIGKILL)


def test_below_a_shell_a_ranks_end_is_the_shells_to_judge(stage: Stage) -> None:
    """With torchrun or a shell above, the worker's end is not the task's."""
    python = f"RANK=3 {sys.executable} -c 'import time; time.sleep(1000)'"
    shell = subprocess.Popen(["sh", "-c", f"{python} & echo $!; sleep 1000"], env=stage.env(0), stdout=subprocess.PIPE)
    stage.processes.append(shell)
    assert shell.stdout is not None
    worker = int(shell.stdout.readline())
    stage.start_agent()
    wait_until(lambda: stage.hear("rank", rank=3), 15, "the worker")
    os.kill(worker, signal.SIGKILL)
    assert stage.hear("gone", rank=3)["task_lives"] is True


def test_an_agent_stays_as_long_as_its_ranks_when_slurm_ends_the_job(stage: Stage) -> None:
    """SIGTERM, and no supervisor any more: it is there until the last rank is gone, and no longer."""
    victims = [stage.victim(0), stage.victim(1)]
    stage.start_agent()
    assert stage.agent is not None
    assert stage.agent.stdin is not None
    for rank in (0, 1):
        stage.hear("rank", rank=rank)
    stage.agent.terminate()
    stage.agent.stdin.close()
    victims[0].kill()
    stage.hear("gone", rank=0)
    victims[0].wait()
    with pytest.raises(subprocess.TimeoutExpired):
        stage.agent.wait(0.7)  # more than it stays where there was no SIGTERM
    victims[1].kill()
    victims[1].wait()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_are_meant_for_the_program(stage: Stage, first: signal.Signals) -> None:
    """`--signal=USR1@300` goes to all steps: an agent takes no notice. Without its supervisor it ends, ranks or not."""
    stage.victim(0)
    stage.start_agent()
    assert stage.agent is not None
    assert stage.agent.stdin is not None
    stage.hear("rank", rank=0)
    stage.agent.send_signal(first)
    stage.tell("clean", id=3, attempt="none")
    stage.hear("clean", id=3)
    stage.agent.stdin.close()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0


def test_a_job_without_ranks_ends_at_once(stage: Stage) -> None:
    """SIGTERM where no rank is: nothing is waited for."""
    stage.start_agent()
    stage.hear("hello")
    assert stage.agent is not None
    stage.agent.terminate()
    stage.agent.wait(5.0)
    assert stage.agent.returncode == 0
