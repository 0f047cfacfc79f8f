"""Does every GPU have its full PCIe link?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported

_REMEDY = "drain; compare LnkCap and LnkSta in `lspci -vv`; reseat board or riser, repair if it stays"


def _short(link: Facts) -> str:
    """Return what the link lacks, empty if it is full."""
    if link["width"] < link["max_width"]:
        return f"x{link['width']} of x{link['max_width']} PCIe lanes"
    if link["generation"] < link["max_generation"]:
        return f"PCIe generation {link['generation']} of {link['max_generation']}"
    return ""


@needs_gpus("pcie", "PCIe link")
def judge(facts: Facts, options: Options) -> Finding:
    """Judge busy boards only: an idle board saves power by a slower link.

    Fail if a busy sister has a faster link and the lack lasts from run to run. If all boards are equal, the machine may
    be built so, or be virtual: that only warns.
    """
    told = reported(facts, "pcie")
    busy = [
        (gpu, link) for gpu, link in told if link["busy"] and link["width"] > 0 and not gpu["profile"].get("coherent")
    ]
    faults = []
    for gpu, link in busy:
        lack = _short(link)
        if not lack:
            continue
        full = [other for other, theirs in busy if other["model"] == gpu["model"] and not _short(theirs)]
        before_s = streaks.lasted(facts, gpu["uuid"])
        lasts = before_s >= options["fail_after_s"]
        status = Status.FAIL if lasts and full else Status.WARN
        faults.append(Fault(status, "pcie_degraded", lack, _REMEDY, gpu))
    links = {gpu["bus"]: {key: link[key] for key in ("generation", "width", "pstate", "busy")} for gpu, link in told}
    text = f"{len(busy)} busy GPUs have their full PCIe link" if busy else "no GPU is busy: PCIe links are not judged"
    return conclude_gpus(faults, ("pcie_full" if busy else "pcie_idle", text), {"links": links})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when a busy board has a short link; a run with an idle board keeps the old value."""
    if not facts["gpus"]:
        return None
    keys = []
    kept = facts["kept"].get("since")
    for gpu, link in reported(facts, "pcie"):
        known = isinstance(kept, dict) and gpu["uuid"] in kept
        if _short(link) if link["busy"] else known:
            keys.append(gpu["uuid"])
    return streaks.kept(facts, keys)


probe = probe_of("pcie", kept_as="gpu_pcie")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: PCIe generation and width, now and at most in this slot, performance state, clock reasons",
    cost="six calls a GPU, 1–5 ms; 0.1 s more for a GPU that looks slow",
    options={
        "fail_after_s": Option(
            240.0, "seconds after which a busy board's slow link fails", "ours: one run may meet a change of speed"
        )
    },
)
