"""Are clocks left locked low?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_RESET = "`nvidia-smi -rac` and `nvidia-smi -rgc` set the clocks back"


def judge(facts: Facts, options: Options) -> Finding:
    """Never fails. Warns of application clocks below their default, and of a highest clock unlike the sisters'.

    Clocks of the moment say nothing, since an idle GPU has low ones.
    """
    if (nothing := silent(facts) or untold(facts, "sm_max_mhz", "its highest clocks")) is not None:
        return nothing
    said = []
    for part, what in (("sm", "SM"), ("memory", "memory")):
        defaults = {gpu["index"]: value for gpu, value in answered(facts, f"{part}_default_mhz")}
        for gpu, now in answered(facts, f"{part}_application_mhz"):
            wanted = options["sm_mhz"] if part == "sm" and options["sm_mhz"] else defaults.get(gpu["index"], 0)
            if 0 < now < wanted:
                words = f"{what} clock locked at {now} MHz instead of {wanted}"
                said.append(Complaint(Status.WARN, "clocks_low", words, _RESET, gpu))
        for gpu, most in odd_ones(answered(facts, f"{part}_max_mhz")):
            words = f"the highest {what} clock is {most} MHz, unlike the other GPUs'"
            said.append(Complaint(Status.WARN, "clocks_odd", words, "compare `nvidia-smi -q -d CLOCK` and VBIOS", gpu))
    return settle(said, ("clocks_free", "no clock is locked below its default"))


check = Check(
    name="gpu_clocks",
    question="Are clocks left locked low?",
    reads="NVML: application clocks, their defaults, the highest clocks",
    cost="six calls a GPU, 1–2 ms",
    stages=STAGES,
    probe=probe_of(
        "sm_max_mhz",
        "memory_max_mhz",
        "sm_application_mhz",
        "sm_default_mhz",
        "memory_application_mhz",
        "memory_default_mhz",
    ),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "sm_mhz": Option(
            0, "MHz that the SM application clock must have; 0 takes the board's default", "NVIDIA: the board"
        )
    },
)
