from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import plant, said
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.sources import small_files

CPU = "/sys/devices/system/cpu"


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_cpus_listed")),
        ({"present": "0-127", "online": "0-127"}, {}, ("pass", "cpus_online")),
        ({"present": "0-127", "online": "0-127"}, {"expected": 128}, ("pass", "cpus_online")),
        ({"present": "0-63", "online": "0-63"}, {"expected": 128}, ("fail", "cpu_missing")),
        ({"present": "0-127", "online": "0-127"}, {"expected": 64}, ("warn", "cpu_surplus")),
        ({"present": "0-127", "online": "0-3,5-127"}, {}, ("warn", "cpu_offline")),
        ({"present": "0-127", "online": "0-63", "smt/control": "off", "smt/active": "0"}, {}, ("pass", "cpus_online")),
        # The same by `chcpu -d`: the kernel's switch stays on.
        ({"present": "0-127", "online": "0-63", "smt/control": "on", "smt/active": "0"}, {}, ("pass", "cpus_online")),
        ({"present": "0-127", "online": "0-62", "smt/control": "on", "smt/active": "0"}, {}, ("warn", "cpu_offline")),
        ({"present": "0-127", "online": "0-95"}, {"expected": 96}, ("pass", "cpus_online")),
        ({"present": "0-7", "online": "0-7", "smt/active": "1"}, {"smt": "off"}, ("warn", "smt_differs")),
        ({"present": "0-7", "online": "0-7", "smt/active": "1"}, {"smt": "on"}, ("pass", "cpus_online")),
        ({"present": "0-7", "online": "\x00\xff"}, {"expected": 8}, ("skip", "no_cpus_listed")),
    ],
)
def test_cpu(tmp_path: Path, files: dict[str, str], options: dict[str, object], expected: tuple[str, str]) -> None:
    """Fewer online than expected fails; threads that are off on purpose are no fault."""
    assert said("cpu", plant(tmp_path, {f"{CPU}/{name}": text for name, text in files.items()}), **options) == expected


def policies(count: int, most: int = 3_500_000, governor: str = "performance") -> dict[str, str]:
    """CPUs that may run at 3.5 GHz."""
    files = {}
    for number in range(count):
        files[f"{CPU}/cpufreq/policy{number}/scaling_governor"] = f"{governor}\n"
        files[f"{CPU}/cpufreq/policy{number}/scaling_max_freq"] = f"{most}\n"
        files[f"{CPU}/cpufreq/policy{number}/cpuinfo_max_freq"] = "3500000\n"
        files[f"{CPU}/cpu{number}/microcode/version"] = "0x2b000590\n"
    return files


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_cpu_settings")),
        (policies(8), {}, ("pass", "cpus_alike")),
        (policies(8), {"governor": "performance"}, ("pass", "cpus_alike")),
        (policies(8, governor="powersave"), {}, ("pass", "cpus_alike")),
        (policies(8, governor="powersave"), {"governor": "performance"}, ("warn", "cpu_governor")),
        ({**policies(8), f"{CPU}/cpufreq/policy3/scaling_governor": "userspace"}, {}, ("warn", "cpu_governor")),
        (policies(8, most=3_000_000), {}, ("pass", "cpus_alike")),
        (policies(8, most=1_500_000), {}, ("warn", "cpu_capped")),
        ({**policies(8), f"{CPU}/cpufreq/policy3/scaling_max_freq": "800000"}, {}, ("warn", "cpu_capped")),
        ({**policies(8), f"{CPU}/cpufreq/policy3/scaling_max_freq": "<unknown>"}, {}, ("pass", "cpus_alike")),
        ({**policies(8), f"{CPU}/cpu5/microcode/version": "0x2b000461"}, {}, ("warn", "microcode_differs")),
        ({**policies(2), f"{CPU}/intel_pstate/no_turbo": "1"}, {"turbo": "on"}, ("warn", "cpu_turbo")),
        ({**policies(2), f"{CPU}/cpufreq/boost": "1"}, {"turbo": "on"}, ("pass", "cpus_alike")),
    ],
)
def test_cpu_settings(
    tmp_path: Path, files: dict[str, str], options: dict[str, object], expected: tuple[str, str]
) -> None:
    """Caps, mixed governors and mixed microcode warn, never more."""
    assert said("cpu_settings", plant(tmp_path, files), **options) == expected


