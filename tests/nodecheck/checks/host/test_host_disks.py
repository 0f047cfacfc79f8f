from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.sources import mdstat

WHOLE = """\
Personalities : [raid1] [raid0]
md0 : active raid1 nvme1n1p2[1] nvme0n1p2[0]
      465370432 blocks super 1.2 [2/2] [UU]
      bitmap: 2/4 pages [8KB], 65536KB chunk

md127 : active raid0 nvme5n1[3] nvme4n1[2] nvme3n1[1] nvme2n1[0]
      15002423296 blocks super 1.2 512k chunks

unused devices: <none>
"""
DEGRADED = """\
Personalities : [raid1] [raid6]
md0 : active (auto-read-only) raid1 sdb1[2](F) sda1[0]
      465370432 blocks super 1.2 [2/1] [U_]
md1 : active raid6 sdg1[6] sdf1[4](S) sde1[3] sdd1[1]
      7814041600 blocks super 1.2 level 6, 512k chunk, algorithm 2 [4/3] [_UUU]
      [==>..................]  recovery = 12.6% (493480/3906886) finish=127.5min speed=33440K/sec
md2 : inactive sdh1[0](S)
      976630488 blocks super 1.2
unused devices: <none>
"""

CONTAINER = """\
Personalities : [raid1]
md126 : active raid1 nvme1n1[1] nvme0n1[0]
      890806272 blocks super external:/md127/0 [2/2] [UU]

md127 : inactive nvme1n1[1](S) nvme0n1[0](S)
      10402 blocks super external:imsm

unused devices: <none>
"""
"""Intel's VROC (and DDF likewise): the container of the arrays never runs itself."""


def test_arrays_are_read() -> None:
    """Members missing, failed, being rebuilt; a raid0 counts none; an inactive array is one too."""
    assert mdstat.parse(WHOLE) == [mdstat.Array("md0", True, 0, (), ""), mdstat.Array("md127", True, 0, (), "")]
    assert mdstat.parse(DEGRADED) == [
        mdstat.Array("md0", True, 1, ("sdb1",), ""),
        mdstat.Array("md1", True, 1, (), "recovery"),
        mdstat.Array("md2", False, 0, (), ""),
    ]


@given(st.text(max_size=300))
def test_any_array_table_is_read_without_an_error(text: str) -> None:
    """The parser is total."""
    mdstat.parse(text)


@given(st.integers(0, len(DEGRADED)), st.text(max_size=8), st.integers(0, len(DEGRADED)))
def test_a_garbled_array_table_is_read_without_an_error(start: int, garbage: str, end: int) -> None:
    """Also one that began well."""
    for array in mdstat.parse(DEGRADED[:start] + garbage + DEGRADED[end:]):
        assert array.missing >= 0


def disk(name: str, *, ro: int = 0, removable: int = 0, size: int = 1 << 30, state: str = "live") -> dict[str, str]:
    """A disk below /sys/block."""
    folder = f"/sys/block/{name}"
    return {
        f"{folder}/ro": f"{ro}\n",
        f"{folder}/removable": f"{removable}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/device/state": f"{state}\n",
    }


