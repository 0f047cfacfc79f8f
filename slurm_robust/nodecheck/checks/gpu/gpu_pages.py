"""Has a GPU (before Ampere) retired too many pages of its memory, or does one wait?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_RESET = "drain when idle and reset the GPU (`nvidia-smi --gpu-reset -i N`), or reboot"


def judge(facts: Facts, options: Options) -> Finding:
    """As many pages as NVIDIA takes a board back for fail, and a page with a double-bit error that is still in use."""
    if (nothing := silent(facts) or untold(facts, "retired_double", "retired pages")) is not None:
        return nothing
    singles = {gpu["index"]: count for gpu, count in answered(facts, "retired_single")}
    said = []
    for gpu, double in answered(facts, "retired_double"):
        total = double + singles.get(gpu["index"], 0)
        if total >= options["max_pages"]:
            words = f"{total} memory pages are retired"
            said.append(Complaint(Status.FAIL, "pages_exhausted", words, "drain and have the GPU repaired", gpu))
        elif double >= options["warn_double"]:
            words = f"{double} memory pages are retired for double-bit errors"
            said.append(Complaint(Status.WARN, "pages_double", words, "watch it, and plan its repair", gpu))
        if gpu["values"].get("retired_pending_double"):
            words = "a memory page with a double-bit error waits for a reset to be retired"
            said.append(Complaint(Status.FAIL, "page_pending_double", words, _RESET, gpu))
        elif gpu["values"].get("retired_pending"):
            words = "a memory page waits for a reset to be retired"
            said.append(Complaint(Status.WARN, "page_pending", words, _RESET, gpu))
    return settle(said, ("pages_few", "no GPU has retired too many memory pages"))


check = Check(
    name="gpu_pages",
    question="Has a GPU (before Ampere) retired too many pages of its memory, or does one wait?",
    reads="NVML: retired pages by cause, pending retirements",
    cost="three calls a GPU, 1–3 ms",
    stages=STAGES,
    probe=probe_of("retired_single", "retired_double", "retired_pending", "retired_pending_double"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "max_pages": Option(
            60, "retired pages from which it fails", "NVIDIA's page retirement guide: its limit for a return"
        ),
        "warn_double": Option(
            15, "pages retired for double-bit errors from which it warns", "NVIDIA's DCGM: its soft limit"
        ),
    },
)
