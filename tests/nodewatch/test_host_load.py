"""CPU that processes of no job take from a node's jobs, and short memory: findings that inform, and drain nothing."""

from __future__ import annotations

from pathlib import Path

from watch_helpers import at

from slurm_robust.nodecheck.catalogue import job_urgency
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.host_load import HostLoad
from slurm_robust.nodewatch.ring import Seen
from slurm_robust.nodewatch.verdicts import Verdicts

JOB = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
SYSTEM = "0::/system.slice/backup.service\n"
WINDOW_TICKS = 3000
"""30 s."""


class Node:
    """Four CPUs, job 7 with its slurmstepd, and what is run beside."""

    def __init__(self, root: Path, jobs: bool = True) -> None:
        self.root, self.idle, self.ticks = root, 0, 0
        self.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n")
        self.write("etc/passwd", "root:x:0:0::/:/bin/sh\nalice:x:4711:4711::/:/bin/sh\n")
        if jobs:
            self.process(16, "slurmstepd", 0, parent=1, cmdline="slurmstepd: [7.0]\0")
        self.watch = HostLoad(Context("n1", "periodic", root=root), {}, ())

    def write(self, name: str, text: str) -> None:
        """Write one file below the node's root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self, pid: int, name: str, ticks: int, *, parent: int = 1, cgroup: str = SYSTEM, uid: int = 0, cmdline: str = ""
    ) -> None:
        """A process that has used so many ticks of CPU time; of kB it holds as many as its pid says."""
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) R {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 50 0 0\n")
        self.write(f"proc/{pid}/cgroup", cgroup)
        self.write(f"proc/{pid}/cmdline", cmdline)
        self.write(f"proc/{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmRSS:\t{pid} kB\n")

    def look(self, idle_share: float = 0.0) -> tuple[list[str], list[str]]:
        """Half a minute later: the sentences of what is wrong, and the lines for root's log."""
        self.ticks += WINDOW_TICKS * 4
        self.idle += int(WINDOW_TICKS * 4 * idle_share)
        self.write("proc/stat", f"cpu {self.ticks - self.idle} 0 0 {self.idle} 0 0 0 0\n" + "cpu0 1\n" * 4)
        results, log = self.watch.look()
        self.results = results
        return [result["sentence"] for result in results if result["status"] != "pass"], log


def test_strangers_that_take_a_jobs_cpu_are_told_once_and_named_in_the_log_alone(tmp_path: Path) -> None:
    """Twice in a row; users see the ring, so that names of other people's processes stand in root's log."""
    node = Node(tmp_path)
    said = []
    for look in range(4):
        node.process(41, "python", look * 4000, cgroup=JOB, uid=4711)
        node.process(50, "xmrig", look * 6000, uid=4711)
        said.append(node.look())
    (sentences, log), last = said[2], said[3]
    assert said[:2] == [([], []), ([], [])]
    (sentence,) = sentences
    assert sentence.startswith("processes of no job use 2.0 of 4 CPUs, and 0 % are idle")
    assert "xmrig" not in sentence
    assert "alice" not in sentence
    assert log == ["processes of no job use CPU that jobs need: xmrig (pid 50, user alice) 2.0 CPUs"]
    assert last == (sentences, [])
    assert node.look(0.5) == (sentences, [])
    assert node.look(0.5) == ([], [])


def test_healthy_nodes_are_told_nothing(tmp_path: Path) -> None:
    """A job that uses all CPUs, by control group, by slurmstepd or by environment; strangers beside idle CPUs."""
    node = Node(tmp_path)
    for look in range(4):
        node.process(41, "python", look * 5000, cgroup=JOB)
        node.process(42, "python", look * 5000, parent=16)
        node.process(43, "python", look * 2000)
        node.write("proc/43/environ", "A=1\0SLURM_JOB_ID=7\0")
        assert node.look() == ([], [])
    for look in range(4):
        node.process(50, "backup", look * 6000)
        assert node.look(0.25) == ([], [])


def test_a_node_without_jobs_may_be_as_busy_as_it_likes(tmp_path: Path) -> None:
    """Nobody needs its CPUs."""
    node = Node(tmp_path, jobs=False)
    for look in range(4):
        node.process(50, "backup", look * 12000)
        assert node.look() == ([], [])


def test_short_memory_is_a_note_and_makes_no_node_unfit(tmp_path: Path) -> None:
    """The check's own share; a node with less memory than Slurm thinks is for the prolog, and not said here."""
    node = Node(tmp_path)
    node.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 5000 kB\n")
    node.process(50, "xmrig", 0, uid=4711)
    (sentence,), log = node.look(1.0)
    assert sentence.startswith("4 of 976 MiB of memory are available")
    assert "xmrig (pid 50, user alice)" in log[0]
    verdicts = Verdicts("boot", {}, GpuNumbers(tmp_path), {})
    (seen,) = verdicts.changes("poll", node.results, at(60.0))
    assert isinstance(seen, Seen)
    assert (seen.unfit, seen.finding.urgency) == (False, job_urgency.NOTE)
    node.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n")
    assert node.look(1.0) == ([], [])
    short = HostLoad(Context("n1", "periodic", root=tmp_path), {"memory": {"expected_mb": 9999}}, ())
    assert [result["status"] for result in short.look()[0]] == ["pass", "pass"]
    assert HostLoad(Context("n1", "periodic", root=tmp_path), {}, ("memory", "tasks")).look() == ([], [])
