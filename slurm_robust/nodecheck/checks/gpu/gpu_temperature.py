"""Is a GPU, or its memory, at the temperature where it slows itself down?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, outliers, reported

_REMEDY = "look at fans, air, coolant and the heat sink of this GPU; `nvidia-smi -q -d TEMPERATURE`"
_ABSURD_C = 150


def _hot(gpu: Facts) -> tuple[str, str]:
    """Return (part, problem) if the board's own limit is reached; empty texts if not, or if none is reported."""
    values = gpu["values"]
    now, limit = values.get("temperature"), values.get("temperature_slowdown")
    if _plausible(now) and _plausible(limit) and now >= limit:
        return "gpu", f"{now} °C, slowdown begins at {limit}"
    margin = values.get("temperature_margin")
    if margin is not None and -_ABSURD_C < margin <= 0 and limit is None:
        return "gpu", f"{now} °C, the margin to its slowdown is used up"
    memory, most = values.get("memory_temperature"), values.get("temperature_memory_max")
    if _plausible(memory) and _plausible(most) and memory >= most:
        return "memory", f"memory at {memory} °C, its limit is {most}"
    return "", ""


def _plausible(value: object) -> bool:
    """Sensors that are not there say 0, or numbers that would melt the board."""
    return isinstance(value, int) and 0 < value < _ABSURD_C


@needs_gpus("temperature", "its temperature")
def judge(facts: Facts, options: Options) -> Finding:
    """Fail if a GPU is at the limit from run to run; warn of a single run, or of a GPU much hotter than its sisters."""
    faults = []
    for gpu in facts["gpus"]:
        part, text = _hot(gpu)
        if part:
            before_s = streaks.lasted(facts, f"{gpu['uuid']}.{part}", streaks.GAP_S)
            status = Status.FAIL if before_s >= options["fail_after_s"] else Status.WARN
            faults.append(Fault(status, f"{part}_hot", text, _REMEDY, gpu))
    told = {gpu["bus"]: value for gpu, value in reported(facts, "temperature")}
    hottest = max((value for value in told.values() if _plausible(value)), default=0)
    faults += _hotter(facts, options)
    return conclude_gpus(faults, ("cool", f"the hottest GPU is at {hottest} °C"), {"celsius": told})


def _hotter(facts: Facts, options: Options) -> list[Fault]:
    """Idle GPUs that are hotter than all their idle sisters by far: a heat sink, or a fan."""
    idle = [
        (gpu, gpu["values"]["temperature"])
        for gpu, reasons in reported(facts, "clock_reasons")
        if reasons & 1 and _plausible(gpu["values"].get("temperature"))
    ]
    if len(idle) < 3 or len(idle) < len(facts["gpus"]):
        return []
    middle = sorted(value for _, value in idle)[len(idle) // 2]
    far = [(gpu, value > middle + options["idle_spread_c"]) for gpu, value in idle]
    return [
        Fault.warn("hotter_idle", f"idle at {gpu['values']['temperature']} °C, the others at {middle}", _REMEDY, gpu)
        for gpu, hotter in outliers(far)
        if hotter
    ]


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when a GPU is at its limit."""
    if not facts["gpus"]:
        return None
    keys = [f"{gpu['uuid']}.{part}" for gpu in facts["gpus"] if (part := _hot(gpu)[0])]
    return streaks.kept(facts, keys, streaks.GAP_S)


probe = probe_of(
    "temperature",
    "temperature_slowdown",
    "temperature_margin",
    "memory_temperature",
    "temperature_memory_max",
    "clock_reasons",
    kept_as="gpu_temperature",
)
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: temperatures of GPU and memory, the board's own slowdown limits or margin",
    cost="six calls a GPU, 1–3 ms",
    options={
        "fail_after_s": Option(
            540.0,
            "seconds from run to run at the limit after which it fails",
            "ours: with a health check every 5 min the third run in a row",
        ),
        "idle_spread_c": Option(
            25, "degrees above its idle sisters from which an idle GPU warns", "ours: places in a chassis differ by ten"
        ),
    },
)
