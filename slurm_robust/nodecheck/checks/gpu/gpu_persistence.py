"""Does the driver stay loaded between jobs?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported


@needs_gpus("persistence", "persistence mode")
def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: without persistence mode each job's start waits for the GPUs to wake, but works."""
    remedy = "enable nvidia-persistenced, or `nvidia-smi -pm 1`"
    faults = [
        Fault.warn("persistence_off", "persistence mode is off", remedy, gpu)
        for gpu, mode in reported(facts, "persistence")
        if options["wanted"] and not mode
    ]
    return conclude_gpus(faults, ("persistence_on", "persistence mode is as wanted"))


probe = probe_of("persistence")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: persistence mode",
    cost="one call a GPU, under 1 ms",
    options={
        "wanted": Option(True, "warn where persistence mode is off", "NVIDIA's driver persistence guide: keep it on")
    },
)
