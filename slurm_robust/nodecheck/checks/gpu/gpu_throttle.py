"""Is a GPU slowed down by heat, or by its power supply?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_HEAT = "look at the node's fans, air and coolant; `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`"
_POWER = "look at power supplies, cables and the rack's power cap; `nvidia-smi -q -d POWER,PERFORMANCE`"
_BAD = (
    (0x80, "power_brake", "HW Power Brake Slowdown", _POWER),
    (0x40, "hw_thermal", "HW Thermal Slowdown", _HEAT),
    (0x08, "hw_slowdown", "HW Slowdown", _POWER),
    (0x20, "sw_thermal", "SW Thermal Slowdown", _HEAT),
)
"""Bits of nvml.h, in the words of nvidia-smi. The first two set HW Slowdown as well, which is then not told."""
_NAMES = {
    0x1: "Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x10: "Sync Boost",
    0x100: "Display Clock Setting",
    **{bit: words for bit, _, words, _ in _BAD},
}


_IDLE = 0x1


def _worst(reasons: int) -> tuple[int, str, str, str] | None:
    return next((bad for bad in _BAD if reasons & bad[0]), None)


def _names(reasons: int) -> list[str]:
    return [words for bit, words in _NAMES.items() if reasons & bit]


def judge(facts: Facts, options: Options) -> Finding:
    """Slowdown by hardware fails once a working GPU shows it at look after look; a first look, and software's, warn.

    A power cap that software keeps, application clocks and idleness are what they should be.
    """
    if (nothing := silent(facts) or untold(facts, "clock_reasons", "clock event reasons")) is not None:
        return nothing
    said = []
    for gpu, reasons in answered(facts, "clock_reasons"):
        bad = _worst(reasons)
        if bad is None:
            continue
        _, reason, words, remedy = bad
        before_s = streaks.lasted_s(
            facts["kept"], f"{gpu['uuid']}.{reason}", facts["boot_id"], facts["at_s"], streaks.GAP_S
        )
        lasts = before_s >= options["fail_after_s"] and reason != "sw_thermal" and not reasons & _IDLE
        told = f"{words} for {before_s / 60:.0f} min" if lasts else words
        said.append(Complaint(Status.FAIL if lasts else Status.WARN, reason, told, remedy, gpu))
    reasons_by_bus = {gpu["bus"]: _names(reasons) for gpu, reasons in answered(facts, "clock_reasons") if reasons & ~1}
    return settle(said, ("not_throttled", "no GPU is slowed down by heat or power"), {"reasons": reasons_by_bus})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Since when each slowdown is seen."""
    if not facts["gpus"]:
        return None
    bad = [(gpu, _worst(reasons)) for gpu, reasons in answered(facts, "clock_reasons")]
    keys = [f"{gpu['uuid']}.{worst[1]}" for gpu, worst in bad if worst is not None]
    return streaks.keep(facts["kept"], keys, facts["boot_id"], facts["at_s"], streaks.GAP_S)


check = Check(
    name="gpu_throttle",
    question="Is a GPU slowed down by heat, or by its power supply?",
    reads="NVML: clock event (throttle) reasons",
    cost="one call a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("clock_reasons", kept_as="gpu_throttle"),
    judge=judge,
    remember=remember,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "fail_after_s": Option(
            540.0,
            "seconds from look to look after which a slowdown by hardware fails",
            "ours: with looks every 5 min the third in a row; a short brake in a rack is none of the node's",
        )
    },
)
