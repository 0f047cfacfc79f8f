"""Has a GPU (before Ampere) retired too many pages of its memory, or does one wait?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported

_RESET = "drain when idle and reset the GPU (`nvidia-smi --gpu-reset -i N`), or reboot"


@needs_gpus("retired_double", "retired pages")
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for as many pages as NVIDIA takes a board back for, and for a used page with a double-bit error."""
    singles = {gpu["index"]: count for gpu, count in reported(facts, "retired_single")}
    faults = []
    for gpu, double in reported(facts, "retired_double"):
        total = double + singles.get(gpu["index"], 0)
        if total >= options["max_pages"]:
            text = f"{total} memory pages are retired"
            faults.append(Fault.fail("pages_exhausted", text, "drain and have the GPU repaired", gpu))
        elif double >= options["warn_double"]:
            text = f"{double} memory pages are retired for double-bit errors"
            faults.append(Fault.warn("pages_double", text, "watch it, and plan its repair", gpu))
        if gpu["values"].get("retired_pending_double"):
            text = "a memory page with a double-bit error waits for a reset to be retired"
            faults.append(Fault.fail("page_pending_double", text, _RESET, gpu))
        elif gpu["values"].get("retired_pending"):
            text = "a memory page waits for a reset to be retired"
            faults.append(Fault.warn("page_pending", text, _RESET, gpu))
    return conclude_gpus(faults, ("pages_few", "no GPU has retired too many memory pages"))


probe = probe_of("retired_single", "retired_double", "retired_pending", "retired_pending_double")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: retired pages by cause, pending retirements",
    cost="three calls a GPU, 1–3 ms",
    options={
        "max_pages": Option(60, "retired pages from which it fails", "NVIDIA's page retirement guide: its limit"),
        "warn_double": Option(
            15, "pages retired for double-bit errors from which it warns", "NVIDIA's DCGM: its soft limit"
        ),
    },
)
