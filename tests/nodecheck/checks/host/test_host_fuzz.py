"""Trees of a node, cut and garbled: every probe gives facts, every judge a finding, and no garbage drains a node."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_host_cpu import memory, policies
from test_host_disks import DEGRADED, aer, nvmes
from test_host_ecc import errors
from test_host_services import SCOPE, STEPD, V2
from test_host_settings import SYSTEM, heat, sensor
from test_host_tasks import DISK, stat

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context

HOST = [name for name, group in registry.GROUP_OF.items() if group == "host" and name != "clock"]
TREE: dict[str, str] = {
    **policies(4),
    **memory(1 << 30, 1 << 30),
    **aer(50),
    **nvmes(2),
    **errors(5, 0),
    **STEPD,
    **SYSTEM,
    **heat(5),
    **sensor("coretemp", "0"),
    "/proc/mdstat": DEGRADED,
    "/proc/swaps": DISK,
    "/proc/vmstat": "pswpin 5\npswpout 7\n",
    "/proc/pressure/memory": "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "/proc/11/stat": stat(11, "python", "D"),
    "/proc/11/environ": "SLURM_JOB_ID=7\0SLURM_PROCID=0\0SLURMD_NODENAME=n1\0",
    "/proc/11/cmdline": "python\0train.py\0",
    "/proc/loadavg": "0.10 0.20 0.30 1/500 999\n",
    "/proc/meminfo": "MemTotal:       65843392 kB\nMemAvailable:   60000000 kB\nHardwareCorrupted:     0 kB\n",
    "/proc/self/mountinfo": "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/fs/file-nr": "980\t0\t100000\n",
    "/proc/sys/fs/aio-nr": "0\n",
    "/proc/sys/fs/aio-max-nr": "65536\n",
    "/proc/key-users": "    0:   99 98/98 99/1000000 9000/25000000\n",
    "/proc/sys/kernel/random/boot_id": "boot-1\n",
    f"{SCOPE}/job_77/step_0/cgroup.procs": "11\n",
    f"{V2}/sssd.service/cgroup.procs": "31\n",
    "/sys/devices/system/cpu/present": "0-3\n",
    "/sys/devices/system/cpu/online": "0-3\n",
    "/kmsg": "[    1.0] Linux version 6.1\n[    2.0] EXT4-fs (sda1): Remounting filesystem read-only\n",
    "/tmp/x": "",
    "/dev/shm/x": "",
}
CHOSEN: dict[str, dict[str, Any]] = {
    "services": {"wanted": ["sssd"]},
    "settings": {"kernel": ["6.*"], "sysctl": {"kernel.numa_balancing": 0}, "modules": ["lustre"], "lsm": ["apparmor"]},
    "disks": {"expected": {"sd*": 0}},
}


def findings(root: Path) -> dict[str, str]:
    """Every host check's status, run here and now so that an error is an error; twice, with what it remembers."""
    context = Context("n1", "full", root, root / "kmsg", root / "cache")
    statuses = {}
    for name in HOST:
        check = registry.get(name)
        options = check.settings(CHOSEN.get(name, {}))
        for _ in range(2):
            facts = json.loads(json.dumps(check.probe(context, options)))
            finding = check.judge(facts, options)
            json.dumps({**finding.evidence})
            assert finding.sentence
            assert finding.reason.isidentifier()
            if check.remember is not None:
                json.dumps(check.remember(facts, options))
        statuses[name] = finding.status.value
    return statuses


def build(root: Path) -> None:
    """The whole tree."""
    for name, text in TREE.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def tree() -> Any:
    """A tree that each example garbles and mends again."""
    with tempfile.TemporaryDirectory(prefix="srobust-fuzz-") as folder:
        build(Path(folder))
        yield Path(folder)


def test_the_whole_tree_is_fit(tree: Path) -> None:
    """Ungarbled, nothing of it fails, and no probe is without an answer."""
    statuses = findings(tree)
    assert {name for name, status in statuses.items() if status in ("fail", "unknown")} == set()


ABSURD = st.sampled_from(
    [b"", b"\n", b"\x00" * 64, b"\xff\xfe\x80", b"-1\n", b"9" * 400, b"0-999999999\n", b"nan inf [", b"%s%n"]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_garbled_tree_gives_findings_and_drains_nothing(tree: Path, data: st.DataObject) -> None:
    """Cut, binary, absurd, missing, or a folder in its place: facts and a finding, and no `fail`."""
    names = data.draw(st.lists(st.sampled_from(sorted(TREE)), min_size=1, max_size=12, unique=True))
    try:
        for name in names:
            path = tree / name.lstrip("/")
            how = data.draw(st.sampled_from(["cut", "binary", "absurd", "gone", "folder"]))
            whole = TREE[name].encode()
            if how in ("gone", "folder"):
                path.unlink()
                if how == "folder":
                    path.mkdir()
                continue
            cut = whole[: data.draw(st.integers(0, len(whole)))]
            path.write_bytes(
                {"cut": cut, "binary": cut + data.draw(st.binary(max_size=20))}.get(how, data.draw(ABSURD))
            )
        statuses = findings(tree)
    finally:
        for name in names:
            path = tree / name.lstrip("/")
            with contextlib.suppress(OSError):
                path.rmdir()
            path.write_text(TREE[name])
    # A cut number is a smaller number: of memory errors that can only be fewer, so only `ecc` reads garbage as a fault.
    assert {name for name, status in statuses.items() if status == "fail"} <= {"ecc"}


def test_an_empty_tree_gives_no_fault(tmp_path: Path) -> None:
    """A machine that shows nothing of itself: skip or unknown, never a fault."""
    assert set(findings(tmp_path).values()) <= {"skip", "pass", "unknown", "warn"}
