from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.host import tasks
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import processes


def stat(pid: int, command: str, state: str, *, flags: int = 0, threads: int = 1, started: int = 100) -> str:
    """A line of /proc/<pid>/stat."""
    return f"{pid} ({command}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 {started} 0 0\n"


@pytest.mark.parametrize("command", ["python", "a) R 1 (b", "", "x y", "((", "\u00fc"])
def test_a_process_may_be_called_anything(command: str) -> None:
    """Blanks and brackets in the name shift no field."""
    process = processes.parse(stat(7, command, "D", threads=3, started=55).encode())
    assert process == processes.NodeProcess(7, command, "D", 1, 3, 55, kernel=False)


@given(st.binary(max_size=200))
def test_any_stat_file_is_read_without_an_error(data: bytes) -> None:
    """Cut short, binary, absurd: a process or none."""
    processes.parse(data)


@given(st.integers(0, 120), st.binary(max_size=5))
def test_a_cut_stat_file_is_read_without_an_error(cut: int, garbage: bytes) -> None:
    """The same for one that began well."""
    processes.parse(stat(7, "python", "D").encode()[:cut] + garbage)


def facts(*stuck: tuple[str, float], **more: Any) -> dict[str, Any]:
    """What was seen: (kind, how long ago it was seen so first)."""
    return {
        "processes": 100,
        "stuck": [
            {"kind": kind, "pid": n, "command": "python", "since_s": 10_000.0 - age, "name": f"{kind}:{n}:1"}
            for n, (kind, age) in enumerate(stuck)
        ],
        "zombies": 0,
        "load": 0.1,
        "cpus": 64,
        "jobs": 0,
        "slurmd": True,
        "now_s": 10_000.0,
        "boot_id": "b",
        **more,
    }


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (facts(), ("pass", "tasks_fine")),
        (facts(("blocked", 0.0), ("blocked", 100.0)), ("pass", "tasks_fine")),
        (facts(("blocked", 301.0)), ("warn", "tasks_blocked")),
        (facts(*[("zombie", 0.0)] * 60), ("pass", "tasks_fine")),
        (facts(*[("zombie", 400.0)] * 60), ("warn", "zombies")),
        (facts(*[("zombie", 400.0)] * 5), ("pass", "tasks_fine")),
        (facts(load=40.0), ("warn", "busy_without_job")),
        (facts(load=400.0, jobs=1), ("pass", "tasks_fine")),
        (facts(load=400.0, slurmd=False), ("pass", "tasks_fine")),  # no node of Slurm's
        (facts(load=40.0, cpus=0), ("pass", "tasks_fine")),
        (facts(processes=0), ("skip", "no_processes")),
    ],
)
def test_tasks(seen: dict[str, Any], expected: tuple[str, str]) -> None:
    """What hangs, waits for its parent or keeps the node busy warns once it lasts, and never fails."""
    check = registry.get("tasks")
    finding = check.judge(seen, check.settings({}))
    assert (finding.status.value, finding.reason) == expected


def test_two_looks_tell_how_long_a_process_hangs(tmp_path: Path) -> None:
    """The same process, by pid and start; a kernel thread in D is at rest; a hung exit is blocked."""
    plant(
        tmp_path,
        {
            "/proc/11/stat": stat(11, "python", "D"),
            "/proc/12/stat": stat(12, "nv_queue", "D", flags=0x0020_8040),
            "/proc/13/stat": stat(13, "python", "Z", threads=9),
            "/proc/14/stat": stat(14, "sh", "Z"),
            "/proc/15/stat": "garbage",
            "/proc/16/stat": stat(16, "slurmstepd", "S"),
            "/proc/16/cmdline": "slurmstepd: [77.batch]\0",
            "/proc/loadavg": "3.10 2.50 1.00 1/500 999\n",
        },
    )
    first = tasks.probe(Context("n1", "full", tmp_path), {})
    stuck = {(one["kind"], one["pid"]) for one in first["stuck"]}
    assert stuck == {("blocked", 11), ("blocked", 13), ("zombie", 14)}
    assert (first["jobs"], first["load"], first["processes"]) == (1, 2.0, 5)
    assert said("tasks", tmp_path) == ("pass", "tasks_fine")
    assert said("tasks", tmp_path, warn_blocked_s=0.0) == ("warn", "tasks_blocked")
    plant(tmp_path, {"/proc/11/stat": stat(11, "python", "D", started=101), "/proc/13/stat": stat(13, "python", "S")})
    assert said("tasks", tmp_path, warn_blocked_s=0.001) == ("pass", "tasks_fine")
    assert said("tasks", tmp_path, warn_blocked_s=0.001) == ("warn", "tasks_blocked")


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ("64.00 63.00 60.00 66/2000 9", ("warn", "busy_without_job")),
        ("20.00 61.00 60.00 2/2000 9", ("pass", "tasks_fine")),  # a job of all CPUs ended two minutes ago
        ("60.00 61.00 60.00 2/2000 9", ("pass", "tasks_fine")),  # or has ended just now: an epilog sees this
        ("64.00 3.00 1.00 66/2000 9", ("pass", "tasks_fine")),  # a service works for a moment
        ("x", ("pass", "tasks_fine")),
        ("60 61 x 2/2000 9", ("pass", "tasks_fine")),
    ],
)
def test_the_load_of_a_job_that_has_ended_is_no_fault(tmp_path: Path, loads: str, expected: tuple[str, str]) -> None:
    """Averages fade for minutes: what also runs now keeps the node busy."""
    files = {"/proc/3/stat": stat(3, "slurmd", "S"), "/proc/loadavg": f"{loads}\n"}
    plant(tmp_path, {**files, "/sys/devices/system/cpu/online": "0-63\n"})
    assert said("tasks", tmp_path) == expected


