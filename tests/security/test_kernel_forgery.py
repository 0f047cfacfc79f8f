"""Users choose names that the kernel prints: crashes of real processes, as another user, in the real kernel log."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.nodecheck.catalogue import kernel_patterns
from slurm_robust.nodecheck.checks.gpu import xid
from slurm_robust.nodecheck.checks.network import nic_log
from slurm_robust.nodecheck.sources import kmsg

KMSG = Path("/dev/kmsg")
_CRASH = """
#include <sys/prctl.h>
int main(int argc, char **argv) { prctl(PR_SET_NAME, argv[1], 0, 0, 0); *(volatile int *)0 = argc; }
"""
FORGED = [
    ("XFS (tmpfs): ", "Shutting down filesystem"),
    ("y", "z\nXFS (vda): Shutting down filesystem\nkernel BUG at slub.c:305!\nCode: "),
    ("a\nNVRM: Xid (PC", "y\nNVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus"),
    ("XFS (vda): ", "Forced shutdown"),
    ("kernel BUG at ", "x"),
    ("mlx5_core 0.0.0", " health compromised"),
    ("NVRM: ", "[NV_ERR_RESET_REQUIRED]"),
    ("NVRM: ", "fallen off the bus"),
    ("Linux version ", "x"),
]
"""Fewer than the kernel's own limit, `kernel.printk_ratelimit_burst` in five seconds."""


def told(log: kmsg.KernelLog, cursor: dict[str, object]) -> list[str]:
    """Every text that one of the three readers of the kernel log finds anything in."""
    texts: list[str] = []
    log.since(texts.append, cursor)
    seen = [text for text in texts if kernel_patterns.sort(text) or xid.events([text]) or nic_log.count([text])]
    return seen + [f"boot: {text}" for text in texts if text.startswith("Linux version ")]


@pytest.fixture(scope="module")
def forged() -> Iterator[tuple[int, list[str]]]:
    """The kernel's number of the last record before real crashes of user 54321, and how many records they made."""
    if os.geteuid() != 0 or not os.access(KMSG, os.R_OK) or shutil.which("cc") is None:
        pytest.skip("needs root (to become another user), a readable /dev/kmsg and a C compiler")
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield _crashed(Path(made))


def _crashed(folder: Path) -> tuple[int, list[str]]:
    folder.chmod(0o755)
    program = folder / "crash"
    (folder / "crash.c").write_text(_CRASH)
    subprocess.run(["cc", "-o", str(program), str(folder / "crash.c")], check=True)
    before = kmsg.load(KMSG).since(lambda text: False, {}).cursor["seq"]
    for name, file in FORGED:
        place = folder / file
        shutil.copy(program, place)
        place.chmod(0o755)
        subprocess.run([str(place), name], user=54321, group=54321, extra_groups=[], cwd="/", check=False)
        time.sleep(0.01)
    records = [r for r in kmsg.load(KMSG).data.decode("utf-8", "replace").split("\0") if "segfault at" in r]
    new = [record for record in records if int(record.split(",")[1]) > before]
    if not any("kernel BUG at slub" in record for record in new):
        pytest.skip("this kernel logs no crashes (debug.exception-trace), or too many came at once")
    return before, new


def test_a_crash_is_no_evidence(forged: tuple[int, list[str]]) -> None:
    """The real /dev/kmsg says what a user wants it to say, and no reader finds trouble there."""
    before, records = forged
    assert any(";XFS (tmpfs): [" in record for record in records), records
    assert told(kmsg.load(KMSG), {"seq": before}) == []


@pytest.mark.parametrize("prefix", ["[{uptime}] ", "Jan  1 00:00:00 n1 kernel: [{uptime}] ", "<6>[{uptime}] "])
def test_nor_where_a_text_file_breaks_its_line(forged: tuple[int, list[str]], tmp_path: Path, prefix: str) -> None:
    """syslog(2) begins a new line, with the same time, where a file's name has a line break."""
    lines = ["Linux version 6.1.0"]
    for record in forged[1]:
        head, _, text = record.partition("\n")[0].partition(";")
        stamp = prefix.format(uptime=f"{int(head.split(',')[2]) / 1e6:12.6f}")
        plain = text.replace("\\x0a", "\n").replace("\\x5c", "\\")
        lines += [stamp + line for line in plain.split("\n")]
    assert any(line.endswith("kernel BUG at slub.c:305!") for line in lines)
    path = tmp_path / "kern.log"
    path.write_text("\n".join(lines) + "\n")
    assert told(kmsg.load(path), {}) == ["boot: Linux version 6.1.0"]


def test_what_is_written_to_the_device_is_not_the_kernel_s() -> None:
    """User space that may write to /dev/kmsg gets its own facility, and is not believed."""
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("no /dev/kmsg to write to")
    before = kmsg.load(KMSG).since(lambda text: False, {}).cursor["seq"]
    with KMSG.open("wb", buffering=0) as device:
        device.write(b"<2>kernel BUG at mm/slub.c:305!\n")
    log = kmsg.load(KMSG)
    assert b"kernel BUG at mm/slub.c:305!" in log.data
    assert told(log, {"seq": before}) == []