def nvmes(count: int) -> dict[str, str]:
    """So many NVMe disks with their controllers."""
    files: dict[str, str] = {}
    for n in range(count):
        files |= disk(f"nvme{n}n1")
        files[f"/sys/class/nvme/nvme{n}/state"] = "live\n"
    return files


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_disks")),
        (nvmes(8), {}, ("pass", "disks_alive")),
        (nvmes(8), {"expected": {"nvme*": 8}}, ("pass", "disks_alive")),
        (nvmes(7), {"expected": {"nvme*": 8}}, ("fail", "disk_missing")),
        ({**nvmes(8), **disk("nvme3n1", ro=1)}, {"expected": {"nvme*": 8}}, ("fail", "disk_missing")),
        ({**nvmes(8), **disk("nvme3n1", ro=1)}, {}, ("warn", "disk_read_only")),
        ({**nvmes(2), "/sys/class/nvme/nvme1/state": "dead"}, {}, ("warn", "nvme_dead")),
        ({**nvmes(2), "/sys/class/nvme/nvme1/state": "resetting"}, {}, ("pass", "disks_alive")),
        (disk("sda", state="running"), {}, ("pass", "disks_alive")),
        (disk("sda", state="offline"), {}, ("warn", "disk_offline")),
        # What holds no jobs' data: card readers, images, optical drives, a virtual machine's images.
        ({**disk("loop3", ro=1), **disk("sr0", ro=1), **disk("sdz", ro=1, removable=1)}, {}, ("skip", "no_disks")),
        (disk("sdy", size=0, ro=1), {}, ("skip", "no_disks")),
        (disk("vda", ro=1), {}, ("pass", "disks_alive")),
        ({**nvmes(4), "/proc/mdstat": WHOLE}, {}, ("pass", "disks_alive")),
        ({**nvmes(4), "/proc/mdstat": DEGRADED}, {}, ("warn", "array_degraded")),
        ({**nvmes(2), "/proc/mdstat": CONTAINER}, {}, ("pass", "disks_alive")),
        ({**nvmes(2), "/proc/mdstat": CONTAINER.replace("[2/2] [UU]", "[2/1] [U_]")}, {}, ("warn", "array_degraded")),
    ],
)
def test_disks(tmp_path: Path, files: dict[str, str], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """A count that the site gave can fail; whatever else is wrong with a disk is told."""
    assert said("disks", plant(tmp_path, files), **options) == expected


@pytest.mark.parametrize(
    "way",
    [
        "devices/platform/host4/session1/target4:0:0/4:0:0:0/block/sda",
        "devices/pci0000:00/0000:00:03.0/host9/rport-9:0-1/target9:0:0/9:0:0:1/block/sda",
    ],
)
def test_a_disk_of_the_network_is_no_local_one(tmp_path: Path, way: str) -> None:
    """The read-only root of a node without disks comes by iSCSI or Fibre Channel."""
    files = {name.replace("/sys/block/sda", f"/sys/{way}"): text for name, text in disk("sda", ro=1).items()}
    plant(tmp_path, files)
    (tmp_path / "sys/block").mkdir()
    (tmp_path / "sys/block/sda").symlink_to(f"../{way}")
    assert said("disks", tmp_path) == ("skip", "no_disks")


AER = "/sys/bus/pci/devices/0000:3b:00.0"


def aer(corrected: int, nonfatal: int = 0) -> dict[str, str]:
    """A card's counters as Linux writes them."""
    return {
        f"{AER}/aer_dev_correctable": f"RxErr {corrected}\nBadTLP 0\nTOTAL_ERR_COR {corrected}\n",
        f"{AER}/aer_dev_nonfatal": f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n",
        f"{AER}/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n",
    }


def test_pcie_errors_are_judged_by_what_is_new(tmp_path: Path) -> None:
    """What was counted before the first look is no matter; new uncorrected ones warn, corrected ones by their rate."""
    assert said("pcie_errors", plant(tmp_path, {})) == ("skip", "no_aer")
    assert said("pcie_errors", plant(tmp_path, aer(10**6, 4))) == ("pass", "pcie_quiet")
    assert said("pcie_errors", plant(tmp_path, aer(10**6 + 50, 4))) == ("pass", "pcie_quiet")
    assert said("pcie_errors", plant(tmp_path, aer(10**6 + 5000, 4))) == ("warn", "pcie_corrected")
    assert said("pcie_errors", plant(tmp_path, aer(10**6 + 5000, 5))) == ("warn", "pcie_uncorrected")
    assert said("pcie_errors", plant(tmp_path, aer(3))) == ("pass", "pcie_quiet")  # counters started anew
    plant(tmp_path, {f"{AER}/aer_dev_correctable": "TOTAL_ERR_COR \x00", f"{AER}/aer_dev_fatal": None})
    assert said("pcie_errors", tmp_path) == ("pass", "pcie_quiet")
