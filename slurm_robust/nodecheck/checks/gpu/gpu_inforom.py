"""Is the memory sound in which a board keeps its own history (the InfoROM)?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported, unreported

_REMEDY = "reset the GPU; if `nvidia-smi -q` still warns of its InfoROM, have it repaired"


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Warns: the GPU computes rightly without, but no longer knows its retired memory and errors."""
    corrupted = [gpu for gpu in facts["gpus"] if "corrupted_inforom" in gpu["errors"].values()]
    faults = [Fault.warn("inforom_corrupted", "the InfoROM is corrupted", _REMEDY, gpu) for gpu in corrupted]
    if not faults and (nothing := unreported(facts, "inforom_valid", "InfoROM", needed=False)) is not None:
        return nothing
    return conclude_gpus(faults, ("inforom_valid", f"{len(reported(facts, 'inforom_valid'))} InfoROMs are valid"))


probe = probe_of("inforom_valid")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: reads the InfoROM from flash and verifies its checksums",
    cost="one read of flash a GPU, 10–100 ms: too slow beside a job's start",
)
