"""What the tests of nodewatch share: moments, records, and a real service on a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers import wait_until

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers, driver_numbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
OWNERS = (0, os.geteuid())


def at(seconds: float) -> Moment:
    """A moment so long after boot, on a day in 2026."""
    return Moment(1_790_000_000.0 + seconds, seconds, seconds)


def record(seq: int, uptime_s: float, text: str) -> str:
    """A raw record of /dev/kmsg."""
    return f"4,{seq},{int(uptime_s * 1e6)},-;{text}"


def kernel_lines(root: Path) -> KernelLines:
    """A judge of records on a machine whose /proc and /sys are below `root`."""
    gpus = GpuNumbers(root)
    numbers, guessed = driver_numbers(root)
    gpus.learn(numbers, guessed=guessed)
    return KernelLines(Context("n1", "periodic", root=root, kmsg=root / "kmsg"), {}, gpus)


class RunningService:
    """`srobust nodewatch` on a folder with a kernel log of its own."""

    def __init__(self, folder: Path, *more: str, prefix: tuple[str, ...] = (), extra: str = "") -> None:
        self.folder, self.kmsg, self.cache = folder, folder / "kmsg", folder / "cache"
        self._argv = [*prefix, sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--json", *more]
        self._extra = extra
        self._seq = 0
        self.process: subprocess.Popen[bytes] | None = None
        if not self.kmsg.exists():
            self.log("Linux version 6.1.0")

    def start(self) -> RunningService:
        """Start it; returns when it has written its file."""
        config = self.folder / "robust.yaml"
        checks = "nodecheck: {cache_dir: " + f"{self.cache}, kmsg: {self.kmsg}{self._extra}" + "}\n"
        config.write_text(checks)
        before = self._written()
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen([*self._argv, "--config", str(config)], stdout=out, stderr=err)
        wait_until(lambda: self._written() != before or self.process.poll() is not None, 20, "the ring is written")
        assert self.process.poll() is None, (self.folder / "err").read_text()
        return self

    def _written(self) -> int:
        path = self.cache / node_findings.FILE_NAME
        return path.stat().st_mtime_ns if path.exists() else 0

    def log(self, *texts: str) -> None:
        """Add lines to its kernel log."""
        with self.kmsg.open("a") as file:
            for text in texts:
                self._seq += 1
                file.write(record(self._seq, time.clock_gettime(time.CLOCK_BOOTTIME), text) + "\n")

    def findings(self) -> list[NodeFinding]:
        """What agents would read now."""
        return node_findings.read(str(self.cache), node_findings.boot_id(), OWNERS)

    def wait_for(self, kind: str, times: int = 1, timeout_s: float = 15) -> NodeFinding:
        """The newest finding of this kind, when there are so many."""

        def found() -> list[NodeFinding]:
            return [finding for finding in self.findings() if finding.kind == kind]

        wait_until(lambda: len(found()) >= times, timeout_s, f"{times} {kind}; {self.said()}")
        return found()[-1]

    def said(self) -> str:
        """What it wrote to stderr."""
        return (self.folder / "err").read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(10)
