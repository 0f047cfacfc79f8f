from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.registry import CheckError

SYSTEM = {
    "/proc/sys/kernel/osrelease": "5.15.0-101-generic\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt\n",
    "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nlustre 999 0 - Live 0x0\n",
    "/proc/sys/kernel/numa_balancing": "0\n",
    "/proc/sys/net/ipv4/tcp_rmem": "4096\t87380\t6291456\n",
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "1024\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/kernel/security/lsm": "lockdown,capability,apparmor",
    "/sys/module/ib_core/initstate": "live\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/proc/uptime": "8640000.12 999\n",
    "/proc/sys/kernel/tainted": "12289\n",  # a foreign, unsigned module: every NVIDIA node has it
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "settings_as_wanted"),
        ({"kernel": ["5.15.0-*-generic"]}, "settings_as_wanted"),
        ({"kernel": ["6.8.*"]}, "kernel_differs"),
        ({"cmdline": ["iommu=pt"]}, "settings_as_wanted"),
        ({"cmdline": ["iommu=off"]}, "cmdline_differs"),
        ({"cmdline_without": ["iommu=pt"]}, "cmdline_without_differs"),
        ({"modules": ["nvidia-peermem", "lustre", "ib_core"]}, "settings_as_wanted"),
        ({"modules": ["gdrdrv"]}, "modules_differs"),
        ({"sysctl": {"kernel.numa_balancing": 0, "net.ipv4.tcp_rmem": "4096 87380 6291456"}}, "settings_as_wanted"),
        ({"sysctl": {"kernel.numa_balancing": 1}}, "sysctl_differs"),
        ({"sysctl": {"kernel/absent": 1}}, "sysctl_differs"),
        ({"hugepages": {"2048kB": 1024}}, "settings_as_wanted"),
        ({"hugepages": {"1048576kB": 4}}, "hugepages_differs"),
        ({"thp": "madvise"}, "settings_as_wanted"),
        ({"thp": "never"}, "thp_differs"),
        ({"lsm": ["apparmor"]}, "settings_as_wanted"),
        ({"lsm": ["selinux=enforcing"]}, "lsm_differs"),
        ({"clocksource": "tsc"}, "settings_as_wanted"),
        ({"clocksource": "hpet"}, "clocksource_differs"),
        ({"files": ["/proc/cmdline"]}, "settings_as_wanted"),
        ({"files": ["/dev/gdrdrv"]}, "files_differs"),
        ({"max_uptime_days": 90.0}, "uptime_differs"),
        ({"reboot_required": True}, "settings_as_wanted"),
    ],
)
def test_settings(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    """What differs warns, and is unfit only where the site says so."""
    plant(tmp_path, SYSTEM)
    same = expected == "settings_as_wanted"
    assert said("settings", tmp_path, **options) == ("pass" if same else "warn", expected)
    if not same:
        strict = {**options, "fail": [expected.removesuffix("_differs")]}
        assert said("settings", tmp_path, **strict) == ("fail", expected)


@pytest.mark.parametrize(
    ("tainted", "expected"),
    [("0", "pass"), ("12289", "pass"), ("12417", "warn"), ("16", "warn"), ("-1", "pass"), ("x", "pass")],
)
def test_a_kernel_that_met_a_fault_is_told(tmp_path: Path, tainted: str, expected: str) -> None:
    """A foreign module taints too, and is no fault."""
    plant(tmp_path, {**SYSTEM, "/proc/sys/kernel/tainted": tainted, "/run/reboot-required": ""})
    assert said("settings", tmp_path)[0] == expected
    assert said("settings", tmp_path, taint=False, reboot_required=True) == ("warn", "reboot_required_differs")


@pytest.mark.parametrize(
    "options",
    [
        {"sysctl": {"../../etc/shadow": 1}},
        {"sysctl": {"kernel/../../etc/shadow": 1}},
        {"sysctl": {"/etc/shadow": 1}},
        {"modules": ["../x"]},
        {"hugepages": {"../2048kB": 1}},
        {"fail": ["kernels"]},
        {"kernel": [7]},
        {"files": ["etc"]},
    ],
)
def test_a_name_that_is_none_is_refused(options: dict[str, Any]) -> None:
    """No option reads outside /proc/sys and /sys; the message names the key."""
    check = registry.get("settings")
    with pytest.raises(CheckError, match=rf"settings\.{next(iter(options))}"):
        check.probe(Context("n1"), check.settings(options))


CPU = "/sys/devices/system/cpu"


def heat(throttled_ms: int) -> dict[str, str]:
    """Two packages of two CPUs; the second one was slowed for so long."""
    files = {}
    for number, (package, ms) in enumerate([(0, 0), (0, 0), (1, throttled_ms), (1, throttled_ms)]):
        files[f"{CPU}/cpu{number}/topology/physical_package_id"] = f"{package}\n"
        files[f"{CPU}/cpu{number}/thermal_throttle/package_throttle_count"] = f"{ms // 10}\n"
        files[f"{CPU}/cpu{number}/thermal_throttle/package_throttle_total_time_ms"] = f"{ms}\n"
    return files


def sensor(name: str, alarm: str) -> dict[str, str]:
    """A sensor that says whether it is critical."""
    folder = "/sys/class/hwmon/hwmon2"
    return {f"{folder}/name": name, f"{folder}/temp1_crit_alarm": alarm, f"{folder}/temp1_label": "Package id 1"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ("skip", "no_sensors")),
        (heat(10**7), ("pass", "cpu_cool")),  # an absolute count says nothing
        ({**heat(0), **sensor("coretemp", "0")}, ("pass", "cpu_cool")),
        ({**heat(0), **sensor("coretemp", "1")}, ("warn", "cpu_critical")),
        ({**heat(0), **sensor("mlx5", "1")}, ("pass", "cpu_cool")),  # another check's, and slow to ask
        ({**heat(0), **sensor("coretemp", "\x00")}, ("pass", "cpu_cool")),
    ],
)
def test_thermal(tmp_path: Path, files: dict[str, str], expected: tuple[str, str]) -> None:
    """Only a processor that calls itself critical is told at the first look."""
    assert said("thermal", plant(tmp_path, files)) == expected


