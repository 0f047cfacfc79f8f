"""The service as a process: findings in a second, killed at any moment, one a node, and a source that breaks alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until
from watch_helpers import XID_79, RunningService

from slurm_robust.marks import node_findings

Watch = Callable[..., RunningService]
_DISK = "nvme nvme{}: Disabling device after reset failure: -19"


def test_a_line_is_read_by_agents_within_a_second(watch: Watch) -> None:
    """From the kernel log to the file; stdout has the same as JSON, and SIGTERM ends it."""
    service = watch().start()
    begin_s = time.monotonic()
    service.log(XID_79)
    found = service.wait_for("xid")
    assert time.monotonic() - begin_s < 1.5
    assert (found.seq, found.urgency, found.code) == (1, "now", 79)
    assert abs(found.at_s - time.time()) < 5
    wait_until(lambda: "observe: would tell Slurm that" in service.said(), 10, "what Slurm would be told")
    assert service.end() == 0
    shown = [json.loads(line) for line in (service.folder / "out").read_text().splitlines()]
    assert shown[0]["code"] == 79
    assert len(service.said().splitlines()) == 2, "its mode at the start, and that"


def test_what_was_written_meanwhile_is_found_after_a_restart(watch: Watch) -> None:
    """Killed, and started again: each line once, and numbers go on."""
    service = watch().start()
    service.log(_DISK.format(0))
    service.wait_for("disk_lost")
    service.end(signal.SIGKILL)
    service.log(XID_79)
    service.start()
    assert service.wait_for("xid").seq == 2
    assert [finding.kind for finding in service.findings()] == ["disk_lost", "xid"]


def test_killed_at_any_moment_nothing_is_lost_or_told_twice(watch: Watch) -> None:
    """SIGKILL in the middle of reading, judging and writing, a dozen times."""
    source = random.Random(16)
    service = watch()
    written = 0
    for _ in range(12):
        service.start()
        for _ in range(5):
            written += 1
            service.log(XID_79.replace("9b", f"{written:02x}"))
            time.sleep(source.random() * 0.1)
        service.end(signal.SIGKILL)
    service.start()
    newest = f"0000:{written:02x}:00"
    wait_until(lambda: any(newest in f.text for f in service.findings()), 10, "the last one")
    found = service.findings()
    assert [f.seq for f in found] == list(range(found[0].seq, written + 1)), "each line is one finding"
    assert {f.code for f in found} == {79}
    usual = ("observe: would tell Slurm", "mode observe, since")
    assert [line for line in service.said().splitlines() if not any(words in line for words in usual)] == []


def test_another_one_on_the_same_node_is_refused(watch: Watch) -> None:
    """Two would write over each other."""
    service = watch().start()
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--config", str(service.folder / "robust.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "another nodewatch runs" in done.stderr


def test_once_prints_and_writes_nothing(watch: Watch) -> None:
    """The whole log of this boot, whatever a service has judged already."""
    service = watch()
    service.log(XID_79)
    config = service.folder / "robust.yaml"
    config.write_text(f"nodecheck: {{cache_dir: {service.cache}, kmsg: {service.kmsg}}}\n")
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--config", str(config), "--once"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert " now xid: XID 79" in done.stdout
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert 79 in [json.loads(line)["code"] for line in done.stdout.splitlines()]
    assert not (service.cache / node_findings.FILE_NAME).exists()


def test_a_source_that_breaks_is_said_once_and_comes_back(watch: Watch) -> None:
    """No kernel log at first: the others watch, and it is followed once it is there."""
    service = watch()
    service.kmsg.unlink()
    service.start()
    wait_until(lambda: "kmsg: " in service.said(), 10, "it is said")
    service.log(XID_79)
    service.wait_for("xid")
    assert service.said().count("kmsg: ") == 1


def test_a_wrong_configuration_is_said(watch: Watch, tmp_path: Path) -> None:
    """With file and line; and an option that no check has."""
    config = tmp_path / "robust.yaml"
    for text, expected in (("nodecheck: {kmsgs: x}\n", "kmsgs"), ("nodecheck: {options: {xidd: {}}}\n", "xidd")):
        config.write_text(text)
        argv = [sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--config", str(config)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1
        assert expected in done.stderr


def test_a_flood_costs_bounded_memory_and_hides_nothing(watch: Watch) -> None:
    """80,000 lines of errors with a fatal one among them: found, and the process has not grown by much."""
    service = watch().start()
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status")
    noise = [f"EDAC MC0: 1 CE memory read error on x (channel:0 page:0x{number:x})" for number in range(40_000)]
    service.log(*noise)
    service.log(XID_79)
    service.log(*noise)
    assert service.wait_for("xid", timeout_s=60).urgency == "now"
    wait_until(lambda: _cursor(service) >= service.kmsg.stat().st_size, 90, "all of it is read")
    assert int(status.read_text().split("VmHWM:")[1].split()[0]) < 60 << 10
    assert len(service.findings()) < 20


def _cursor(service: RunningService) -> int:
    try:
        state = json.loads((service.cache / "nodewatch" / "service.json").read_text())
    except (OSError, ValueError):
        return 0
    at: int = state["cursor"]["at"]
    return at


@pytest.mark.skipif(os.geteuid() != 0, reason="the device is root's")
def test_the_real_kernel_log_is_followed(tmp_path: Path, watch: Watch) -> None:
    """/dev/kmsg by its records' numbers: the cursor stands at the newest, and nothing breaks."""
    device = Path("/dev/kmsg")
    if not device.exists():
        pytest.skip("no /dev/kmsg here")
    service = watch()
    service.kmsg = device
    service.start()
    service.end()
    state = json.loads((service.cache / "nodewatch" / "service.json").read_text())
    assert state["cursor"]["seq"] > 0
    assert "kmsg" not in service.said()
