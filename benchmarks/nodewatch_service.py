"""One `srobust nodewatch` on a folder of its own: how late are its findings, and what does it cost?"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from lib import ROOT, wait_for

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding

sys.path.append(str(ROOT / "tests"))

from fake_gpus import FakeGpus, compile_fake

_SETTLE_S = 20.0
"""Its first looks at everything, and its start."""
_TOOL_S = 20.0
_NOISE = "mlx5_core 0000:{:02x}:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)"


@dataclass(frozen=True)
class Cost:
    """Of the service and its children: `cpu_percent` of one core; the most memory, what is shared counted in parts."""

    cpu_percent: float
    pss_mib: float


@dataclass(frozen=True)
class Flood:
    """How the service took so many lines.

    Attributes:
        lines: Of the kernel log, all alike but for a few words, as a broken device writes them.
        took_s: From the first line written to the last one judged.
        cpu_s: Processor time of all of its processes meanwhile.
        last_s: From an XID at the end of the flood to its finding.
    """

    lines: int
    took_s: float
    cpu_s: float
    last_s: float
    cost: Cost


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for all of this run; readable by all, since findings are only believed in a folder of root's own."""
    with tempfile.TemporaryDirectory(prefix="srobust-bench-") as name:
        yield Path(name)


class Service:
    """A real service.

    Args:
        folder: Its own; made here.
        prefix: Words before the command, as `ip netns exec NAME`.
        options: More of `nodecheck`, in YAML's flow style.
    """

    def __init__(self, folder: Path, *, prefix: tuple[str, ...] = (), options: str = "") -> None:
        folder.mkdir(parents=True)
        self.kmsg, self.cache = folder / "kmsg", folder / "cache"
        self.kmsg.write_text("")
        config = folder / "robust.yaml"
        config.write_text(f"nodecheck: {{cache_dir: {self.cache}, kmsg: {self.kmsg}{options}}}\n")
        self._seq = 0
        argv = [*prefix, sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--config", str(config)]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_for((self.cache / node_findings.FILE_NAME).exists, 30, "the service's file")

    def log(self, *texts: str) -> None:
        """Write these lines to its kernel log, in one call."""
        at = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        lines = []
        for text in texts:
            self._seq += 1
            lines.append(f"4,{self._seq},{at},-;{text}\n")
        with self.kmsg.open("a") as file:
            file.write("".join(lines))

    def findings(self) -> list[NodeFinding]:
        """What agents would read now."""
        return node_findings.read(str(self.cache), node_findings.boot_id(), (0, os.geteuid()))

    def delay_s(self, event: Callable[[], None], kind: str, timeout_s: float = 60.0) -> float:
        """Seconds from an event to the next finding of this kind, as a reader of the file has it."""
        before = max((finding.seq for finding in self.findings()), default=0)
        began_s = time.monotonic()
        event()
        wait_for(lambda: any(f.kind == kind and f.seq > before for f in self.findings()), timeout_s, kind, poll_s=0.002)
        return time.monotonic() - began_s

    def family(self) -> list[psutil.Process]:
        """Its process and its children."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def cpu_s(self) -> float:
        """Processor time of all of them, those that ended counted."""
        total = 0.0
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def pss_mib(self) -> float:
        """Memory of all of them, shared pages in parts."""
        total = 0
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / (1 << 20)

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


def event_to_finding(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds from an event to the file of findings, by source."""
    return {
        "kmsg": _kmsg_delays(folder / "kmsg", rounds),
        "link": _link_delays(folder / "link", rounds),
        "nvml": _nvml_delays(folder / "nvml", max(2, rounds // 4)),
    }


def _kmsg_delays(folder: Path, rounds: int) -> list[float]:
    service = Service(folder)
    try:
        line = "NVRM: Xid (PCI:0000:{:02x}:00): 79, pid=1, GPU has fallen off the bus."
        return [service.delay_s(lambda n=n: service.log(line.format(n)), "xid") for n in range(rounds)]
    finally:
        service.end()


def _link_delays(folder: Path, rounds: int) -> list[float]:
    """A real link in a network namespace of its own, lost by its other end."""
    space = f"srb{secrets.token_hex(4)}"
    _tool("ip", "netns", "add", space)
    try:
        for n in range(rounds):
            _tool("ip", "-n", space, "link", "add", f"up{n}", "type", "veth", "peer", "name", f"far{n}")
            _tool("ip", "-n", space, "link", "set", f"up{n}", "up")
            _tool("ip", "-n", space, "link", "set", f"far{n}", "up")
        names = ", ".join(f"up{n}" for n in range(rounds))
        options = f", options: {{ethernet: {{interfaces: [{names}]}}}}"
        service = Service(folder, prefix=("ip", "netns", "exec", space), options=options)
        try:
            table = Path(f"/proc/{service.process.pid}/net/netlink")
            wait_for(lambda: _hears_links(table), 30, "the service listens to the kernel's links")
            return [
                service.delay_s(lambda n=n: _tool("ip", "-n", space, "link", "set", f"far{n}", "down"), "link")
                for n in range(rounds)
            ]
        finally:
            service.end()
    finally:
        _tool("ip", "netns", "del", space)


def _hears_links(table: Path) -> bool:
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return any(row[1] == "0" and int(row[3], 16) & 1 for row in rows)


def _nvml_delays(folder: Path, rounds: int) -> list[float]:
    """GPUs that none are: below the real binding, a GPU is lost and comes back."""
    built = folder / "built"
    built.mkdir(parents=True)
    gpus = FakeGpus(compile_fake(built), folder)
    service = Service(folder / "service", options=f", nvml_library: {gpus.library}")
    lost = ("gpu.3.call.nvmlDeviceGetTemperature=error:15", "gpu.3.call.nvmlDeviceGetPerformanceState=error:15")
    try:
        wait_for((service.cache / "nodewatch" / "gpu_throttle.json").exists, 40, "NVML is asked")
        found = []
        for n in range(rounds):
            time.sleep(n * 10.0 / rounds)  # so that the losses are spread over the time between two looks
            found.append(service.delay_s(lambda: gpus.scenario(*lost), "gpu_driver"))
            service.delay_s(lambda: gpus.scenario(""), "gpu_driver")
        return found
    finally:
        service.end()


def at_rest(folder: Path, seconds: float) -> Cost:
    """What it costs while nothing happens, after its start."""
    service = Service(folder)
    try:
        time.sleep(min(_SETTLE_S, seconds))
        before_s, began_s = service.cpu_s(), time.monotonic()
        time.sleep(seconds)
        used_s, took_s = service.cpu_s() - before_s, time.monotonic() - began_s
        return Cost(used_s / took_s * 100, service.pss_mib())
    finally:
        service.end()


def in_flood(folder: Path, lines: int) -> Flood:
    """A broken device's words, as fast as they can be written, and an XID behind them."""
    service = Service(folder)
    try:
        time.sleep(2.0)
        before_s, began_s, memory = service.cpu_s(), time.monotonic(), list[float]()
        for first in range(0, lines, 10_000):
            service.log(*(_NOISE.format(n % 8) for n in range(first, min(lines, first + 10_000))))
            memory.append(service.pss_mib())
        written_s = time.monotonic()
        service.delay_s(
            lambda: service.log("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."), "xid", 600
        )
        ended_s = time.monotonic()
        memory.append(service.pss_mib())
        cpu_s = service.cpu_s() - before_s
        cost = Cost(cpu_s / (ended_s - began_s) * 100, max(memory))
        return Flood(lines, ended_s - began_s, cpu_s, ended_s - written_s, cost)
    finally:
        service.end()


def _tool(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=_TOOL_S)
