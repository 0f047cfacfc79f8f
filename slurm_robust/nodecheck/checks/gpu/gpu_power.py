"""May every GPU draw the power that it should?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_REMEDY = "`nvidia-smi -i N -pl WATTS`; see what sets it at boot"


def judge(facts: Facts, options: Options) -> Finding:
    """A lower limit than the site asks for fails; one GPU unlike its sisters warns.

    A site may cap all its GPUs on purpose: a limit below the board's default that all have is no finding.
    """
    if (nothing := silent(facts) or untold(facts, "power_enforced_mw", "power limits")) is not None:
        return nothing
    watts = [(gpu, round(value / 1000)) for gpu, value in answered(facts, "power_enforced_mw") if value > 0]
    said = []
    expected = options["expected_w"]
    for gpu, now in watts:
        wanted = expected or gpu["profile"].get("power_w", 0)
        if now < wanted - 1:
            status = Status.FAIL if expected else Status.WARN
            said.append(Complaint(status, "power_limit_low", f"limited to {now} W instead of {wanted}", _REMEDY, gpu))
    if not said:
        for gpu, now in odd_ones(watts):
            words = f"limited to {now} W, unlike the other GPUs"
            said.append(Complaint(Status.WARN, "power_limit_odd", words, _REMEDY, gpu))
    defaults = {gpu["index"]: round(value / 1000) for gpu, value in answered(facts, "power_default_mw")}
    capped = [now for gpu, now in watts if now < defaults.get(gpu["index"], 0) - 1]
    words = "the power limits are as they should be"
    if capped and not said:
        words = f"all GPUs are limited to {min(capped)} W, below their default"
    return settle(said, ("power_limits", words), {"watts": {gpu["bus"]: now for gpu, now in watts}})


check = Check(
    name="gpu_power",
    question="May every GPU draw the power that it should?",
    reads="NVML: power limit in force, power limit by default",
    cost="two calls a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("power_enforced_mw", "power_default_mw"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "expected_w": Option(0, "W that every GPU may draw; less fails; 0 does not say", "ours: sites cap on purpose")
    },
)
