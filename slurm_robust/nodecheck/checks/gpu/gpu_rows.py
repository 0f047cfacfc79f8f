"""Can a GPU (Ampere and newer) still replace bad rows of its memory by spare ones?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_REPAIR = "drain and have the GPU repaired"
_RESET = "reset the GPU when the node is idle (`nvidia-smi --gpu-reset -i N`), or reboot"


def judge(facts: Facts, options: Options) -> Finding:
    """A failed remap is what NVIDIA takes boards back for; a pending one harms nobody until the next reset."""
    if (nothing := silent(facts)) is not None:
        return nothing
    if any(gpu["values"].get("mig_mode", [0])[0] for gpu in facts["gpus"]) and not answered(facts, "rows"):
        return Finding(Status.SKIP, "mig", "with MIG instances NVML does not tell remapped rows")
    if (nothing := untold(facts, "rows", "row remapping")) is not None:
        return nothing
    said = []
    pending = Status.FAIL if options["pending_fails"] else Status.WARN
    for gpu, rows in answered(facts, "rows"):
        if rows["failed"]:
            words = "a memory row could not be remapped"
            said.append(Complaint(Status.FAIL, "remap_failed", words, _REPAIR, gpu))
        if rows["pending"]:
            words = "a memory row waits for a reset to be remapped"
            said.append(Complaint(pending, "remap_pending", words, _RESET, gpu))
    for gpu, banks in answered(facts, "row_histogram"):
        if banks["none"] > 0:
            words = f"{banks['none']} memory bank{'s have' if banks['none'] > 1 else ' has'} no spare row left"
            remedy = "plan its repair: the next bad row there cannot be remapped"
            said.append(Complaint(Status.WARN, "no_spare_rows", words, remedy, gpu))
        elif banks["low"] > options["low_banks"]:
            words = f"{banks['low']} memory banks are low on spare rows"
            said.append(Complaint(Status.WARN, "few_spare_rows", words, "watch it, and plan its repair", gpu))
    for gpu, repair in answered(facts, "repair"):
        if any(repair):
            words = "a memory channel or an engine waits for a reset to be repaired"
            said.append(Complaint(pending, "repair_pending", words, _RESET, gpu))
    rows = {gpu["bus"]: told for gpu, told in answered(facts, "rows") if any(told.values())}
    return settle(said, ("rows_spare", "every memory bank has spare rows"), {"remapped": rows})


check = Check(
    name="gpu_rows",
    question="Can a GPU (Ampere and newer) still replace bad rows of its memory by spare ones?",
    reads="NVML: remapped rows with the pending and failed flags, row remapper histogram, repair status",
    cost="four calls a GPU, 1–3 ms",
    stages=STAGES,
    probe=probe_of("rows", "row_histogram", "repair", "mig_mode"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "pending_fails": Option(
            False,
            "true: a pending remap makes the node unfit, so that it is reset before the next job",
            "NVIDIA's memory error guide: new work may be started with the flag set",
        ),
        "low_banks": Option(
            0, "banks low on spare rows above which it warns", "ours: NVIDIA's histogram calls them low"
        ),
    },
)
