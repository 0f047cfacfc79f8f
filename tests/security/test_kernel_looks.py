"""A line of the kernel log alone fails no node and moves no job: what it names is looked at."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.nodecheck.checks.host import kernel_log
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import kernel_looks, mounts, small_files
from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment

MOMENT = Moment(1_790_000_000.0, 100.0, 100.0)
_EXT4_SHUTDOWN = 0x8004587D


@pytest.fixture(autouse=True)
def _short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for, but in the test of it."""
    if "before_it_counts" not in request.node.name:
        monkeypatch.setattr(kernel_looks, "_PAUSES_S", ())


def table() -> list[mounts.Mount]:
    """What is mounted on this machine."""
    return mounts.parse(small_files.read_text(Path("/proc/self/mountinfo")))


def disk() -> str:
    """The kernel's name of a healthy disk that is mounted here."""
    for mount in table():
        link = Path("/sys/dev/block") / mount.device
        name = link.readlink().name if link.is_symlink() else ""
        if mount.fstype in ("ext4", "xfs") and not mount.super_read_only and not name.startswith("loop"):
            return name
    pytest.skip("no disk is mounted here")


@pytest.mark.parametrize(
    "line",
    [
        "XFS ({disk}): Shutting down filesystem",
        "EXT4-fs ({disk}): Remounting filesystem read-only",
        "XFS ({disk}): log I/O error -5; Forced shutdown",
    ],
)
def test_a_line_about_a_healthy_disk_only_warns(tmp_path: Path, line: str) -> None:
    """The real disk under the root of this machine answers: whatever the log says, the node stays in service."""
    log = tmp_path / "kmsg"
    log.write_text(f"4,7,9000000,-;{line.format(disk=disk())}\n")
    context = Context("n1", "prolog", Path("/"), log, tmp_path / "cache")
    finding = runner.run([kernel_log.check], context, {}, 10.0).results[0].finding
    assert (finding.status.value, finding.reason) in (("warn", "fs_shutdown"), ("warn", "remount_ro"))


