"""The judges by table, and each probe over a small tree."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.gpu import gpu_count
from slurm_robust.nodecheck.checks.host import filesystem, leftovers, shm
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context, job_gpus_of, job_of, node_name
from slurm_robust.nodecheck.sources import mounts


def verdict(name: str, facts: dict[str, Any], **options: Any) -> tuple[str, str]:
    """Status and reason of one judge."""
    check = registry.get(name)
    finding = check.judge(facts, check.settings(options))
    assert len(finding.sentence) > 3
    assert finding.remedy or finding.status.value not in ("fail", "unknown")
    return finding.status.value, finding.reason


def write(root: Path, files: dict[str, str]) -> Context:
    """A tree of small files, looked at as `/`."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Context("n1", "full", root, root / "kmsg")


GPUS = {
    "driver": True,
    "bound": 8,
    "on_bus": 8,
    "unbound": [],
    "devices": [f"nvidia{n}" for n in range(8)],
    "mig": False,
    "job_gpus": [],
    "declared": 0,
}


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({}, {}, ("pass", "gpus_present")),
        ({}, {"expected": 8}, ("pass", "gpus_present")),
        ({"bound": 7, "devices": []}, {"expected": 8}, ("fail", "gpu_missing")),
        ({"bound": 7, "devices": []}, {}, ("warn", "gpu_unbound")),
        # Device files appear at a GPU's first use: none yet is no fault.
        ({"devices": []}, {"expected": 8}, ("pass", "gpus_present")),
        ({"driver": False, "bound": 0, "on_bus": 0, "devices": []}, {}, ("skip", "no_driver")),
        # Handed to a virtual machine: on the bus without NVIDIA's driver is no fault.
        ({"driver": False, "bound": 0, "devices": []}, {}, ("skip", "no_driver")),
        ({"driver": False, "bound": 0, "devices": []}, {"expected": 8}, ("fail", "gpu_missing")),
        ({"job_gpus": [0, 1]}, {}, ("pass", "gpus_present")),
        ({"job_gpus": [6, 7], "bound": 1, "devices": []}, {}, ("fail", "job_gpu_missing")),
        ({"job_gpus": [0, 1, 2], "bound": 1, "on_bus": 1, "devices": [], "mig": True}, {}, ("pass", "gpus_present")),
        ({}, {"expected": 4}, ("warn", "gpu_surplus")),
        (
            {"driver": False, "bound": 0, "on_bus": 0, "devices": ["gpu0"]},
            {"device_glob": "/d/gpu*"},
            ("pass", "gpus_present"),
        ),
        ({"driver": False, "devices": ["gpu0"]}, {"device_glob": "/d/gpu*", "expected": 2}, ("fail", "gpu_missing")),
    ],
)
def test_gpu_count(change: dict[str, Any], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """Fewer than expected, or than the job was given, fails; a box without the driver is skipped."""
    assert verdict("gpu_count", {**GPUS, **change}, **options) == expected


def test_gpus_are_counted_from_driver_bus_and_device_files(tmp_path: Path) -> None:
    """Only NVIDIA's display and 3D controllers count; nvidiactl and nvidia-uvm are no GPUs."""
    files = {
        "/proc/driver/nvidia/version": "NVRM version",
        "/dev/nvidia0": "",
        "/dev/nvidia1": "",
        "/dev/nvidiactl": "",
    }
    for number, (vendor, kind) in enumerate([("10de", "0302"), ("10de", "0300"), ("10de", "0680"), ("8086", "0300")]):
        files[f"/sys/bus/pci/devices/{number}/vendor"] = f"0x{vendor}\n"
        files[f"/sys/bus/pci/devices/{number}/class"] = f"0x{kind}00\n"
        files[f"/proc/driver/nvidia/gpus/0000:{number}/information"] = ""
    facts = gpu_count.probe(write(tmp_path, files), gpu_count.check.settings({}))
    assert (facts["driver"], facts["bound"], facts["on_bus"], facts["devices"]) == (True, 4, 2, ["nvidia0", "nvidia1"])


STAT = "{} ({}) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n"
ROOM = {"free_mb": 900, "total_mb": 1000, "free_inodes": 900, "total_inodes": 1000, "write_errno": 0}
TMP = {"path": "/tmp", "writable": True, "min_free_mb": 64, "min_free_inodes": 100, **ROOM}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("pass", "usable")),
        ({"free_mb": 10}, ("fail", "no_space")),
        ({"free_inodes": 3}, ("fail", "no_inodes")),
        ({"free_inodes": 0, "total_inodes": 0}, ("pass", "usable")),  # btrfs counts none
        ({"write_errno": errno.EROFS}, ("fail", "not_writable")),
        ({"write_errno": errno.ESTALE}, ("fail", "not_writable")),
        ({"write_errno": errno.EACCES}, ("pass", "usable")),  # root is squashed on the server
        ({"write_errno": errno.EOPNOTSUPP}, ("pass", "usable")),  # no nameless files there
        ({"mounted": "ext4", "read_only": True}, ("fail", "read_only")),
        ({"mounted": "ext4", "read_only": True, "writable": False}, ("pass", "usable")),
        ({"missing": True}, ("fail", "not_mounted")),
        ({"type": "lustre", "mounted": "lustre"}, ("pass", "usable")),
        ({"type": "lustre", "mounted": "tmpfs"}, ("fail", "wrong_type")),
        ({"error": "timeout"}, ("unknown", "not_answering")),
        ({"error": "OSError: [Errno 13] Permission denied"}, ("unknown", "not_readable")),
    ],
)
def test_filesystem(change: dict[str, Any], expected: tuple[str, str]) -> None:
    """Missing, full, read-only or of the wrong type fails; what does not answer is unknown."""
    assert verdict("filesystem", {"places": [{**TMP, **change}]}) == expected


