"""Does every GPU run the firmware of its system processor (GSP) that the driver has for it?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, CheckError, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_MODES = {"on": 1, "off": 0}
_REMEDY = "see NVreg_EnableGpuFirmware in /proc/driver/nvidia/params; reboot"


def judge(facts: Facts, options: Options) -> Finding:
    """Only warns: with and without, GPUs work; a mixture is nobody's wish.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    wanted = options["mode"]
    if wanted not in ("", *_MODES):
        raise CheckError(f"nodecheck.options.gpu_gsp.mode: {wanted!r} is none of {', '.join(_MODES)}")
    if (nothing := silent(facts) or untold(facts, "gsp_mode", "GSP firmware", needed=False)) is not None:
        return nothing
    modes = [(gpu, mode[0]) for gpu, mode in answered(facts, "gsp_mode")]
    said = []
    for gpu, on in modes:
        if wanted and on != _MODES[wanted]:
            words = f"GSP firmware is {'on' if on else 'off'} instead of {wanted}"
            said.append(Complaint(Status.WARN, "gsp_mode", words, _REMEDY, gpu))
    for gpu, on in [] if wanted else odd_ones(modes):
        words = f"GSP firmware is {'on' if on else 'off'}, unlike on the other GPUs"
        said.append(Complaint(Status.WARN, "gsp_odd", words, _REMEDY, gpu))
    driver = facts["system"].get("driver", "")
    running = {gpu["index"] for gpu, on in modes if on}
    for gpu, version in answered(facts, "gsp_version"):
        if gpu["index"] in running and driver and version and version != driver:
            words = f"GSP firmware {version} under driver {driver}"
            said.append(Complaint(Status.WARN, "gsp_version", words, "reboot, so that the driver loads its own", gpu))
    return settle(said, ("gsp_fits", f"GSP firmware is on for {len(running)} of {len(modes)} GPUs"))


check = Check(
    name="gpu_gsp",
    question="Does every GPU run the firmware of its system processor (GSP) that the driver has for it?",
    reads="NVML: GSP firmware mode and version",
    cost="two calls a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("gsp_mode", "gsp_version"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={"mode": Option("", "`on` or `off` for every GPU; empty: all GPUs of a model the same", "ours")},
)
