"""Does the driver stay loaded between jobs?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S


def judge(facts: Facts, options: Options) -> Finding:
    """Only warns: without it each job's start waits for the GPUs to wake, and nothing is wrong."""
    if (nothing := silent(facts) or untold(facts, "persistence", "persistence mode")) is not None:
        return nothing
    remedy = "enable nvidia-persistenced, or `nvidia-smi -pm 1`"
    said = [
        Complaint(Status.WARN, "persistence_off", "persistence mode is off", remedy, gpu)
        for gpu, mode in answered(facts, "persistence")
        if options["wanted"] and not mode
    ]
    return settle(said, ("persistence_on", "persistence mode is as wanted"))


check = Check(
    name="gpu_persistence",
    question="Does the driver stay loaded between jobs?",
    reads="NVML: persistence mode",
    cost="one call a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("persistence"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "wanted": Option(True, "warn where persistence mode is off", "NVIDIA's driver persistence guide: keep it on")
    },
)