def test_one_dead_mount_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each path has its own process: the one that blocks is named, the missing one still fails."""
    pipe = tmp_path / "dead"
    os.mkfifo(pipe)
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        if path == str(tmp_path):
            pipe.read_text()
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(
        mounts, "at", lambda table, path: None if path == "/gone" else mounts.Mount(path, "nfs", "x", False, False)
    )
    check = registry.get("filesystem")
    options = {"filesystem": {"mounts": [str(tmp_path), "/"]}}
    finding = runner.run([check], Context("n1"), options, 4.0).results[0].finding
    assert (finding.status.value, finding.reason) == ("unknown", "not_answering")
    assert str(tmp_path) in finding.sentence
    options["filesystem"]["mounts"].append("/gone")
    finding = runner.run([check], Context("n1"), options, 4.0).results[0].finding
    assert (finding.status.value, finding.reason) == ("fail", "not_mounted")


def test_a_malformed_mount_option_is_said_and_fails_nothing() -> None:
    """A list of mounts that does not fit is an error of the configuration, not of the node."""
    for entry in ({"type": "nfs"}, {"path": "/x", "writable": "yes"}, {"path": "/x", "wrong": 1}, 7):
        report = runner.run([filesystem.check], Context("n1"), {"filesystem": {"mounts": [entry]}}, 5.0)
        assert report.results[0].finding.status.value == "unknown"
        assert "nodecheck.options.filesystem.mounts" in report.results[0].finding.sentence


SHM = {"there": True, "total_mb": 1000, "free_mb": 900, "orphan_uids": [], "orphan_files": 0, "orphan_mb": 0}


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({}, {}, ("pass", "shm_usable")),
        ({"total_mb": 64, "free_mb": 64}, {}, ("pass", "shm_usable")),  # a container's default
        ({"total_mb": 0, "free_mb": 0}, {}, ("pass", "shm_usable")),
        ({"total_mb": 64, "free_mb": 64}, {"min_size_mb": 1000}, ("fail", "shm_small")),
        ({"free_mb": 0}, {}, ("warn", "shm_filling")),
        ({"free_mb": 10}, {"min_free_mb": 100}, ("fail", "shm_full")),
        ({"orphan_mb": 2000, "orphan_uids": [1001]}, {}, ("warn", "shm_leftovers")),
    ],
)
def test_shm(change: dict[str, Any], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """Only a size that the site asks for can fail."""
    assert verdict("shm", {**SHM, **change}, **options) == expected


def test_shm_counts_files_of_users_who_run_nothing(tmp_path: Path) -> None:
    """A file whose owner has a process is in use; one of nobody's is a leftover."""
    context = write(tmp_path, {"/dev/shm/nccl-1": "x" * 5000, "/proc/1/stat": STAT.format(1, "init")})
    me = os.geteuid()
    if me == 0:
        os.chown(tmp_path / "dev/shm/nccl-1", 54321, 54321)
    facts = shm.probe(context, {})
    assert facts["there"]
    assert facts["orphan_uids"] == ([54321] if me == 0 else [])
    assert shm.probe(Context("n1", root=tmp_path / "none"), {}) == {"there": False, "saved": True}


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        ({"MemTotal": 64 << 20, "MemAvailable": 60 << 20}, {}, ("pass", "memory_present")),
        ({"MemTotal": 64 << 20}, {"expected_mb": 65536}, ("pass", "memory_present")),
        ({"MemTotal": 60 << 20}, {"expected_mb": 65536}, ("fail", "memory_missing")),
        ({"MemTotal": 60 << 20, "real_memory_mb": 65536}, {}, ("fail", "memory_missing")),
        ({"MemTotal": 64 << 20, "MemAvailable": 1 << 20}, {}, ("warn", "memory_low")),
        ({"MemTotal": 64 << 20, "HardwareCorrupted": 4}, {}, ("warn", "memory_corrupted")),
        ({"MemTotal": 64 << 20, "MemAvailable": 40 << 20}, {}, ("pass", "memory_present")),  # a job runs
        ({"MemTotal": 64 << 20, "MemAvailable": 40 << 20, "idle": True}, {}, ("warn", "memory_held")),
        ({"MemTotal": 64 << 20, "MemAvailable": 50 << 20, "idle": True}, {}, ("pass", "memory_present")),
        # Nearly all of it is set aside as huge pages, for a file system's client or for guests.
        ({"MemTotal": 64 << 20, "MemAvailable": 1 << 20, "huge_kb": 60 << 20}, {}, ("pass", "memory_present")),
        ({"MemTotal": 60 << 20, "declared_mb": 65536}, {}, ("warn", "memory_below_slurm_s")),
        ({"MemTotal": 63 << 20, "declared_mb": 65536}, {}, ("pass", "memory_present")),
        ({"MemTotal": 60 << 20, "declared_mb": 65536}, {"expected_mb": 61000}, ("pass", "memory_present")),
        (
            {"MemTotal": 64 << 20, "MemAvailable": 10 << 20, "idle": True, "huge_kb": 50 << 20},
            {},
            ("pass", "memory_present"),
        ),
        ({}, {}, ("unknown", "no_meminfo")),
    ],
)
def test_memory(facts: dict[str, Any], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """A module's worth missing fails; what the kernel keeps for itself does not."""
    assert (
        verdict("memory", {"real_memory_mb": 0, "declared_mb": 0, "idle": False, "huge_kb": 0, **facts}, **options)
        == expected
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"here": True, "errno": 0, "status": 0x2001, "offset_us": 12.5, "max_error_us": 1}, ("pass", "synchronised")),
        ({"here": True, "errno": 0, "status": 0x0041, "offset_us": 0.0, "max_error_us": 1}, ("warn", "unsynchronised")),
        (
            {"here": True, "errno": 0, "status": 0x41, "offset_us": 0.0, "daemon": False, "container": True},
            ("skip", "host_s_clock"),
        ),
        (
            {"here": True, "errno": 0, "status": 0x41, "offset_us": 0.0, "daemon": False, "guest": True},
            ("skip", "host_s_clock"),
        ),
        (
            {"here": True, "errno": 0, "status": 0x41, "offset_us": 0.0, "daemon": True, "guest": True},
            ("warn", "unsynchronised"),
        ),
        ({"here": True, "errno": 0, "status": 1, "offset_us": -80000.0, "max_error_us": 1}, ("warn", "clock_off")),
        ({"here": True, "errno": 1}, ("skip", "no_adjtimex")),
        ({"here": False}, ("skip", "not_here")),
    ],
)
def test_clock(facts: dict[str, Any], expected: tuple[str, str]) -> None:
    """A clock that is off or not kept warns and never fails."""
    assert verdict("clock", facts) == expected