def test_fewer_cpus_than_slurm_s_are_told(tmp_path: Path) -> None:
    """What slurm.conf gives the node only warns: Slurm drains a node that registers with less by itself."""
    conf = "NodeName=n[1-4] Sockets=2 CoresPerSocket=4 ThreadsPerCore=2\n"
    plant(tmp_path, {f"{CPU}/present": "0-7", f"{CPU}/online": "0-7", "/etc/slurm/slurm.conf": conf})
    assert said("cpu", tmp_path) == ("warn", "cpu_fewer_than_slurm_s")
    assert said("cpu", tmp_path, expected=8) == ("pass", "cpus_online")
    plant(tmp_path, {f"{CPU}/present": "0-15", f"{CPU}/online": "0-15"})
    assert said("cpu", tmp_path) == ("pass", "cpus_online")


def test_what_a_job_asked_of_its_cpus_is_no_fault(tmp_path: Path) -> None:
    """`--cpu-freq` caps the CPUs of a running job and sets their governor; what is left of it is told."""
    capped = {
        f"{CPU}/cpufreq/policy3/scaling_max_freq": "800000",
        f"{CPU}/cpufreq/policy3/scaling_governor": "userspace",
    }
    stat = "16 (slurmstepd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n"
    plant(tmp_path, {**policies(8), **capped, "/proc/16/stat": stat, "/proc/16/cmdline": "slurmstepd: [77.batch]\0"})
    assert said("cpu_settings", tmp_path) == ("pass", "cpus_alike")
    assert said("cpu_settings", tmp_path, governor="performance") == ("pass", "cpus_alike")
    plant(tmp_path, {"/proc/16/stat": None})
    assert said("cpu_settings", tmp_path) == ("warn", "cpu_capped")


@given(st.sets(st.integers(0, 5000), max_size=60))
def test_a_list_of_cpus_is_read_as_it_is_written(numbers: set[int]) -> None:
    """`ranges` and `cpus` are each other's inverse."""
    assert small_files.cpus(small_files.ranges(numbers)) == numbers


@given(st.text(max_size=80))
def test_any_list_of_cpus_is_read_without_an_error(text: str) -> None:
    """Also `0-99999999999` and the like: no more than the kernel could have."""
    assert len(small_files.cpus(text)) <= 65_537 * 41


NODE = "/sys/devices/system/node"


def memory(*sizes_kb: int, without_cpus: int = 0) -> dict[str, str]:
    """Memory nodes with two CPUs each; the last ones have none."""
    files = {}
    for number, kb in enumerate(sizes_kb):
        has_cpus = number < len(sizes_kb) - without_cpus
        files[f"{NODE}/node{number}/meminfo"] = f"Node {number} MemTotal:       {kb} kB\nNode {number} MemFree: 1 kB\n"
        files[f"{NODE}/node{number}/cpulist"] = f"{2 * number}-{2 * number + 1}\n" if has_cpus else "\n"
    return files


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_numa")),
        (memory(1 << 20), {}, ("pass", "numa_even")),
        (memory(1 << 30, 1040 << 20), {}, ("pass", "numa_even")),
        (memory(1 << 30, 7 << 27), {}, ("pass", "numa_even")),
        (memory(1 << 30, 6 << 27), {}, ("warn", "numa_uneven")),
        (memory(1 << 30, 0), {}, ("warn", "numa_empty")),
        # Grace Hopper shows each GPU's memory as a node without CPUs.
        (memory(1 << 30, 96 << 20, 0, without_cpus=2), {}, ("pass", "numa_even")),
        (memory(1 << 30, 1 << 30), {"expected_nodes": 2}, ("pass", "numa_even")),
        (memory(1 << 30, 1 << 30), {"expected_nodes": 8}, ("fail", "numa_nodes")),
    ],
)
def test_numa(tmp_path: Path, files: dict[str, str], options: dict[str, object], expected: tuple[str, str]) -> None:
    """Uneven sockets warn; memory without CPUs is not judged; only a count that the site gave can fail."""
    assert said("numa", plant(tmp_path, files), **options) == expected
