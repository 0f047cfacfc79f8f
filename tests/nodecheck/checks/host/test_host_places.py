from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.host import date, scratch
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.registry import CheckError
from slurm_robust.nodecheck.sources import pci

DEBIAN = (
    "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org) (gcc-12) #1 SMP PREEMPT Debian 6.1.76-1 (2024-02-01)"
)
UBUNTU = "Linux version 5.15.0-101-generic (buildd@lcy02) (gcc 11.4.0) #111-Ubuntu SMP Tue Mar 5 20:16:58 UTC 2024"


@pytest.mark.parametrize(("version", "year"), [(DEBIAN, 2024), (UBUNTU, 2024), ("Linux version 6.1", None), ("", None)])
def test_the_kernel_says_when_it_was_built(version: str, year: int | None) -> None:
    """Debian's date in brackets, the usual one at the end, or none."""
    built = date.built_s(version)
    assert (built is None) == (year is None)
    if built is not None:
        assert time.gmtime(built + 86_400).tm_year == year


@given(st.text(max_size=120))
def test_any_version_is_read_without_an_error(text: str) -> None:
    """Total."""
    date.built_s(text)


@pytest.mark.parametrize(
    ("years_after", "expected"),
    [(-54.0, "date_in_the_past"), (-0.02, "date_believable"), (3.0, "date_believable"), (60.0, "date_far_ahead")],
)
def test_date(years_after: float, expected: str) -> None:
    """1970 after a dead battery warns; so does a date decades ahead."""
    built = date.built_s(UBUNTU)
    assert built is not None
    facts = {"here": True, "built_s": built, "now_s": built + years_after * 365.25 * 86_400}
    assert date.judge(facts, {}).reason == expected
    assert date.judge({**facts, "here": False}, {}).status.value == "skip"
    assert date.judge({**facts, "built_s": None}, {}).status.value == "skip"


def config(control: int | None, *, size: int = 4096) -> bytes:
    """A bridge's configuration space: AER at 0x100, then ACS at 0x150."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | (0x150 if control is not None else 0) << 20)
    if control is not None:
        struct.pack_into("<IHH", space, 0x150, 0x000D | 1 << 16, 0x005F, control)
    return bytes(space[:size])


@pytest.mark.parametrize(
    ("control", "size", "expected"),
    [(0x1D, 4096, 0x1D), (0, 4096, 0), (None, 4096, None), (0x1D, 64, None), (0x1D, 0, None)],
)
def test_acs_is_read_from_the_configuration_space(control: int | None, size: int, expected: int | None) -> None:
    """Without root only 64 bytes can be read: then nothing is known."""
    assert pci.acs_control(config(control, size=size)) == expected


@given(st.binary(max_size=600), st.integers(0, 0xFFFF_FFFF))
def test_any_configuration_space_is_read_without_an_error(data: bytes, header: int) -> None:
    """Also one whose list of capabilities runs in a circle."""
    pci.acs_control(bytes(256) + struct.pack("<I", header) + data)
    pci.acs_control(bytes(256) + struct.pack("<I", 0x100 << 20 | 1) + data)


@pytest.mark.parametrize(
    ("control", "kind", "options", "expected"),
    [
        (0x1D, "DMA-FQ", {}, "not_asked"),
        (0x1D, "DMA-FQ", {"acs": "off"}, "acs_on"),
        (0, "DMA-FQ", {"acs": "off"}, "direct"),
        (0, "DMA-FQ", {"iommu": "pt"}, "iommu_on"),
        (0, "identity", {"iommu": "pt"}, "direct"),
        (0, "identity", {"iommu": "off"}, "iommu_on"),
    ],
)
def test_gpudirect(tmp_path: Path, control: int, kind: str, options: dict[str, Any], expected: str) -> None:
    """Only what the site asks for is looked at, and it only warns."""
    bridge = "/sys/bus/pci/devices/0000:00:01.0"
    plant(tmp_path, {f"{bridge}/class": "0x060400\n", "/sys/kernel/iommu_groups/3/type": f"{kind}\n"})
    (tmp_path / bridge.lstrip("/") / "config").write_bytes(config(control))
    assert said("gpudirect", tmp_path, **options)[1] == expected


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("30 1 0:41 / /var/crash rw - nfs4 server:/crash rw", "no_crash"),
        ("30 1 0:41 / /var rw - lustre m@tcp:/x rw", "no_crash"),
        ("30 1 0:41 / / rw - nfs server:/root rw\n31 30 0:42 / /var rw - tmpfs x rw", "kernel_crashed"),
        ("", "kernel_crashed"),
    ],
)
def test_a_crash_on_a_shared_folder_may_be_another_machine_s(tmp_path: Path, mount: str, expected: str) -> None:
    """Nodes without disks dump into a folder of a file server, where all see all dumps."""
    plant(tmp_path, {"/var/crash/10.0.0.7-2024/vmcore": "x", "/proc/self/mountinfo": mount})
    assert said("crashes", tmp_path)[1] == expected


def test_zfs_gives_its_cache_back(tmp_path: Path) -> None:
    """The kernel does not count ZFS's cache as available; all of it above its least size is."""
    meminfo = f"MemTotal:       {64 << 20} kB\nMemAvailable:   {1 << 20} kB\n"
    plant(tmp_path, {"/proc/meminfo": meminfo})
    assert said("memory", tmp_path) == ("warn", "memory_low")
    arc = f"13 1 0x01 147 39984 5 6\nname                type data\nc_min               4    {2 << 30}\n"
    plant(tmp_path, {"/proc/spl/kstat/zfs/arcstats": arc + f"size                            4    {58 << 30}\n"})
    assert said("memory", tmp_path) == ("pass", "memory_present")
    plant(tmp_path, {"/proc/spl/kstat/zfs/arcstats": "size x\x00"})
    assert said("memory", tmp_path) == ("warn", "memory_low")


def test_a_clock_that_is_kept_without_the_kernel_s_knowledge() -> None:
    """PTP's phc2sys and OpenNTPD do not tell the kernel that the clock is in step."""
    facts = {"here": True, "errno": 0, "status": 0x40, "offset_us": 0.0, "daemon": False, "by": "phc2sys"}
    check = registry.get("clock")
    assert check.judge(facts, check.settings({})).reason == "kept_otherwise"
    assert check.judge({**facts, "by": ""}, check.settings({})).reason == "unsynchronised"


def test_scratch_of_users_who_run_nothing_is_told(tmp_path: Path) -> None:
    """By owner, no link followed, not root's; a limit of the site's decides."""
    plant(tmp_path, {"/tmp/job/data": "x" * (3 << 20), "/proc/self/x": ""})
    (tmp_path / "tmp/link").symlink_to("/usr")
    if os.geteuid() == 0:
        for path in (tmp_path / "tmp/job", tmp_path / "tmp/job/data"):
            os.chown(path, 54321, 54321)
        facts = scratch.probe(Context("n1", "full", tmp_path), scratch.check.settings({}))
        assert [(user["uid"], user["files"]) for user in facts["users"]] == [(54321, 2)]
        assert said("scratch", tmp_path, warn_leftover_mb=2) == ("warn", "scratch_leftovers")
    assert said("scratch", tmp_path) == ("pass", "scratch_clean")
    assert said("scratch", tmp_path, folders=["/absent"]) == ("pass", "scratch_clean")


def test_a_folder_that_is_no_path_is_refused() -> None:
    """The message names the key."""
    check = registry.get("scratch")
    with pytest.raises(CheckError, match=r"scratch\.folders"):
        check.probe(Context("n1"), {"folders": ["tmp"]})