def test_clock_reads_this_machine() -> None:
    """adjtimex(2) answers or refuses; either way there is a finding that drains nothing."""
    report = runner.run([registry.get("clock")], Context("n1"), {}, 10.0)
    assert report.results[0].finding.status.value in ("pass", "warn", "skip")


@given(st.text(max_size=400))
def test_any_mount_table_is_read_without_an_error(text: str) -> None:
    """Truncated or odd /proc tables give what they can."""
    assert isinstance(mounts.parse(text), list)


def test_the_mount_table_is_read(tmp_path: Path) -> None:
    """Blanks in paths, read-only bind mounts, and the mount on top of another."""
    table = mounts.parse(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "28 27 0:5 / /my\\040data ro,relatime shared:1 - nfs4 server:/x rw\n"
        "29 27 0:6 / /my\\040data rw - tmpfs t ro,size=4k\n"
    )
    assert [mount.path for mount in table] == ["/", "/my data", "/my data"]
    assert [(mount.read_only, mount.super_read_only) for mount in table] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    top = mounts.at(table, "/my data/")
    assert top is not None
    assert top.fstype == "tmpfs"
    assert mounts.at(table, "/my") is None


TASK = b"SLURM_JOB_ID=%d\0SLURM_PROCID=0\0SLURMD_NODENAME=%s\0"


