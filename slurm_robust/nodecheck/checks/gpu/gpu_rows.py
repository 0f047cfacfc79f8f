"""Can a GPU (Ampere and newer) still replace bad rows of its memory by spare ones?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, has_mig, needs_gpus, reported, unreported

_REPAIR = "drain and have the GPU repaired"
_RESET = "reset the GPU when the node is idle (`nvidia-smi --gpu-reset -i N`), or reboot"


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a failed remap, for which NVIDIA takes boards back; a pending one is harmless until the next reset."""
    if any(has_mig(gpu) for gpu in facts["gpus"]) and not reported(facts, "rows"):
        return Finding.skip("mig", "with MIG instances NVML does not report remapped rows")
    if (nothing := unreported(facts, "rows", "row remapping")) is not None:
        return nothing
    faults = []
    pending = Status.FAIL if options["pending_fails"] else Status.WARN
    for gpu, rows in reported(facts, "rows"):
        if rows["failed"]:
            text = "a memory row could not be remapped"
            faults.append(Fault.fail("remap_failed", text, _REPAIR, gpu))
        if rows["pending"]:
            text = "a memory row waits for a reset to be remapped"
            faults.append(Fault(pending, "remap_pending", text, _RESET, gpu))
    for gpu, banks in reported(facts, "row_histogram"):
        if banks["none"] > 0:
            text = f"{banks['none']} memory bank{'s have' if banks['none'] > 1 else ' has'} no spare row left"
            remedy = "plan its repair: the next bad row there cannot be remapped"
            faults.append(Fault.warn("no_spare_rows", text, remedy, gpu))
        elif banks["low"] > options["low_banks"]:
            text = f"{banks['low']} memory banks are low on spare rows"
            faults.append(Fault.warn("few_spare_rows", text, "watch it, and plan its repair", gpu))
    for gpu, repair in reported(facts, "repair"):
        if any(repair):
            text = "a memory channel or an engine waits for a reset to be repaired"
            faults.append(Fault(pending, "repair_pending", text, _RESET, gpu))
    rows = {gpu["bus"]: told for gpu, told in reported(facts, "rows") if any(told.values())}
    return conclude_gpus(faults, ("rows_spare", "every memory bank has spare rows"), {"remapped": rows})


probe = probe_of("rows", "row_histogram", "repair", "mig_mode")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: remapped rows with the pending and failed flags, row remapper histogram, repair status",
    cost="four calls a GPU, 1–3 ms",
    options={
        "pending_fails": Option(
            False,
            "true: a pending remap makes the node unfit, so that it is reset before the next job",
            "NVIDIA's memory error guide: new work may be started with the flag set",
        ),
        "low_banks": Option(0, "banks low on spare rows above which it warns", "NVIDIA's histogram calls them low"),
    },
)