@pytest.fixture
def mounted() -> Iterator[tuple[str, mounts.Mount]]:
    """An ext4 of its own on a loop device: the device's name, its mount."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, mkfs.ext4 and loop devices")
    with tempfile.TemporaryDirectory() as made:
        image, place = Path(made) / "image", Path(made) / "place"
        place.mkdir()
        image.write_bytes(b"\0" * (4 << 20))
        subprocess.run(["mkfs.ext4", "-q", "-e", "remount-ro", str(image)], check=True)
        if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False).returncode:
            pytest.skip("no loop device can be mounted here")
        try:
            mount = next(mount for mount in table() if mount.path == str(place))
            yield (Path("/sys/dev/block") / mount.device).readlink().name, mount
        finally:
            subprocess.run(["umount", str(place)], check=True)


def look(device: str, path: str) -> list[str]:
    """What the file system mounted there shows now."""
    mount = next(mount for mount in table() if mount.path == path)
    return kernel_looks.broken(Path("/"), table(), device, mount)


def test_a_real_shutdown_shows(mounted: tuple[str, mounts.Mount]) -> None:
    """A file system that the kernel has shut down is seen to be so; a healthy one is not."""
    device, mount = mounted
    assert look(device, mount.path) == []
    fd = os.open(mount.path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _EXT4_SHUTDOWN, struct.pack("I", 2))
    finally:
        os.close(fd)
    assert "fs_shutdown" in look(device, mount.path)


def test_a_real_error_shows_and_a_person_s_choice_does_not(mounted: tuple[str, mounts.Mount]) -> None:
    """Read-only after an error is a fault; read-only because somebody mounted it so is none."""
    device, mount = mounted
    subprocess.run(["mount", "-o", "remount,ro", mount.path], check=True)
    assert look(device, mount.path) == []
    subprocess.run(["mount", "-o", "remount,rw", mount.path], check=True)
    trigger = Path("/sys/fs/ext4") / device / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel makes no errors to order")
    trigger.write_text("a test of slurm_robust")
    assert "remount_ro" in look(device, mount.path)


def urgency(root: Path, text: str, *before: str) -> str:
    """How urgent the node watch finds this line, after these."""
    lines = KernelLines(Context("n1", "periodic", root, root / "kmsg"), {}, GpuNumbers(root))
    for earlier in before:
        lines.judge(KernelLog(f"4,7,9000000,-;{earlier}\0".encode()), MOMENT)
    return lines.judge(KernelLog(f"4,8,9000000,-;{text}\0".encode()), MOMENT)[-1].finding.urgency


CASES = [
    ("BUG: unable to handle page fault for address: ffffa1", "proc/sys/kernel/tainted", "128", "512"),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", "proc/sys/kernel/tainted", "16384", "0"),
    ("EDAC MC0: 1 UE memory read error on x (page:0x1f)", "sys/devices/system/edac/mc/mc0/ue_count", "1", "0"),
    ("SQUASHFS error: Unable to read page, block 1c0, size 2f", "proc/self/mountinfo", *(
        f"36 1 7:0 / / ro shared:1 - {kind} /dev/x ro\n" for kind in ("squashfs", "ext4")
    )),
    ("Memory failure: 0x1: Killing x:1 due to hardware memory corruption", "proc/meminfo", *(
        f"MemTotal: 9 kB\nHardwareCorrupted: {kib} kB\n" for kib in (4, 0)
    )),
    ("EXT4-fs error (device vda): ext4_find_entry:1463: inode #2: comm x", "sys/class/block/vda/size", "1", None),
    ("mlx5_core 0000:3b:00.0: x:825:(pid 0): device's health compromised - y", "sys/bus/pci/devices/0000:3b:00.0/class",
     "1", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "place", "sick", "healthy"), CASES)
def test_what_the_node_does_not_show_moves_no_job(
    tmp_path: Path, line: str, place: str, sick: str, healthy: str | None
) -> None:
    """A line is as urgent as it was where the node bears it out, and a note where the node shows the contrary."""
    path = tmp_path / "sick" / place
    path.parent.mkdir(parents=True)
    path.write_text(sick)
    assert urgency(tmp_path / "sick", line) in ("at_next_checkpoint", "if_repeated")
    path = tmp_path / "healthy" / place
    path = path if healthy is not None else path.parent.with_name("other") / path.name
    path.parent.mkdir(parents=True)
    path.write_text(healthy or "1")
    assert urgency(tmp_path / "healthy", line) == "note"


def test_an_old_taint_proves_nothing(tmp_path: Path) -> None:
    """The kernel remembers each oops until it is booted again: that neither bears out nor denies a second one."""
    path = tmp_path / "proc/sys/kernel/tainted"
    path.parent.mkdir(parents=True)
    path.write_text("128")
    oops = "kernel BUG at mm/slub.c:305!"
    assert urgency(tmp_path, oops) == "at_next_checkpoint"
    assert urgency(tmp_path, oops, "nothing", oops) == "at_next_checkpoint"
    path.write_text("0")
    assert urgency(tmp_path, oops, "nothing") == "note"


@pytest.mark.parametrize(
    ("line", "place", "calm", "sick"),
    [
        ("BUG: unable to handle page fault for address: ffffa1", "proc/sys/kernel/tainted", "512", "640"),
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0 page:0x1f)",
            "sys/devices/system/edac/mc/mc0/ue_count",
            "0",
            "1",
        ),
    ],
)
def test_the_kernel_prints_before_it_counts(tmp_path: Path, line: str, place: str, calm: str, sick: str) -> None:
    """An oops on a slow console is tainted half a second after its first line: the fault is told all the same."""
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(calm)
    later = threading.Timer(0.6, path.write_text, (sick,))
    later.start()
    assert urgency(tmp_path, line) == "at_next_checkpoint"
    later.join()


TREE = {
    "sys/bus/pci/devices/0000:00:00.0/class": "1",
    "sys/class/pci_bus/0000:41/device": "1",
    "sys/class/block/vda/size": "1",
    "sys/class/net/lo/mtu": "1",
    "proc/self/mountinfo": "30 1 8:17 / /scratch rw - ext4 /dev/sdb1 rw\n",
    "sys/devices/system/edac/mc/mc0/ue_count": "0",
    "proc/sys/kernel/tainted": "0",
}
REAL = [
    ("NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.", "now"),
    ("mlx5_core 0000:41:00.0: x:825:(pid 0): device's health compromised - reached miss count", "if_repeated"),
    ("mlx5_core 0000:41:00.0 ens1: NETDEV WATCHDOG: CPU: 3: transmit queue 7 timed out 5000 ms", "if_repeated"),
    ("bnxt_en 0000:41:00.0 ens1: TX timeout detected, starting reset task!", "if_repeated"),
    ("NETDEV WATCHDOG: eth7 (mlx5_core): transmit queue 3 timed out", "if_repeated"),
    ("EXT4-fs error (device sdb1): ext4_find_entry:1463: inode #2: comm x", "at_next_checkpoint"),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400", "at_next_checkpoint"),
    ("{1}[Hardware Error]: event severity: recoverable", "at_next_checkpoint"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), REAL, ids=lambda text: text[:20])
def test_a_real_fault_is_told_where_the_node_cannot_show_it(tmp_path: Path, line: str, wanted: str) -> None:
    """A card that has left the bus, a container's interface, a lost disk, an error of a CPU or a card: no mere note."""
    for place, text in TREE.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert urgency(tmp_path, line) == wanted
