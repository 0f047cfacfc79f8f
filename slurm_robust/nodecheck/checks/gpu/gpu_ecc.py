"""Does a GPU's memory make errors that ECC cannot correct, or corrects more and more often?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import GpuFault, conclude_gpus, needs_gpus, outliers, reported

_RESET = "drain when idle and reset the GPU (`nvidia-smi --gpu-reset -i N`); repair if it comes back"


@needs_gpus("ecc_mode", "ECC")
def judge(facts: Facts, options: Options) -> Finding:
    """What NVIDIA takes back a board for fails, and any uncorrectable error on a board that cannot remap rows.

    A board that can goes on after one: the page is taken out of use at once and the row at the next reset; the program
    that was hit has ended. `gpu_rows`, `gpu_recovery` and `xid` say when that did not do.
    """
    fails: list[GpuFault] = []
    warns: list[GpuFault] = []
    for gpu, over in reported(facts, "ecc_sram_over"):
        if over:
            text = "the SRAM's uncorrectable errors are above NVIDIA's threshold"
            fails.append(GpuFault.fail("sram_threshold", text, "drain and have the GPU repaired", gpu))
    for gpu, count in reported(facts, "ecc_volatile_uncorrected"):
        if count > 0:
            text = f"{count} uncorrectable memory error{'s' if count > 1 else ''} since the driver was loaded"
            grave = "rows" not in gpu["values"] and gpu["errors"].get("rows") == "not_supported" and not _mig(gpu)
            where = fails if grave else warns
            status = Status.FAIL if grave else Status.WARN
            where.append(GpuFault(status, "uncorrectable_errors", text, _RESET, gpu))
    grown = counters.grown(facts, _counts(facts))
    for gpu in facts["gpus"]:
        seen = grown.get(f"{gpu['uuid']}.corrected")
        if seen and seen.delta >= options["corrected_min"] and seen.per_hour > options["corrected_per_hour"]:
            text = f"{seen.delta} corrected memory errors in {seen.window_s / 60:.0f} min"
            remedy = "watch it; run `dcgmi diag -r 3` on the idle node"
            warns.append(GpuFault.warn("corrected_rate", text, remedy, gpu))
    return conclude_gpus(
        [*fails, *warns, *_modes(facts)], ("ecc_clean", "no memory errors"), {"counts": _counts(facts)}
    )


def _mig(gpu: Mapping[str, Any]) -> bool:
    return bool(gpu["values"].get("mig_mode", [0])[0])


def _modes(facts: Facts) -> list[GpuFault]:
    remedy = "`nvidia-smi -e 1`, then reset the GPU or reboot"
    faults = []
    for gpu, (now, pending) in reported(facts, "ecc_mode"):
        if not now and gpu["profile"].get("ecc"):
            faults.append(GpuFault.warn("ecc_off", "ECC is off", remedy, gpu))
        elif now != pending:
            faults.append(GpuFault.warn("ecc_pending", "ECC changes at the next reset", "reset or reboot", gpu))
    named = [one.gpu for one in faults]
    for gpu, mode in outliers(reported(facts, "ecc_mode")):
        if gpu not in named:
            text = f"ECC is {'on' if mode[0] else 'off'}, unlike the other GPUs'"
            faults.append(GpuFault.warn("ecc_odd", text, remedy, gpu))
    return faults


def _counts(facts: Facts) -> dict[str, int]:
    told = reported(facts, "ecc_volatile_corrected")
    counts = {f"{gpu['uuid']}.corrected": count for gpu, count in told if count}
    told = reported(facts, "ecc_aggregate_uncorrected")
    counts.update({f"{gpu['uuid']}.uncorrected_ever": count for gpu, count in told if count})
    return counts


def remember(facts: Facts, options: Options) -> Facts | None:
    """The counters; zero is kept too, so that the first error has a time before it."""
    counts = {f"{gpu['uuid']}.corrected": count for gpu, count in reported(facts, "ecc_volatile_corrected")}
    return counters.kept(facts, counts) if counts else None


probe = probe_of(
    "ecc_mode",
    "ecc_volatile_uncorrected",
    "ecc_volatile_corrected",
    "ecc_aggregate_uncorrected",
    "ecc_sram_over",
    "rows",
    "mig_mode",
    kept_as="gpu_ecc",
)
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: ECC mode, error counters since the driver was loaded and of the board's life, SRAM threshold",
    cost="seven calls a GPU, 1–5 ms",
    options={
        "corrected_per_hour": Option(
            100.0,
            "corrected errors an hour above which it warns",
            "ours: healthy HBM makes a few a day; XID 92 gives no figure",
        ),
        "corrected_min": Option(
            50,
            "corrected errors since the last run below which no rate is judged",
            "ours: one event can be several bits",
        ),
    },
)