def test_leftovers_are_tasks_of_this_node_whose_job_has_gone(tmp_path: Path) -> None:
    """Not the starting job, not one with a live slurmstepd, not another node's, not a prolog, not a client."""
    processes = {
        11: ("python", TASK % (5, b"n1")),
        12: ("python", TASK % (6, b"n1")),
        13: ("python", TASK % (7, b"n1")),
        14: ("python", TASK % (5, b"n2")),
        15: ("sh", TASK % (8, b"n1") + b"SLURM_SCRIPT_CONTEXT=prolog_slurmd\0"),
        16: ("srun", b"SLURM_JOB_ID=9\0"),
        17: ("slurmstepd: [6.batch]", b""),
        18: ("slurmstepd: [60.0]", b""),
        20: ("python", TASK % (61, b"n1")),  # of a heterogeneous job: its leader's id, below its own part's manager
        21: ("python", TASK % (62, b"n1")),
        19: ("python", b"SLURM_JOB_ID=x\0SLURM_PROCID=0\0SLURMD_NODENAME=n1\0\xff\xfe"),
    }
    for pid, (command, env) in processes.items():
        folder = tmp_path / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(command.encode() + b"\0")
        (folder / "environ").write_bytes(env)
        parent = {20: 18, 21: 11}.get(pid, 1)
        (folder / "stat").write_text(STAT.format(pid, command[:10]).replace(" S 1 ", f" S {parent} ", 1))
    facts = leftovers.probe(Context("n1", "prolog", tmp_path, job_id=7), {})
    finding = leftovers.check.judge(facts, {})
    assert finding.status.value == "warn"
    assert sorted(task["pid"] for task in finding.evidence["processes"]) == [11, 21]


def test_a_real_leftover_is_found() -> None:
    """A live process with a finished job's environment is told; once it ends, nothing is."""
    env = {"SLURM_JOB_ID": "4000000000", "SLURM_PROCID": "0", "SLURMD_NODENAME": "n-leftover"}
    context = Context("n-leftover", "epilog")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as child:
        look = lambda: leftovers.check.judge(leftovers.probe(context, {}), {})  # noqa: E731
        finding = wait_until(lambda: (f := look()).status.value == "warn" and f, 5.0, "the process is seen")
        assert re.search(r"1 processes of finished jobs \(4000000000\)", finding.sentence)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(10)
    assert look().status.value == "pass"


@pytest.mark.parametrize(
    ("env", "node", "job", "gpus"),
    [
        ({"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0,1"}, "n7", 12, (0, 1)),
        ({"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "$(id)", "SLURM_JOB_GPUS": "MIG-1"}, "n7", None, ()),
        ({"SLURMD_NODENAME": "../../etc"}, None, None, ()),
        ({}, None, None, ()),
    ],
)
def test_the_environment_is_believed_only_in_shape(
    env: dict[str, str], node: str | None, job: int | None, gpus: tuple[int, ...]
) -> None:
    """Users influence it: a name that is none falls back to the host's, ids that are none give nothing."""
    expected = node or os.uname().nodename.split(".", maxsplit=1)[0]
    assert (node_name(env), job_of(env), job_gpus_of(env)) == (expected, job, gpus)
