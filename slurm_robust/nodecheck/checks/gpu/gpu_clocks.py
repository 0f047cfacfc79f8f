"""Are clocks left locked low?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, outliers, reported

_RESET = "`nvidia-smi -rac` and `nvidia-smi -rgc` set the clocks back"


@needs_gpus("sm_max_mhz", "its highest clocks")
def judge(facts: Facts, options: Options) -> Finding:
    """Never fail: warn of application clocks below their default, and of a highest clock unlike the sisters'.

    Momentary clocks are not judged, since an idle GPU has low ones.
    """
    faults = []
    for part, what in (("sm", "SM"), ("memory", "memory")):
        defaults = {gpu["index"]: value for gpu, value in reported(facts, f"{part}_default_mhz")}
        for gpu, now in reported(facts, f"{part}_application_mhz"):
            wanted = options["sm_mhz"] if part == "sm" and options["sm_mhz"] else defaults.get(gpu["index"], 0)
            if 0 < now < wanted:
                text = f"{what} clock locked at {now} MHz instead of {wanted}"
                faults.append(Fault.warn("clocks_low", text, _RESET, gpu))
        for gpu, most in outliers(reported(facts, f"{part}_max_mhz")):
            text = f"the highest {what} clock is {most} MHz, unlike the other GPUs'"
            faults.append(Fault.warn("clocks_odd", text, "compare `nvidia-smi -q -d CLOCK` and VBIOS", gpu))
    return conclude_gpus(faults, ("clocks_free", "no clock is locked below its default"))


probe = probe_of(
    "sm_max_mhz",
    "memory_max_mhz",
    "sm_application_mhz",
    "sm_default_mhz",
    "memory_application_mhz",
    "memory_default_mhz",
)
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: application clocks, their defaults, the highest clocks",
    cost="six calls a GPU, 1–2 ms",
    options={"sm_mhz": Option(0, "MHz of the SM application clock; 0: the board's default", "NVIDIA: the board")},
)
