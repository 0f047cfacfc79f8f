"""A disk is lost: who has lost anything with it?"""

from __future__ import annotations

from pathlib import Path

import pytest
from watch_helpers import at, kernel_lines, record

from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodewatch import disk_use

_MOUNTS = """\
22 1 259:2 / / rw shared:1 - xfs /dev/nvme0n1p2 rw
30 22 253:0 / /scratch rw - xfs /dev/mapper/vg-scratch rw
31 22 9:127 / /home rw - ext4 /dev/md127 rw
32 22 9:1 / /fast rw - ext4 /dev/md1 rw
"""
NVME = "nvme nvme{}: Disabling device after reset failure: -19"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """/ on nvme0, /scratch by LVM on nvme1, /home on a mirror of sda and sdb, /fast striped over nvme2 and nvme3."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(_MOUNTS)
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n/dev/sdc2 partition 1 0 -2\n")
    block = tmp_path / "sys/class/block"
    slaves = {"dm-0": ["nvme1n1"], "md127": ["sda1", "sdb1"], "md1": ["nvme2n1", "nvme3n1"]}
    for name, disks in slaves.items():
        for disk in disks:
            (block / name / "slaves" / disk).mkdir(parents=True)
    for name, level in (("md127", "raid1"), ("md1", "raid0")):
        (block / name / "md").mkdir()
        (block / name / "md/level").write_text(f"{level}\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/253:0").symlink_to("../../devices/virtual/block/dm-0")
    return tmp_path


@pytest.mark.parametrize(
    ("disk", "used"),
    [
        *(("nvme0", True), ("nvme1", True), ("nvme3", True), ("sdc", True)),
        *(("sda", False), ("nvme9", False), ("nvme", False), ("nvme00", False)),
    ],
)
def test_what_is_mounted_on_it(root: Path, disk: str, used: bool) -> None:
    """Also below LVM and stripes; a mirror goes on without it."""
    assert disk_use.in_use(root, [disk]) is used


def test_nothing_is_known_without_a_table_of_mounts(tmp_path: Path) -> None:
    """Then a lost disk counts as one in use."""
    assert disk_use.in_use(tmp_path, ["sda"]) is None
    assert urgencies(tmp_path, NVME.format(7)) == ["now"]


def urgencies(root: Path, *texts: str) -> list[str]:
    """How urgent these lines of the kernel log are."""
    data = "".join(record(n, 90 + n, text) + "\0" for n, text in enumerate(texts, 1))
    return [seen.finding.urgency for seen in kernel_lines(root).judge(KernelLog(data.encode()), at(200))]


@pytest.mark.parametrize(
    ("text", "urgency"),
    [
        (NVME.format(0), "now"),
        (NVME.format(9), "note"),
        ("md/raid1:md127: Disk failure on sda1, disabling device.", "at_next_checkpoint"),
        ("md/raid0:md1: Disk failure on nvme2n1 detected, failing this array.", "now"),
        ("sd 6:0:0:0: rejecting I/O to offline device", "note"),
        ("sd 6:0:0:0: [sdc] rejecting I/O to offline device", "now"),
    ],
)
def test_only_a_disk_in_use_is_urgent(root: Path, text: str, urgency: str) -> None:
    """A degraded array waits for the checkpoint; a disk without a name is a note."""
    assert urgencies(root, text) == [urgency]
