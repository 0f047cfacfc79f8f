"""What must not change while a fresh verdict holds, on a saved tree that a test changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.nodecheck.stages import fast_path
from slurm_robust.nodecheck.stages.fast_path import StaleVerdict

IB = "sys/class/infiniband/mlx5_0"
FILES = {
    "proc/sys/kernel/random/boot_id": "boot-1",
    "proc/meminfo": "MemTotal: 2000000 kB",
    "proc/driver/nvidia/version": "NVRM version",
    "proc/driver/nvidia/gpus/0000:1b:00.0/information": "Device Minor: \t 0",
    "proc/driver/nvidia/gpus/0000:9b:00.0/information": "Device Minor: \t 1",
    "proc/77/stat": "77 (munged) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 99 0 0",
    "proc/77/comm": "munged",
    f"{IB}/hca_type": "MT4129",
    f"{IB}/ports/1/link_layer": "InfiniBand",
    f"{IB}/ports/1/state": "4: ACTIVE",
    f"{IB}/ports/1/phys_state": "5: LinkUp",
    f"{IB}/ports/1/rate": "400 Gb/sec (4X NDR)",
    "sys/class/net/eth0/flags": "0x1003",
    "sys/class/net/eth0/operstate": "up",
    "sys/class/net/eth0/carrier": "1",
    "sys/devices/system/cpu/present": "0-7",
    "sys/devices/system/cpu/online": "0-7",
    "sys/block/nvme0n1/size": "1000",
    "sys/block/nvme0n1/ro": "0",
    "sys/module/nvidia_uvm/refcnt": "0",
}


class Node:
    """A saved tree and the folder with its verdict."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.config = folder / "robust.yaml"
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text("Linux version 6.1.0\n")
        for name, text in FILES.items():
            self.write(name, text)
        options = "{ethernet: {interfaces: [eth0]}, services: {required: [munged]}, disks: {expected: {'nvme*': 1}}}"
        self.config.write_text(
            f"nodecheck: {{root: {self.root}, kmsg: {self.kmsg}, cache_dir: {folder}/cache, deadline_s: 30, "
            f"options: {options}}}\n"
        )

    def write(self, name: str, text: str) -> None:
        """One small file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def holds(self) -> dict[str, str]:
        """What the verdict says; raises where it does not hold."""
        return fast_path.cached_verdict(str(self.config), "n1")[1]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A healthy node that the periodic check looked at a moment ago."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.delenv("SLURM_JOB_GPUS", raising=False)
    made = Node(tmp_path)
    assert fast_path.main("periodic", str(made.config)) == 0
    return made


def says(name: str, text: str) -> Callable[[Node], None]:
    """A file says something else."""
    return lambda node: node.write(name, text)


def gone(name: str) -> Callable[[Node], None]:
    """A folder is no more."""
    return lambda node: shutil.rmtree(node.root / name)


def logged(text: str) -> Callable[[Node], object]:
    """The kernel says something."""
    return lambda node: node.kmsg.write_text(f"{node.kmsg.read_text()}{text}\n")


CHANGES = {
    "a port goes down": says(f"{IB}/ports/1/state", "1: DOWN"),
    "a card is gone": gone(IB),
    "a link goes down": says("sys/class/net/eth0/operstate", "down"),
    "a required service ends": gone("proc/77"),
    "another has its number": says("proc/77/comm", "sleep"),
    "a CPU goes offline": says("sys/devices/system/cpu/online", "0-6"),
    "a disk can only be read": says("sys/block/nvme0n1/ro", "1"),
    "a disk is gone": gone("sys/block/nvme0n1"),
    "a GPU is gone": gone("proc/driver/nvidia/gpus/0000:9b:00.0"),
    "a process has the GPUs": says("sys/module/nvidia_uvm/refcnt", "2"),
    "a GPU does not start": logged("NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x26:0x56:1463)"),
    "a card is ill": logged("mlx5_core 0000:61:00.0: poll_health:739:(pid 0): device's health compromised"),
    "memory fails": logged("EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0 slot:0 page:0x1f)"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_can_break_a_job_between_two_looks_ends_it(node: Node, change: Callable[[Node], None]) -> None:
    """Each is seen without a check being loaded, and leads to the whole look."""
    assert node.holds()["again"] == ""
    change(node)
    with pytest.raises(StaleVerdict):
        node.holds()


def test_a_job_with_more_gpus_than_there_were_is_looked_at(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that was missing concerned no earlier job; ids of MIG instances say nothing."""
    for given in ("0", "0,1", "", "MIG-x"):
        monkeypatch.setenv("SLURM_JOB_GPUS", given)
        node.holds()
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2")
    with pytest.raises(StaleVerdict, match="got 3 GPUs"):
        node.holds()


def test_what_changes_without_harm_leaves_it(node: Node) -> None:
    """A new process, a log line, an interface that nobody needs."""
    node.write("proc/78/comm", "python")
    node.write("sys/class/net/eth1/operstate", "down")
    logged("mlx5_core 0000:61:00.0: Port module event: module 0, Cable plugged")(node)
    node.holds()
