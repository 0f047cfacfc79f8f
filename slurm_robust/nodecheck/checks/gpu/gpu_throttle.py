"""Is a GPU slowed down by heat, or by its power supply?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported

_HEAT = "look at the node's fans, air and coolant; `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`"
_POWER = "look at power supplies, cables and the rack's power cap; `nvidia-smi -q -d POWER,PERFORMANCE`"
_BAD = (
    (0x80, "power_brake", "HW Power Brake Slowdown", _POWER),
    (0x40, "hw_thermal", "HW Thermal Slowdown", _HEAT),
    (0x08, "hw_slowdown", "HW Slowdown", _POWER),
    (0x20, "sw_thermal", "SW Thermal Slowdown", _HEAT),
)
"""Bits of nvml.h, named as in nvidia-smi. The first two also set HW Slowdown, which is then not reported."""
_NAMES = {
    0x1: "Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x10: "Sync Boost",
    0x100: "Display Clock Setting",
    **{bit: text for bit, _, text, _ in _BAD},
}


_IDLE = 0x1


def _worst(reasons: int) -> tuple[int, str, str, str] | None:
    return next((bad for bad in _BAD if reasons & bad[0]), None)


def _names(reasons: int) -> list[str]:
    return [text for bit, text in _NAMES.items() if reasons & bit]


@needs_gpus("clock_reasons", "clock event reasons")
def judge(facts: Facts, options: Options) -> Finding:
    """Fail once a working GPU shows a slowdown by hardware in run after run; warn of a first one, and of software's.

    A power cap kept by software, application clocks and idleness are normal.
    """
    faults = []
    for gpu, reasons in reported(facts, "clock_reasons"):
        bad = _worst(reasons)
        if bad is None:
            continue
        _, reason, text, remedy = bad
        before_s = streaks.lasted(facts, f"{gpu['uuid']}.{reason}", streaks.GAP_S)
        lasts = before_s >= options["fail_after_s"] and reason != "sw_thermal" and not reasons & _IDLE
        told = f"{text} for {before_s / 60:.0f} min" if lasts else text
        faults.append(Fault(Status.FAIL if lasts else Status.WARN, reason, told, remedy, gpu))
    by_bus = {gpu["bus"]: _names(reasons) for gpu, reasons in reported(facts, "clock_reasons") if reasons & ~1}
    return conclude_gpus(faults, ("not_throttled", "no GPU is slowed down by heat or power"), {"reasons": by_bus})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when each slowdown is seen."""
    if not facts["gpus"]:
        return None
    bad = [(gpu, _worst(reasons)) for gpu, reasons in reported(facts, "clock_reasons")]
    keys = [f"{gpu['uuid']}.{worst[1]}" for gpu, worst in bad if worst is not None]
    return streaks.kept(facts, keys, streaks.GAP_S)


probe = probe_of("clock_reasons", kept_as="gpu_throttle")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: clock event (throttle) reasons",
    cost="one call a GPU, under 1 ms",
    options={
        "fail_after_s": Option(
            540.0,
            "seconds from run to run after which a slowdown by hardware fails",
            "ours: with a health check every 5 min the third run in a row; a short power brake is not the node's fault",
        )
    },
)