def test_a_process_that_waits_for_the_disk_again_and_again_does_not_hang(tmp_path: Path) -> None:
    """Two looks may meet one that reads all day in state D: it was switched to and from in between."""
    status = "Name:\tpython\nvoluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t7\n"
    plant(tmp_path, {"/proc/11/stat": stat(11, "python", "D"), "/proc/11/status": status.format(100)})
    assert said("tasks", tmp_path, warn_blocked_s=0.001) == ("pass", "tasks_fine")
    plant(tmp_path, {"/proc/11/status": status.format(900)})
    assert said("tasks", tmp_path, warn_blocked_s=0.001) == ("pass", "tasks_fine")
    assert said("tasks", tmp_path, warn_blocked_s=0.001) == ("warn", "tasks_blocked")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ("skip", "no_limits")),
        ({"/proc/loadavg": "0 0 0 2/900 7", "/proc/sys/kernel/pid_max": "32768"}, ("pass", "limits_far")),
        ({"/proc/loadavg": "0 0 0 2/30000 7", "/proc/sys/kernel/pid_max": "32768"}, ("warn", "limit_near")),
        ({"/proc/loadavg": "0 0 0 2/30000 7", "/proc/sys/kernel/threads-max": "31000"}, ("warn", "limit_near")),
        ({"/proc/sys/fs/file-nr": "980\t0\t1000"}, ("warn", "limit_near")),
        ({"/proc/sys/fs/file-nr": "980\t0\t9223372036854775807"}, ("skip", "no_limits")),
        ({"/proc/sys/fs/aio-nr": "65536", "/proc/sys/fs/aio-max-nr": "65536"}, ("warn", "limit_near")),
        ({"/proc/key-users": "    0:   990 989/989 990/1000 9000/25000000\n"}, ("warn", "limit_near")),
        ({"/proc/key-users": "    0:   99 98/98 99/1000000 9000/25000000\n"}, ("pass", "limits_far")),
        (
            {"/proc/key-users": "0: 1 2 3/ 4\n\x00", "/proc/sys/fs/file-nr": "x y", "/proc/loadavg": "0 0 0 /"},
            ("skip", "no_limits"),
        ),
    ],
)
def test_limits(tmp_path: Path, files: dict[str, str], expected: tuple[str, str]) -> None:
    """A limit nine tenths used warns; one that is as good as none is not looked at."""
    assert said("limits", plant(tmp_path, files)) == expected


SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
DISK = f"{SWAPS}/dev/sda3                               partition\t8388604\t\t0\t\t-2\n"
ZRAM = f"{SWAPS}/dev/zram0                              partition\t8388604\t\t0\t\t100\n"


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_vmstat")),
        ({"/proc/vmstat": "pswpin 5\npswpout 7\n"}, {}, ("pass", "no_swapping")),
        ({"/proc/vmstat": "pswpin 5\n", "/proc/swaps": DISK}, {"expected": "off"}, ("warn", "swap_on")),
        ({"/proc/vmstat": "pswpin 5\n", "/proc/swaps": ZRAM}, {"expected": "off"}, ("pass", "no_swapping")),
        ({"/proc/vmstat": "pswpin 5\n", "/proc/swaps": SWAPS}, {"expected": "on"}, ("warn", "swap_off")),
        (
            {
                "/proc/pressure/memory": "some avg10=90.00 avg60=80.00 avg300=1.00 total=9\n"
                "full avg10=50.00 avg60=42.10 avg300=1.00 total=9\n"
            },
            {},
            ("warn", "memory_stalls"),
        ),
        ({"/proc/pressure/memory": "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"}, {}, ("pass", "no_swapping")),
        (
            {"/proc/pressure/memory": "full avg10=\x00", "/proc/swaps": "\x00/dev", "/proc/vmstat": "pswpin x"},
            {},
            ("skip", "no_vmstat"),
        ),
    ],
)
def test_swap(tmp_path: Path, files: dict[str, str], options: dict[str, object], expected: tuple[str, str]) -> None:
    """Swap where none should be, and time lost to it, warn."""
    assert said("swap", plant(tmp_path, files), **options) == expected


def test_swapping_is_a_rate() -> None:
    """What was swapped long ago is no matter; a thousand pages a second now are."""
    check = registry.get("swap")
    base = {"areas": [{"path": "/dev/sda3", "disk": True}], "stalled_percent": 0.0, "boot_id": "b", "at_s": 1000.0}
    kept = {"boot_id": "b", "at_s": 900.0, "counts": {"pswpin": 10**9, "pswpout": 5}}
    for pages, expected in ((99_000, "no_swapping"), (101_000, "swapping")):
        counts = {"pswpin": 10**9 + pages, "pswpout": 5}
        finding = check.judge({**base, "counts": counts, "kept": kept}, check.settings({}))
        assert finding.reason == expected
