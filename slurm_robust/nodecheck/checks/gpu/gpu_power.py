"""May every GPU draw the power that it should?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, outliers, reported

_REMEDY = "`nvidia-smi -i N -pl WATTS`; see what sets it at boot"


@needs_gpus("power_enforced_mw", "power limits")
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a lower limit than the site asks for; warn of one GPU unlike its sisters.

    A site may cap all its GPUs on purpose: a limit below the board's default that all have is no finding.
    """
    watts = [(gpu, round(value / 1000)) for gpu, value in reported(facts, "power_enforced_mw") if value > 0]
    faults = []
    expected = options["expected_w"]
    for gpu, now in watts:
        wanted = expected or gpu["profile"].get("power_w", 0)
        if now < wanted - 1:
            status = Status.FAIL if expected else Status.WARN
            faults.append(Fault(status, "power_limit_low", f"limited to {now} W instead of {wanted}", _REMEDY, gpu))
    if not faults:
        for gpu, now in outliers(watts):
            text = f"limited to {now} W, unlike the other GPUs"
            faults.append(Fault.warn("power_limit_odd", text, _REMEDY, gpu))
    defaults = {gpu["index"]: round(value / 1000) for gpu, value in reported(facts, "power_default_mw")}
    capped = [now for gpu, now in watts if now < defaults.get(gpu["index"], 0) - 1]
    text = "the power limits are as they should be"
    if capped and not faults:
        text = f"all GPUs are limited to {min(capped)} W, below their default"
    return conclude_gpus(faults, ("power_limits", text), {"watts": {gpu["bus"]: now for gpu, now in watts}})


probe = probe_of("power_enforced_mw", "power_default_mw")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: power limit in force, power limit by default",
    cost="two calls a GPU, under 1 ms",
    options={"expected_w": Option(0, "W that every GPU may draw; less fails; 0: any", "ours: sites cap on purpose")},
)
