"""Does a GPU's PCIe link have to send again and again?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported

_NAMES = ("pcie_replays", "pcie_nonfatal", "pcie_fatal")
_REMEDY = "`nvidia-smi -q -d PCIE`; look at AER lines in `dmesg`; reseat board or riser when the node is idle"


def _counts(facts: Facts) -> dict[str, int]:
    return {f"{gpu['uuid']}.{name}": int(count) for name in _NAMES for gpu, count in reported(facts, name)}


@needs_gpus("pcie_replays", "PCIe replay counters")
def judge(facts: Facts, options: Options) -> Finding:
    """Never fail: the link corrects itself; `gpu_driver` and `xid` see a GPU that falls off the bus."""
    counts = _counts(facts)
    grown = counters.grown(facts, counts)
    limits = {
        "pcie_fatal": ("fatal PCIe errors", 0.0, 1),
        "pcie_nonfatal": ("uncorrected PCIe errors", 0.0, options["least"]),
        "pcie_replays": ("PCIe replays", options["replays_per_minute"] * 60, options["least"]),
    }
    faults = []
    for name, (what, per_hour, least) in limits.items():
        for gpu in facts["gpus"]:
            seen = grown.get(f"{gpu['uuid']}.{name}")
            if seen and seen.delta >= least and seen.per_hour > per_hour:
                text = f"{seen.delta} {what} in {max(1, round(seen.window_s / 60))} min"
                faults.append(Fault.warn(name, text, _REMEDY, gpu))
    nonzero = {key: count for key, count in counts.items() if count}
    return conclude_gpus(faults, ("pcie_quiet", "PCIe errors do not grow"), {"counts": nonzero})


remember = counters.remember_of(_counts)
probe = probe_of(*_NAMES, kept_as="gpu_pcie_errors")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: PCIe replay counter, fatal and other uncorrected errors",
    cost="two calls a GPU, 1–3 ms",
    options={
        "replays_per_minute": Option(8.0, "replays a minute above which it warns", "NVIDIA's DCGM: its limit"),
        "least": Option(20, "events since the last run below which no rate is judged", "ours: jobs start with a burst"),
    },
)
