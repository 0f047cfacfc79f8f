"""A node with GPUs that are none: the fake NVML compiled, and one check run above NVIDIA's own binding."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding

SOURCES = Path(__file__).parent / "nodecheck" / "fake_nvml"

A100_PCIE = """gpus=2
gpu.*.name=NVIDIA A100-PCIE-40GB
gpu.*.memory.total_mib=40960
gpu.*.pcie.generation=4
gpu.*.pcie.max_generation=4
gpu.*.nvlink.count=12
gpu.*.nvlink.active=0
gpu.*.power.limit=250000
gpu.*.power.enforced=250000
gpu.*.power.default=250000
gpu.*.fi.90=-
gpu.*.fabric.state=-
gpu.*.call.nvmlDeviceGetMarginTemperature=missing
gpu.*.rows.max=640
driver=535.183.01
cuda=12020
"""
L40S = """gpus=4
gpu.*.name=NVIDIA L40S
gpu.*.memory.total_mib=46068
gpu.*.pcie.generation=1
gpu.*.pcie.max_generation=4
gpu.*.pstate=8
gpu.*.nvlink.count=-
gpu.*.call.nvmlDeviceGetNvLinkState=error:3
gpu.*.fi.82=-
gpu.*.fi.90=-
gpu.*.fi.91=-
gpu.*.fabric.state=-
gpu.*.mig.mode=-
gpu.*.power.limit=350000
gpu.*.power.enforced=350000
gpu.*.power.default=350000
gpu.*.rows.max=96
"""
B200 = """gpu.*.name=NVIDIA B200
gpu.*.memory.total_mib=183359
gpu.*.fi.90=53125
gpu.*.power.limit=1000000
gpu.*.power.enforced=1000000
gpu.*.power.default=1000000
gpu.*.clock.application.1=-
gpu.*.clock.application.2=-
gpu.*.clock.default.1=-
gpu.*.clock.default.2=-
"""
GB200 = """gpus=4
gpu.*.name=NVIDIA GB200
gpu.*.memory.total_mib=189471
gpu.*.memory.used_mib=9000
gpu.*.fi.90=53125
gpu.*.fi.170=14
gpu.*.fi.171=1
gpu.*.fi.38=-
gpu.*.temperature.threshold.1=-
gpu.*.clock.application.1=-
gpu.*.clock.application.2=-
gpu.*.pcie.generation=1
gpu.*.pcie.width=1
driver=580.65.06
cuda=13000
"""
ONE_OF_EIGHT = """gpus=1
gpu.*.nvlink.active=0
gpu.*.fabric.state=1
gpu.*.persistence=-
gpu.*.fi.230=-
"""
"""A virtual machine that was given one GPU of a board."""
GH200 = """gpus=1
gpu.*.name=NVIDIA GH200 480GB
gpu.*.memory.total_mib=97871
gpu.*.memory.used_mib=20000
gpu.*.nvlink.active=0
gpu.*.fi.170=10
gpu.*.fi.171=1
gpu.*.pcie.max_width=16
gpu.*.pcie.width=1
gpu.*.clocks.reasons=1
gpu.*.fabric.state=0
"""
V100 = """gpus=4
gpu.*.name=Tesla V100-SXM2-32GB
gpu.*.memory.total_mib=32510
gpu.*.pcie.generation=3
gpu.*.pcie.max_generation=3
gpu.*.nvlink.count=6
gpu.*.fi.90=25781
gpu.*.fi.82=-
gpu.*.fi.230=-
gpu.*.mig.mode=-
gpu.*.rows.corrected=-
gpu.*.rows.max=-
gpu.*.fabric.state=-
gpu.*.gsp.mode=-
gpu.*.gsp.version=-
gpu.*.retired.single=0
gpu.*.retired.double=0
gpu.*.retired.pending=0
gpu.*.fi.92=0
gpu.*.fi.93=0
gpu.*.temperature.margin=-
driver=470.256.02
gpu.*.call.nvmlDeviceGetCurrentClocksEventReasons=missing
gpu.*.call.nvmlDeviceGetMemoryInfo_v2=missing
gpu.*.call.nvmlDeviceGetSramEccErrorStatus=missing
gpu.*.call.nvmlDeviceGetRepairStatus=missing
"""
MIG = """gpus=2
gpu.*.mig.mode=1
gpu.*.call.nvmlDeviceGetRemappedRows=error:3
gpu.*.ecc.volatile.corrected=-
gpu.*.ecc.volatile.uncorrected=-
gpu.*.nvlink.active=0
"""
HEALTHY = {"H100": "", "A100_PCIE": A100_PCIE, "L40S": L40S, "B200": B200, "GB200": GB200, "GH200": GH200}
HEALTHY |= {"V100": V100, "MIG": MIG, "ONE_OF_EIGHT": ONE_OF_EIGHT}
"""Scenarios of healthy machines; a line laid after one replaces what it says."""


def compile_fake(folder: Path) -> Path:
    """Compile the fake library into a folder, warnings being errors."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run(["cc", *flags, "-o", str(library), *sources, "-ldl"], check=True, timeout=60)
    return library


class FakeGpus:
    """A folder with the library and its scenario, and a cache that lasts as long as this object."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.library = folder / library.name
        shutil.copy(library, self.library)
        self.cache = folder / "cache"
        self.scenario("")

    def scenario(self, *parts: str) -> None:
        """What the library shows from now on; later lines replace earlier ones."""
        (self.folder / "scenario").write_text("\n".join(parts) + "\n")

    def context(self, stage: str = "full", **more: Any) -> Context:
        """A look at this machine with the fake's GPUs."""
        more = {"nvml_library": str(self.library), "cache_dir": self.cache, **more}
        return Context("n1", stage, **more)

    def look(self, name: str, stage: str = "full", options: dict[str, Any] | None = None, **more: Any) -> Finding:
        """One check as the suite runs it: in its own process, with its deadline, remembering."""
        report = runner.run([registry.get(name)], self.context(stage, **more), {name: options or {}}, 20.0)
        return report.results[0].finding

    def verdict(self, name: str, *scenario: str, **more: Any) -> tuple[str, str]:
        """Status and reason of one check, of this scenario where one is given."""
        if scenario:
            self.scenario(*scenario)
        finding = self.look(name, **more)
        assert finding.remedy or finding.status.value not in ("warn", "fail", "unknown"), finding
        return finding.status.value, finding.reason
