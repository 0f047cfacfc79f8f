"""Does a GPU's memory make errors that ECC cannot correct, or corrects more and more often?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, has_mig, needs_gpus, outliers, reported

_RESET = "drain when idle and reset the GPU (`nvidia-smi --gpu-reset -i N`); repair if it comes back"


@needs_gpus("ecc_mode", "ECC")
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for errors after which NVIDIA takes a board back; without row remapping, for any uncorrectable error.

    A board that can remap goes on after an error: the page is taken out of use at once and the row at the next reset;
    the program that was hit has ended. `gpu_rows`, `gpu_recovery` and `xid` tell if that did not help.
    """
    fails: list[Fault] = []
    warns: list[Fault] = []
    for gpu, over in reported(facts, "ecc_sram_over"):
        if over:
            text = "the SRAM's uncorrectable errors are above NVIDIA's threshold"
            fails.append(Fault.fail("sram_threshold", text, "drain and have the GPU repaired", gpu))
    for gpu, count in reported(facts, "ecc_volatile_uncorrected"):
        if count > 0:
            text = f"{count} uncorrectable memory error{'s' if count > 1 else ''} since the driver was loaded"
            grave = "rows" not in gpu["values"] and gpu["errors"].get("rows") == "not_supported" and not has_mig(gpu)
            where = fails if grave else warns
            status = Status.FAIL if grave else Status.WARN
            where.append(Fault(status, "uncorrectable_errors", text, _RESET, gpu))
    grown = counters.grown(facts, _counts(facts))
    for gpu in facts["gpus"]:
        seen = grown.get(f"{gpu['uuid']}.corrected")
        if seen and seen.delta >= options["corrected_min"] and seen.per_hour > options["corrected_per_hour"]:
            text = f"{seen.delta} corrected memory errors in {seen.window_s / 60:.0f} min"
            remedy = "watch it; run `dcgmi diag -r 3` on the idle node"
            warns.append(Fault.warn("corrected_rate", text, remedy, gpu))
    faults = [*fails, *warns, *_modes(facts)]
    return conclude_gpus(faults, ("ecc_clean", "no memory errors"), {"counts": _counts(facts)})


def _modes(facts: Facts) -> list[Fault]:
    remedy = "`nvidia-smi -e 1`, then reset the GPU or reboot"
    faults = []
    for gpu, (now, pending) in reported(facts, "ecc_mode"):
        if not now and gpu["profile"].get("ecc"):
            faults.append(Fault.warn("ecc_off", "ECC is off", remedy, gpu))
        elif now != pending:
            faults.append(Fault.warn("ecc_pending", "ECC changes at the next reset", "reset or reboot", gpu))
    named = [one.gpu for one in faults]
    for gpu, mode in outliers(reported(facts, "ecc_mode")):
        if gpu not in named:
            text = f"ECC is {'on' if mode[0] else 'off'}, unlike the other GPUs'"
            faults.append(Fault.warn("ecc_odd", text, remedy, gpu))
    return faults


def _counts(facts: Facts) -> dict[str, int]:
    told = reported(facts, "ecc_volatile_corrected")
    counts = {f"{gpu['uuid']}.corrected": count for gpu, count in told if count}
    told = reported(facts, "ecc_aggregate_uncorrected")
    counts.update({f"{gpu['uuid']}.uncorrected_ever": count for gpu, count in told if count})
    return counts


def _corrected(facts: Facts) -> dict[str, int]:
    """Zero is kept too, so that the first error has a time before it."""
    return {f"{gpu['uuid']}.corrected": count for gpu, count in reported(facts, "ecc_volatile_corrected")}


remember = counters.remember_of(_corrected)
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
            "ours: healthy HBM makes a few a day; XID 92 gives none",
        ),
        "corrected_min": Option(
            50, "errors since the last run below which no rate is judged", "ours: one event can be several bits"
        ),
    },
)
