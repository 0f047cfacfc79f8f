"""Does every GPU run the firmware of its system processor (GSP) that the driver has for it?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, CheckError, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, outliers, reported, unanswered, unreported

_MODES = {"on": 1, "off": 0}
_REMEDY = "see NVreg_EnableGpuFirmware in /proc/driver/nvidia/params; reboot"


def validate(options: Options) -> None:
    """Refuse a mode that does not exist."""
    wanted = options["mode"]
    if wanted not in ("", *_MODES):
        raise CheckError(f"nodecheck.options.gpu_gsp.mode: {wanted!r} is not one of {', '.join(_MODES)}")


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: GPUs work with GSP firmware and without it; only a mixture is unwanted.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    wanted = options["mode"]
    validate(options)
    if (nothing := unanswered(facts) or unreported(facts, "gsp_mode", "GSP firmware", needed=False)) is not None:
        return nothing
    modes = [(gpu, mode[0]) for gpu, mode in reported(facts, "gsp_mode")]
    faults = []
    for gpu, on in modes:
        if wanted and on != _MODES[wanted]:
            text = f"GSP firmware is {'on' if on else 'off'} instead of {wanted}"
            faults.append(Fault.warn("gsp_mode", text, _REMEDY, gpu))
    for gpu, on in [] if wanted else outliers(modes):
        text = f"GSP firmware is {'on' if on else 'off'}, unlike on the other GPUs"
        faults.append(Fault.warn("gsp_odd", text, _REMEDY, gpu))
    driver = facts["system"].get("driver", "")
    running = {gpu["index"] for gpu, on in modes if on}
    for gpu, version in reported(facts, "gsp_version"):
        if gpu["index"] in running and driver and version and version != driver:
            text = f"GSP firmware {version} under driver {driver}"
            faults.append(Fault.warn("gsp_version", text, "reboot, so that the driver loads its own", gpu))
    return conclude_gpus(faults, ("gsp_fits", f"GSP firmware is on for {len(running)} of {len(modes)} GPUs"))


probe = probe_of("gsp_mode", "gsp_version")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: GSP firmware mode and version",
    cost="two calls a GPU, under 1 ms",
    options={"mode": Option("", "`on` or `off` for every GPU; empty: all GPUs of a model the same", "ours")},
)
