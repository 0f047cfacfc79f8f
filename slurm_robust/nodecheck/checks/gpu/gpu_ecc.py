"""Does a GPU's memory make errors that ECC cannot correct, or corrects more and more often?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_RESET = "drain when idle and reset the GPU (`nvidia-smi --gpu-reset -i N`); repair if it comes back"


def judge(facts: Facts, options: Options) -> Finding:
    """What NVIDIA takes back a board for fails, and any uncorrectable error on a board that cannot remap rows.

    A board that can goes on after one: the page is taken out of use at once and the row at the next reset; the program
    that was hit has ended. `gpu_rows`, `gpu_recovery` and `xid` say when that did not do.
    """
    if (nothing := silent(facts) or untold(facts, "ecc_mode", "ECC")) is not None:
        return nothing
    fails: list[Complaint] = []
    warns: list[Complaint] = []
    for gpu, over in answered(facts, "ecc_sram_over"):
        if over:
            words = "the SRAM's uncorrectable errors are above NVIDIA's threshold"
            fails.append(Complaint(Status.FAIL, "sram_threshold", words, "drain and have the GPU repaired", gpu))
    for gpu, count in answered(facts, "ecc_volatile_uncorrected"):
        if count > 0:
            words = f"{count} uncorrectable memory error{'s' if count > 1 else ''} since the driver was loaded"
            grave = "rows" not in gpu["values"] and gpu["errors"].get("rows") == "not_supported" and not _mig(gpu)
            where = fails if grave else warns
            status = Status.FAIL if grave else Status.WARN
            where.append(Complaint(status, "uncorrectable_errors", words, _RESET, gpu))
    grown = counters.growth(facts["kept"], _counts(facts), facts["boot_id"], facts["at_s"])
    for gpu in facts["gpus"]:
        seen = grown.get(f"{gpu['uuid']}.corrected")
        if seen and seen.delta >= options["corrected_min"] and seen.per_hour > options["corrected_per_hour"]:
            words = f"{seen.delta} corrected memory errors in {seen.window_s / 60:.0f} min"
            remedy = "watch it; run `dcgmi diag -r 3` on the idle node"
            warns.append(Complaint(Status.WARN, "corrected_rate", words, remedy, gpu))
    return settle([*fails, *warns, *_modes(facts)], ("ecc_clean", "no memory errors"), {"counts": _counts(facts)})


def _mig(gpu: Mapping[str, Any]) -> bool:
    return bool(gpu["values"].get("mig_mode", [0])[0])


def _modes(facts: Facts) -> list[Complaint]:
    remedy = "`nvidia-smi -e 1`, then reset the GPU or reboot"
    said = []
    for gpu, (now, pending) in answered(facts, "ecc_mode"):
        if not now and gpu["profile"].get("ecc"):
            said.append(Complaint(Status.WARN, "ecc_off", "ECC is off", remedy, gpu))
        elif now != pending:
            said.append(Complaint(Status.WARN, "ecc_pending", "ECC changes at the next reset", "reset or reboot", gpu))
    named = [one.gpu for one in said]
    for gpu, mode in odd_ones(answered(facts, "ecc_mode")):
        if gpu not in named:
            words = f"ECC is {'on' if mode[0] else 'off'}, unlike the other GPUs'"
            said.append(Complaint(Status.WARN, "ecc_odd", words, remedy, gpu))
    return said


def _counts(facts: Facts) -> dict[str, int]:
    told = answered(facts, "ecc_volatile_corrected")
    counts = {f"{gpu['uuid']}.corrected": count for gpu, count in told if count}
    told = answered(facts, "ecc_aggregate_uncorrected")
    counts.update({f"{gpu['uuid']}.uncorrected_ever": count for gpu, count in told if count})
    return counts


def remember(facts: Facts, options: Options) -> Facts | None:
    """The counters; zero is kept too, so that the first error has a time before it."""
    counts = {f"{gpu['uuid']}.corrected": count for gpu, count in answered(facts, "ecc_volatile_corrected")}
    return counters.keep(counts, facts["boot_id"], facts["at_s"]) if counts else None


check = Check(
    name="gpu_ecc",
    question="Does a GPU's memory make errors that ECC cannot correct, or corrects more and more often?",
    reads="NVML: ECC mode, error counters since the driver was loaded and of the board's life, SRAM threshold",
    cost="seven calls a GPU, 1–5 ms",
    stages=STAGES,
    probe=probe_of(
        "ecc_mode",
        "ecc_volatile_uncorrected",
        "ecc_volatile_corrected",
        "ecc_aggregate_uncorrected",
        "ecc_sram_over",
        "rows",
        "mig_mode",
        kept_as="gpu_ecc",
    ),
    judge=judge,
    remember=remember,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "corrected_per_hour": Option(
            100.0,
            "corrected errors an hour above which it warns",
            "ours: healthy HBM makes a few a day; XID 92 gives no figure",
        ),
        "corrected_min": Option(
            50,
            "corrected errors since the last look below which no rate is judged",
            "ours: one event can be several bits",
        ),
    },
)
