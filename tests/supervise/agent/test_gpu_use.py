"""Which GPUs ranks use: real processes, and files that stand for the devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import gpu_use as gpu_use_module
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.gpu_use import GpuUse
from slurm_robust.supervise.agent.ranks import Rank, StepProcess

HOLD = (
    "import pathlib, sys, time; f = [open(name) for name in sys.argv[2:]]; pathlib.Path(sys.argv[1]).touch(); "
    "time.sleep(1000)"
)
Start = Callable[..., Rank]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a rank that was given GPUs (Slurm's numbers), and has these device files open."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(given: tuple[int, ...] | None, *opened: int) -> Rank:
        ready = tmp_path / f"ready{len(processes)}"
        files = [tmp_path / f"nvidia{number}" for number in opened]
        for path in (*files, tmp_path / "nvidiactl"):
            path.touch()
        argv = [sys.executable, "-S", "-c", HOLD, str(ready), *map(str, files), str(tmp_path / "nvidiactl")]
        process = subprocess.Popen(argv)
        processes.append(process)
        wait_until(ready.exists, 10, "the rank")
        main = StepProcess(process.pid, 1, len(processes), "python", 0, 0, "0", 1, 1, "", gpus=given)
        return Rank(len(processes), "0", 1, main, (main,))

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def gpu_use(folder: Path, *ranks: Rank, minors_by_bus: tuple[int, ...] = ()) -> GpuUse:
    """What is known of these ranks, on a node whose GPUs have these device files in the order of the bus."""
    for number, minor in enumerate(minors_by_bus):
        gpu = folder / "gpus" / f"0000:{number:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"GPU UUID: \t GPU-1\nDevice Minor: \t {minor}\n")
    use = GpuUse(devices=str(folder / "nvidia"), driver=str(folder / "gpus"))
    use.learn(ranks)
    return use


def lost(*gpus: int, kind: str = "xid") -> NodeFinding:
    """GPUs of the node are lost."""
    return NodeFinding(1, 0.0, "kmsg", kind, "now", "lost", gpus)


def concerned(use: GpuUse, gpus: int = 8) -> list[int]:
    """The GPUs of whose loss the job is told."""
    return [gpu for gpu in range(gpus) if use.concerns(lost(gpu))]


def test_open_device_files_are_certain(start: Start, tmp_path: Path) -> None:
    """Whatever the environment says: gres.conf may count from another file."""
    assert concerned(gpu_use(tmp_path, start(None, 3))) == [3]
    assert concerned(gpu_use(tmp_path, start((0, 1), 4, 5))) == [4, 5]
    assert concerned(gpu_use(tmp_path, start((0,), 0), start((1,), 1))) == [0, 1]


def test_a_library_that_opens_all_gpus_does_not_make_them_the_jobs(start: Start, tmp_path: Path) -> None:
    """NVML does so where no cgroup forbids it."""
    assert concerned(gpu_use(tmp_path, start((2, 3), *range(8)))) == [2, 3]


def test_slurms_numbers_may_count_by_the_bus(start: Start, tmp_path: Path) -> None:
    """Device files 1 and 0 stand at the first and second place: what is open decides; before that, either may be it."""
    swapped = (1, 0, 2, 3)
    assert concerned(gpu_use(tmp_path, start((0,), 1), minors_by_bus=swapped), 4) == [1]
    early = GpuUse(devices=str(tmp_path / "nvidia"), driver=str(tmp_path / "gpus"))
    early.learn([start((0,))])
    assert concerned(early, 4) == [0, 1]
    assert early.concerns(lost(3)) is None, "it waits until the rank has opened a GPU"


def test_a_job_without_gpus_is_told_of_none(start: Start, tmp_path: Path) -> None:
    """Neither of one, nor of one that nobody can name; a disk concerns it as ever."""
    for given in (None, ()):
        use = gpu_use(tmp_path, start(given))
        assert not use.concerns(lost(2))
        assert not use.concerns(lost())
        assert not use.concerns(lost(kind="gpu_count"))
        assert use.concerns(lost(kind="disks"))
    assert gpu_use(tmp_path, start(None, 1)).concerns(lost(kind="gpu_count"))
    assert gpu_use(tmp_path, start((0,))).concerns(lost(kind="gpu_count"))


def test_a_rank_whose_files_nobody_may_list_has_the_gpus_that_slurm_names(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm names none either, nothing says that the fault is its own."""

    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    ranks = {given: start(given, 0) for given in ((2,), None)}
    monkeypatch.setattr(gpu_use_module.os, "listdir", refused)
    assert concerned(gpu_use(tmp_path, ranks[(2,)])) == [2]
    use = gpu_use(tmp_path, ranks[None])
    assert not use.concerns(lost(0))
    assert not use.concerns(lost())


