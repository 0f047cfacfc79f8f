"""Can network cards reach the GPUs' memory directly (GPUDirect RDMA)?"""

from __future__ import annotations

import re

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import small_files

_KERNEL = re.compile(r"Linux version (\d{1,4})\.(\d{1,4})")
_DMA_BUF = (5, 12)
_MODULES = ("nvidia_peermem", "nv_peer_mem")


def probe(context: Context, options: Options) -> Facts:
    """Modules, cards and the kind of the driver; only files are read."""
    kernel = _KERNEL.match(small_files.read_text(context.path("/proc/version"), 512))
    driver = small_files.read_text(context.path("/proc/driver/nvidia/version"), 4096)
    return {
        "driver": bool(driver),
        "open": "Open Kernel Module" in driver,
        "kernel": [int(kernel[1]), int(kernel[2])] if kernel else [0, 0],
        "cards": small_files.names(context.path("/sys/class/infiniband"))[:64],
        "mellanox": context.path("/sys/module/mlx5_ib").is_dir(),
        "loaded": [name for name in _MODULES if context.path(f"/sys/module/{name}").is_dir()],
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Fail only if the site needs the module; warn if there is no direct way without it (no dma-buf)."""
    if not facts["driver"]:
        return Finding.skip("no_driver", "no NVIDIA driver is loaded")
    if facts["loaded"]:
        return Finding.passed("peermem_loaded", f"{facts['loaded'][0]} is loaded", facts)
    remedy = "`modprobe nvidia-peermem`, and name it in /etc/modules-load.d/"
    if options["required"]:
        return Finding.fail("peermem_missing", "nvidia-peermem is not loaded", remedy, facts)
    if not facts["cards"] or not facts["mellanox"]:
        return Finding.skip("no_rdma", "no RDMA card here uses nvidia-peermem", facts)
    if facts["open"] and tuple(facts["kernel"]) >= _DMA_BUF:
        return Finding.passed("dma_buf", "GPUDirect RDMA goes by dma-buf", facts)
    sentence = "no GPUDirect RDMA: nvidia-peermem is not loaded, and driver or kernel have no dma-buf"
    return Finding.warn("no_gpudirect", sentence, remedy, facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/module, /sys/class/infiniband, /proc/version, /proc/driver/nvidia/version",
    cost="a few small reads, under 1 ms",
    lane="files",
    options={
        "required": Option(
            False,
            "true: the node is unfit without the module",
            "NCCL's manual: dma-buf does as well, with open kernel modules and Linux 5.12",
        )
    },
)
