"""Is the memory sound in which a board keeps its own history (the InfoROM)?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_REMEDY = "reset the GPU; if `nvidia-smi -q` still warns of its InfoROM, have it repaired"


def judge(facts: Facts, options: Options) -> Finding:
    """Warns: the GPU computes rightly without, but no longer knows its retired memory and errors."""
    if (nothing := silent(facts)) is not None:
        return nothing
    corrupted = [gpu for gpu in facts["gpus"] if "corrupted_inforom" in gpu["errors"].values()]
    said = [Complaint(Status.WARN, "inforom_corrupted", "the InfoROM is corrupted", _REMEDY, gpu) for gpu in corrupted]
    if not said and (nothing := untold(facts, "inforom_valid", "InfoROM", needed=False)) is not None:
        return nothing
    return settle(said, ("inforom_valid", f"{len(answered(facts, 'inforom_valid'))} InfoROMs are valid"))


check = Check(
    name="gpu_inforom",
    question="Is the memory sound in which a board keeps its own history (the InfoROM)?",
    reads="NVML: reads the InfoROM from flash and verifies its checksums",
    cost="one read of flash a GPU, 10–100 ms: too slow beside a job's start",
    stages=("full",),
    probe=probe_of("inforom_valid"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
)