def test_a_rank_that_has_ended_counts_by_what_it_had_open(start: Start, tmp_path: Path) -> None:
    """The lost GPU has killed it, and its finding comes a moment later."""
    rank = start(None, 6)
    use = gpu_use(tmp_path, rank)
    os.kill(rank.main.pid, signal.SIGKILL)
    os.waitpid(rank.main.pid, 0)
    use.learn([rank], now=True)
    assert concerned(use) == [6]
    use.learn([])
    assert concerned(use) == [6]


class Clock(SystemClock):
    """It stands until the test moves it."""

    at_s = 1000.0

    def monotonic_s(self) -> float:
        """Time."""
        return self.at_s


@pytest.fixture
def two(start: Start, tmp_path: Path) -> tuple[GpuUse, Clock, Rank, Rank]:
    """Ranks with a GPU each; the first has just died of its own."""
    clock = Clock()
    use = GpuUse(clock, devices=str(tmp_path / "nvidia"), driver=str(tmp_path / "gpus"))
    dies, lives = start((2, 3), 2), start((2, 3), 3)
    use.learn([dies, lives])
    clock.at_s += 90
    use.learn([lives], now=True)
    return use, clock, dies, lives


def test_a_rank_that_died_of_its_gpu_counts_while_others_live(two: tuple[GpuUse, Clock, Rank, Rank]) -> None:
    """With one GPU a rank no other one has it open; the finding may come much later."""
    use, clock, _, lives = two
    assert concerned(use) == [2, 3]
    clock.at_s += 3600
    use.learn([lives])
    assert concerned(use) == [2, 3]


def test_another_attempt_has_gpus_of_its_own(two: tuple[GpuUse, Clock, Rank, Rank]) -> None:
    """What killed the last one may be told two minutes late; then the node has no rank, or others."""
    use, clock, _, lives = two
    use.new_attempt()
    clock.at_s += 60
    use.learn([])
    assert concerned(use) == [2, 3]
    assert not use.unused
    use.learn([lives])
    clock.at_s += 60
    use.learn([lives])
    assert concerned(use) == [3]
    use.new_attempt()
    clock.at_s += 120
    use.learn([])
    assert concerned(use) == []
    assert use.unused


def test_a_shell_above_the_ranks_says_nothing_about_their_gpus_for_long(start: Start, tmp_path: Path) -> None:
    """It opened none, and Slurm's numbers need not be those of the device files."""
    clock = Clock()
    use = GpuUse(clock, devices=str(tmp_path / "nvidia"), driver=str(tmp_path / "gpus"))
    use.learn([start((0, 1))])
    worker = start((0, 1), 4)
    use.learn([worker])
    clock.at_s += 121
    use.learn([worker])
    assert concerned(use) == [4]


def test_a_driver_that_hangs_delays_neither_the_agent_nor_its_end(tmp_path: Path) -> None:
    """A pipe stands for the file of a lost GPU, which nobody ends: its number is not known, and that is all."""
    gpu = tmp_path / "gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    os.mkfifo(gpu / "information")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    (tmp_path / "nvidia0").touch()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from slurm_robust.supervise.agent.gpu_use import GpuUse; "
        f"use = GpuUse(devices={str(tmp_path / 'nvidia')!r}, driver={str(tmp_path / 'gpus')!r}); "
        "use.learn([]); print(dict(use.minors), use.driver)"
    )
    root = str(Path(__file__).resolve().parents[3])
    ended = subprocess.run([sys.executable, "-c", code, root], stdout=subprocess.PIPE, timeout=20, check=True)
    assert ended.stdout.split() == [b"{}", b"535"]
