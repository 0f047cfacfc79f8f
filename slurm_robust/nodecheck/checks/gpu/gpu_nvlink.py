"""Are all NVLinks up, at full speed, on boards that have them?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.fields import C2C_STATES
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_REMEDY = "drain; `nvidia-smi nvlink -s -i N`; restart Fabric Manager, reset all GPUs; repair if it stays"


def judge(facts: Facts, options: Options) -> Finding:
    """A GPU with fewer links up than a sister on this node and than its model has fails.

    PCIe boards have no links, or none without a bridge: nothing is expected of them but to be alike. One GPU alone
    needs no link, and in the parts into which clouds cut their machines all links are down by purpose. With MIG links
    are off.
    """
    if (nothing := silent(facts)) is not None:
        return nothing
    chips = _chip_links(facts)
    nothing = untold(facts, "nvlink_states", "NVLink", needed=False)
    if nothing is not None and not chips:
        return nothing
    up = {
        gpu["index"]: sum(1 for state in states if state == 1)
        for gpu, states in answered(facts, "nvlink_states")
        if not gpu["values"].get("mig_mode", [0])[0]
    }
    said = _down(facts, up, options) if len(facts["gpus"]) > 1 else []
    said += _slow(facts, up)
    if not any(up.values()) and not said and not chips:
        return Finding(Status.SKIP, "no_nvlink", "no NVLink is in use on these boards")
    counts = sorted(set(up.values()))
    passed = ("nvlinks_up", f"{'/'.join(map(str, counts))} NVLinks are up on each GPU")
    return settle([*said, *chips], passed, {"up": up})


def _down(facts: Facts, up: Mapping[int, int], options: Options) -> list[Complaint]:
    said = []
    wanted = options["expected"]
    for gpu in facts["gpus"]:
        if gpu["index"] not in up:
            continue
        mine = up[gpu["index"]]
        best = max(
            up[other["index"]] for other in facts["gpus"] if other["model"] == gpu["model"] and other["index"] in up
        )
        full = gpu["profile"].get("nvlinks", 0)
        words = f"{mine} of {max(best, full if wanted < 0 else wanted)} NVLinks are up"
        if wanted >= 0:
            if mine < wanted:
                said.append(Complaint(Status.FAIL, "nvlink_down", words, _REMEDY, gpu))
        elif mine < best:
            status = Status.FAIL if full and mine < full else Status.WARN
            said.append(Complaint(status, "nvlink_down", words, _REMEDY, gpu))
        elif 0 < mine < full:
            said.append(Complaint(Status.WARN, "nvlinks_few", words, _REMEDY, gpu))
    return said


def _slow(facts: Facts, up: Mapping[int, int]) -> list[Complaint]:
    said = []
    for gpu, speed in answered(facts, "nvlink_speed_mbps"):
        full = gpu["profile"].get("nvlink_mbps", 0)
        if up.get(gpu["index"]) and 0 < speed < full * 0.95:
            words = f"NVLinks run at {speed / 1000:g} GB/s instead of {full / 1000:g}"
            said.append(Complaint(Status.WARN, "nvlink_slow", words, _REMEDY, gpu))
    return said


def _chip_links(facts: Facts) -> list[Complaint]:
    """Links between Grace and Hopper or Blackwell that are down."""
    said = []
    for gpu, count in answered(facts, "c2c_count"):
        states: list[Any] = [gpu["values"].get(name) for name in C2C_STATES[: int(count)]]
        down = sum(1 for state in states if state == 0)
        if down and any(state == 1 for state in states):
            words = f"{down} of {count} chip-to-chip links are down"
            remedy = "drain; `nvidia-smi c2c -s`; reboot, repair if it stays"
            said.append(Complaint(Status.WARN, "c2c_down", words, remedy, gpu))
    return said


check = Check(
    name="gpu_nvlink",
    question="Are all NVLinks up, at full speed, on boards that have them?",
    reads="NVML: state of every link, their speed, chip-to-chip links; the GPU's profile",
    cost="up to 20 calls a GPU, 2–10 ms",
    stages=STAGES,
    probe=probe_of("nvlink_count", "nvlink_speed_mbps", "c2c_count", *C2C_STATES, "nvlink_states", "mig_mode"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "expected": Option(
            -1,
            "links that must be up on each GPU; -1 takes the profile and the other GPUs",
            "NVIDIA's data sheets, by model",
        )
    },
)