def test_heat_is_judged_by_the_time_it_cost() -> None:
    """Six of sixty seconds warn; one does not; a window too short says nothing."""
    check = registry.get("thermal")
    name = "1 package_throttle_total_time_ms"
    for ms, window_s, expected in ((6000, 60.0, "warn"), (1000, 60.0, "pass"), (900, 1.0, "pass")):
        kept = {"boot_id": "b", "at_s": 1000.0 - window_s, "counts": {name: 50}}
        facts = {"critical": [], "sensors": 0, "counts": {name: 50 + ms}, "boot_id": "b", "at_s": 1000.0, "kept": kept}
        assert check.judge(facts, check.settings({})).status.value == expected


@pytest.mark.parametrize(
    ("file", "age_days", "expected"),
    [
        ("/sys/fs/pstore/dmesg-erst-7", 0.1, "warn"),
        ("/var/crash/202611210311/vmcore", 0.5, "warn"),
        ("/var/crash/202611210311/dump.202611210311", 3.0, "pass"),
        ("/var/crash/_usr_bin_python3.0.crash", 0.1, "pass"),  # a program's, not the kernel's
        ("/var/lib/systemd/pstore/1700000000/dmesg.txt", 0.1, "warn"),
    ],
)
def test_crashes(tmp_path: Path, file: str, age_days: float, expected: str) -> None:
    """A crash of the last day is told, with the file that says more."""
    plant(tmp_path, {file: ""})
    then_s = time.time() - age_days * 86_400
    path = tmp_path / file.lstrip("/")
    for one in (path, *path.parents):
        if one == tmp_path:
            break
        os.utime(one, (then_s, then_s))
    assert said("crashes", tmp_path)[0] == expected
