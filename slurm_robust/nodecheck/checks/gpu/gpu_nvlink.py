"""Are all NVLinks up, at full speed, on boards that have them?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.fields import C2C_STATES
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, has_mig, needs_gpus, reported, unreported

_REMEDY = "drain; `nvidia-smi nvlink -s -i N`; restart Fabric Manager, reset all GPUs; repair if it stays"


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a GPU with fewer links up than a sister on this node and than its model has.

    PCIe boards have no links, or none without a bridge: nothing is expected of them but to be alike. One GPU alone
    needs no link, and in the parts into which clouds cut their machines all links are down by purpose. With MIG links
    are off.
    """
    chips = _chip_links(facts)
    nothing = unreported(facts, "nvlink_states", "NVLink", needed=False)
    if nothing is not None and not chips:
        return nothing
    up = {
        gpu["index"]: sum(1 for state in states if state == 1)
        for gpu, states in reported(facts, "nvlink_states")
        if not has_mig(gpu)
    }
    faults = _down(facts, up, options) if len(facts["gpus"]) > 1 else []
    faults += _slow(facts, up)
    if not any(up.values()) and not faults and not chips:
        return Finding.skip("no_nvlink", "no NVLink is in use on these boards")
    counts = sorted(set(up.values()))
    passed = ("nvlinks_up", f"{'/'.join(map(str, counts))} NVLinks are up on each GPU")
    return conclude_gpus([*faults, *chips], passed, {"up": up})


def _down(facts: Facts, up: Mapping[int, int], options: Options) -> list[Fault]:
    faults = []
    wanted = options["expected"]
    for gpu in facts["gpus"]:
        if gpu["index"] not in up:
            continue
        mine = up[gpu["index"]]
        best = max(
            up[other["index"]] for other in facts["gpus"] if other["model"] == gpu["model"] and other["index"] in up
        )
        full = gpu["profile"].get("nvlinks", 0)
        text = f"{mine} of {max(best, full if wanted < 0 else wanted)} NVLinks are up"
        if wanted >= 0:
            if mine < wanted:
                faults.append(Fault.fail("nvlink_down", text, _REMEDY, gpu))
        elif mine < best:
            status = Status.FAIL if full and mine < full else Status.WARN
            faults.append(Fault(status, "nvlink_down", text, _REMEDY, gpu))
        elif 0 < mine < full:
            faults.append(Fault.warn("nvlinks_few", text, _REMEDY, gpu))
    return faults


def _slow(facts: Facts, up: Mapping[int, int]) -> list[Fault]:
    faults = []
    for gpu, speed in reported(facts, "nvlink_speed_mbps"):
        full = gpu["profile"].get("nvlink_mbps", 0)
        if up.get(gpu["index"]) and 0 < speed < full * 0.95:
            text = f"NVLinks run at {speed / 1000:g} GB/s instead of {full / 1000:g}"
            faults.append(Fault.warn("nvlink_slow", text, _REMEDY, gpu))
    return faults


def _chip_links(facts: Facts) -> list[Fault]:
    """Links between Grace and Hopper or Blackwell that are down."""
    faults = []
    for gpu, count in reported(facts, "c2c_count"):
        states: list[Any] = [gpu["values"].get(name) for name in C2C_STATES[: int(count)]]
        down = sum(1 for state in states if state == 0)
        if down and any(state == 1 for state in states):
            text = f"{down} of {count} chip-to-chip links are down"
            remedy = "drain; `nvidia-smi c2c -s`; reboot, repair if it stays"
            faults.append(Fault.warn("c2c_down", text, remedy, gpu))
    return faults


probe = probe_of("nvlink_count", "nvlink_speed_mbps", "c2c_count", *C2C_STATES, "nvlink_states", "mig_mode")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: state of every link, their speed, chip-to-chip links; the GPU's profile",
    cost="up to 20 calls a GPU, 2–10 ms",
    options={
        "expected": Option(
            -1, "links that must be up on each GPU; -1: by profile and other GPUs", "NVIDIA's data sheets, by model"
        )
    },
)
