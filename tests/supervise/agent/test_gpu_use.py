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

from slurm_robust.node_findings import NodeFinding
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
