"""Are all GPUs there that the node should have, and those that this job was given?

Counted from the driver's own files; NVML is not asked here.
"""

from __future__ import annotations

import glob
import os

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.sources import pci, slurm_conf, small_files

_REMEDY = "drain; look for the missing GPU in `lspci -d 10de:` and the kernel log; power-cycle"
_MAX_NAMES = 4
_GIVEN_AWAY = ("vfio-pci", "pci-stub", "xen-pciback")


def _on_bus(context: Context) -> int:
    """Return the number of NVIDIA's GPUs on the PCI bus, without those that were passed to a virtual machine."""
    return sum(small_files.target(device / "driver") not in _GIVEN_AWAY for device in pci.gpus(context))


def _unbound(context: Context) -> list[str]:
    """Return addresses of GPUs without a driver, if NVIDIA's driver has a GPU of the same model.

    GPUs meant for a virtual machine (`driver_override`), and virtual functions (`physfn`), are left out.
    """
    bound, free = set(), []
    for device in pci.gpus(context):
        model, driver = small_files.text(device / "device", 16), small_files.target(device / "driver")
        if driver == "nvidia":
            bound.add(model)
        elif not driver and not (device / "physfn").exists():
            override = small_files.text(device / "driver_override", 64)
            if override in ("", "(null)", "nvidia"):
                free.append((device.name, model))
    return sorted(name for name, model in free if model in bound)


def probe(context: Context, options: Options) -> Facts:
    """Count GPUs as the driver, the bus and /dev have them."""
    bound = context.path("/proc/driver/nvidia/gpus")
    pattern = str(context.root / str(options["device_glob"]).lstrip("/")).replace("%n", context.node)
    # A site writes this pattern whole, from the root: glob's own business, not Path's.
    names = glob.glob(pattern)  # noqa: PTH207
    return {
        "driver": context.path("/proc/driver/nvidia/version").is_file(),
        "bound": len(list(bound.iterdir())) if bound.is_dir() else 0,
        "on_bus": _on_bus(context),
        "unbound": _unbound(context),
        "devices": sorted(name for name in map(os.path.basename, names) if name[-1:].isdigit()),
        "mig": any(context.path("/proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*")),
        "job_gpus": list(context.job_gpus),
        "declared": slurm_conf.declared(context, slurm_conf.gpus),
    }


def judge(facts: Facts, options: Options) -> Finding:
    """Fails where fewer are there than the site expects, or than this job was given.

    Fewer than slurm.conf gives the node only warn: some sites give more than there are.

    The driver's own list is believed before /dev: device files appear at the first use of a GPU. With a `device_glob`
    of the site's own (GPUs that are no NVIDIA driver's), the files count.
    """
    own_files = options["device_glob"] != _DEFAULT_GLOB
    expected: int = options["expected"]
    count = len(facts["devices"]) if own_files else max(facts["bound"], len(facts["devices"]))
    evidence = {**facts, "expected": expected}
    if not own_files and not facts["driver"] and not expected:
        return Finding.skip("no_driver", "no NVIDIA driver is loaded", evidence)
    if expected and count < expected:
        return Finding.fail("gpu_missing", f"{count} of {expected} GPUs are there", _REMEDY, evidence)
    if facts["job_gpus"] and not facts["mig"] and count < len(facts["job_gpus"]):
        given = len(facts["job_gpus"])
        sentence = f"the job was given {given} GPUs and the node has {count}"
        return Finding.fail("job_gpu_missing", sentence, _REMEDY, evidence)
    warning = None if own_files else _driver_lacks(facts, expected, count)
    if warning is not None:
        return warning
    if expected and count > expected:
        sentence = f"{count} GPUs are there, {expected} are expected"
        return Finding.warn("gpu_surplus", sentence, "correct nodecheck.options.gpu_count.expected", evidence)
    return Finding.passed("gpus_present", f"{count} GPUs are there", evidence)


def _driver_lacks(facts: Facts, expected: int, count: int) -> Finding | None:
    """Return a finding if Slurm or the bus has more GPUs than the driver."""
    evidence = {**facts, "expected": expected}
    if not facts["driver"]:
        return None
    if count < facts["declared"] and not (facts["mig"] or expected):
        sentence = f"{count} GPUs are there, slurm.conf gives the node {facts['declared']}"
        remedy = f"{_REMEDY}; or correct Gres, or say nodecheck.options.gpu_count.expected"
        return Finding.warn("gpu_fewer_than_gres", sentence, remedy, evidence)
    if facts["unbound"]:
        names = ", ".join(facts["unbound"][:_MAX_NAMES])
        sentence = f"no driver has the GPU at {names}, which is on the bus; others of its model have theirs"
        return Finding.warn("gpu_unbound", sentence, "read `dmesg | grep NVRM`; power-cycle", evidence)
    if facts["on_bus"] > count:
        sentence = f"{facts['on_bus']} GPUs are on the bus, the driver has {count}"
        return Finding.warn("gpu_unbound", sentence, "read `dmesg | grep NVRM`", evidence)
    return None


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the conditions that the driver keeps as many GPUs, and the job that starts is given no more."""
    same = ("entries", "/proc/driver/nvidia/gpus", str(facts["bound"]))
    return [same, ("gpus", str(facts["bound"]))] if facts["driver"] and not facts["mig"] else [same]


_DEFAULT_GLOB = "/dev/nvidia[0-9]*"
check = Check(
    **Check.parts_of(__name__),
    reads="/proc/driver/nvidia, /sys/bus/pci/devices/*/{vendor,class,device,driver}, /dev/nvidia*, SLURM_JOB_GPUS, "
    "slurm.conf",
    cost="a few hundred small reads, 1–5 ms",
    lane="files",
    options={
        "expected": Option(
            0,
            "GPUs the node must have; 0 takes Gres of slurm.conf, which only warns, and not in prolog and epilog",
            "ours: only the site knows",
        ),
        "device_glob": Option(_DEFAULT_GLOB, "device files to count; `%n` is the node's name", "NVIDIA's own names"),
    },
)
