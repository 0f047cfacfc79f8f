"""Does NVIDIA's driver answer, and every GPU with it?"""

from __future__ import annotations

import os

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.nvml import facts as nvml
from slurm_robust.nodecheck.nvml.judging import (
    LOST_REMEDY,
    LOST_WORDS,
    Fault,
    conclude_gpus,
    lost_gpus,
    unanswered,
)
from slurm_robust.nodecheck.nvml.session import ERRORS, LOST, of

_OPENING = frozenset({"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"})
_HUNG = "hung"
_UNREADABLE = frozenset(ERRORS.values()) - LOST - {"not_supported", "function_not_found", "no_permission"}


def probe(context: Context, options: Options) -> Facts:
    """Make one cheap call to every GPU; only this check tells of GPUs that are lost in it."""
    facts = nvml.take(context, "pstate", "temperature", kept_as=check.name)
    of(context).tell_lost()
    for gpu in facts["gpus"]:
        gpu["lost_meanwhile"] = False
    return {**facts, "persistenced": os.path.exists(context.path("/run/nvidia-persistenced/socket"))}  # noqa: PTH110


def _hung_finding(facts: Facts, options: Options) -> Finding:
    """Judge a call that hangs. A waking GPU takes long, as does the end of a large process: only a lasting hang fails.

    Before a job no second look is due: there a call fails at once if it sleeps in the kernel and is not a GPU's waking.
    """
    hung: Facts = facts["hung"]
    where = "" if hung["gpu"] is None else f" of GPU {hung['gpu']}"
    sentence = f"the driver hangs: {hung['call']}{where} did not return within {hung['after_s']:g} s"
    before_s = streaks.lasted(facts, _HUNG)
    waking = hung["call"] in _OPENING and not facts["persistenced"]
    stuck = hung["task_state"] == "D" and not waking and facts["stage"] in ("prolog", "full")
    evidence = {"hung": dict(hung), "persistenced": facts["persistenced"], "before_s": round(before_s)}
    if stuck or before_s >= options["hung_s"]:
        return Finding.fail("driver_hung", sentence, "drain; reboot the node, power-cycle if it does not", evidence)
    remedy = "run `timeout 60 nvidia-smi`; if that hangs too, drain and reboot; is nvidia-persistenced running?"
    return Finding.unknown("driver_slow", sentence, remedy, evidence)


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a lost GPU, a mismatch of library and kernel module, and a hang of a GPU that is not waking up."""
    if facts["hung"]:
        return _hung_finding(facts, options)
    if facts["state"] == "lib_rm_version_mismatch":
        sentence = "NVIDIA's library and kernel module are of different versions: no CUDA program starts"
        return Finding.fail("driver_mismatch", sentence, "drain; reboot, or unload and load the nvidia modules")
    if facts["state"] in LOST:
        return Finding.fail("gpu_lost", f"NVML does not start: {LOST_WORDS[facts['state']]}", LOST_REMEDY)
    if (nothing := unanswered(facts)) is not None:
        return nothing
    lost = lost_gpus(facts)
    faults = [
        Fault.warn("gpu_silent", f"does not answer ({', '.join(errors)})", LOST_REMEDY, gpu)
        for gpu in facts["gpus"]
        if not gpu["lost"] and (errors := sorted(_UNREADABLE & set(gpu["errors"].values())))
    ]
    denied = [gpu for gpu in facts["gpus"] if "no_permission" in gpu["errors"].values()]
    if denied and not lost:
        sentence = f"{len(denied)} of {len(facts['gpus'])} GPUs may not be read by this user"
        return Finding.unknown("no_permission", sentence, "run it as root, outside the job's cgroup")
    version = facts["system"].get("driver", "?")
    passed = ("gpus_answer", f"{len(facts['gpus'])} GPUs answer (driver {version})")
    return conclude_gpus([*lost, *faults], passed, {"system": facts["system"]})


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when the driver hangs."""
    return streaks.kept(facts, [_HUNG] if facts["hung"] else [])


check = Check(
    **Check.parts_of(__name__),
    **nvml.NVML_LANE,
    reads="NVML: start, count, a handle, the temperature and the performance state of every GPU",
    cost="loading NVML, 20–60 ms; seconds where no persistence mode keeps the GPUs awake",
    invalidating_words=("fallen off the bus", "nitAdapter failed", "rm_init_adapter failed"),
    options={
        "hung_s": Option(
            30.0,
            "a hang that may be a GPU waking up fails when runs have seen nothing else for so many seconds",
            "ours: NVIDIA's persistence guide has one to three seconds a GPU, and a node has up to 16",
        )
    },
)
