"""Is Fabric Manager there where NVSwitches need it, and has every GPU joined the fabric?"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine import streaks
from slurm_robust.nodecheck.nvml import facts as nvml
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported
from slurm_robust.nodecheck.sources import small_files

_MANAGER = "nv-fabricmanage"
"""The process's name, as the kernel cuts it."""
_SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
_STARTING = "starting"
_WHOLE = 8
"""GPUs of a node that only switches can join."""
_REMEDY = "`systemctl status nvidia-fabricmanager`; start it; versions of it and of the driver must be the same"
_MISSING = {
    2: "its system GUID is wrong",
    3: "its chassis number is wrong",
    4: "it is in no partition",
    5: "it has too few NVLinks",
    6: "its firmware does not fit",
    7: "its place is not valid",
    8: "its state is not valid",
}


def probe(context: Context, options: Options) -> Facts:
    """Read the GPUs' view of the fabric, whether there are switches, and whether their manager runs."""
    facts = nvml.take(context, "fabric", kept_as=check.name)
    switches = len(small_files.names(context.path(_SWITCHES)))
    pid = _manager(context) if switches else ""
    on_host = small_files.read_text(context.path("/proc/2/comm"), 32).strip() == "kthreadd"
    return {**facts, "switches": switches, "manager": bool(pid), "pid": pid, "on_host": on_host}


def _manager(context: Context) -> str:
    """Return the pid of Fabric Manager, empty if it does not run."""
    folders = context.path("/proc").glob("[1-9]*")
    return next(
        (folder.name for folder in folders if small_files.read_text(folder / "comm", 32).strip() == _MANAGER), ""
    )


@needs_gpus()
def judge(facts: Facts, options: Options) -> Finding:
    """Fail for a GPU that has not joined if several share the node: no CUDA program starts on it.

    Boards without NVSwitches say that they have no fabric. GPUs before Hopper say nothing of it: there the switches
    need the manager's process, which only a look from the host can miss.
    """
    told = [(gpu, fabric) for gpu, fabric in reported(facts, "fabric") if fabric["state"]]
    if len(facts["gpus"]) < 2:
        return Finding.skip("one_gpu", "a single GPU needs no fabric")
    if not told and not facts["switches"]:
        return Finding.skip("no_fabric", "these GPUs have no NVSwitch fabric")
    faults = _not_joined(facts, told, options)
    for gpu, fabric in told:
        if fabric["state"] == 3 and not fabric["status"]:
            faults += _ill(gpu, fabric)
    if facts["switches"] and not facts["manager"] and facts["on_host"] and not faults:
        joined = bool(told)
        text = f"nvidia-fabricmanager does not run on a node with {facts['switches']} NVSwitches"
        status = Status.WARN if joined or not options["manager_needed"] else Status.FAIL
        faults.append(Fault(status, "no_fabric_manager", text, _REMEDY))
    text = f"{len(told)} GPUs have joined the fabric" if told else "Fabric Manager runs"
    states = {gpu["bus"]: fabric for gpu, fabric in told}
    return conclude_gpus(faults, ("fabric_joined", text), {"fabric": states, "switches": facts["switches"]})


def _not_joined(facts: Facts, told: list[tuple[Facts, dict[str, int]]], options: Options) -> list[Fault]:
    """Give a starting fabric time; a fabric that never began, or ended with an error, gets none.

    Boards of the same name are built without switches too, four to a node, and in virtual machines the fabric is the
    host's: there it only warns.
    """
    faults = []
    before_s = streaks.lasted(facts, _STARTING)
    lasts = before_s >= options["start_s"] or facts["at_s"] >= options["boot_s"]
    sure = facts["switches"] > 0 or (
        len(facts["gpus"]) >= _WHOLE and all(gpu["profile"].get("fabric") for gpu, _ in told)
    )
    fail = Status.FAIL if sure else Status.WARN
    for gpu, fabric in told:
        if fabric["state"] == 3 and fabric["status"]:
            text = f"joining the fabric failed (NVML error {fabric['status']})"
            faults.append(Fault(fail, "fabric_failed", text, _REMEDY, gpu))
        elif fabric["state"] == 1:
            text = "has not joined the fabric: is Fabric Manager running?"
            faults.append(Fault(fail if lasts else Status.WARN, "fabric_not_started", text, _REMEDY, gpu))
        elif fabric["state"] == 2:
            text = "is joining the fabric"
            slow = before_s >= options["start_s"]
            faults.append(Fault(fail if slow else Status.WARN, "fabric_starting", text, _REMEDY, gpu))
    return faults


def _ill(gpu: Facts, fabric: Mapping[str, int]) -> list[Fault]:
    """Return the faults in the health mask; in each of its fields 0 is `not supported`."""
    mask = fabric.get("health", 0)
    remedy = "look at nvidia-fabricmanager's log and `nvidia-smi -q`; reset all GPUs, repair if it stays"
    faults = []
    if mask & 0x3 == 1:
        faults.append(Fault.warn("fabric_degraded", "the fabric's bandwidth is degraded", remedy, gpu))
    if mask >> 4 & 0x3 == 1:
        faults.append(Fault.fail("fabric_unhealthy", "its route through the fabric is unhealthy", remedy, gpu))
    elif mask >> 2 & 0x3 == 1:
        faults.append(Fault.warn("fabric_recovering", "its route through the fabric recovers", remedy, gpu))
    if mask >> 6 & 0x3 == 1:
        faults.append(Fault.warn("fabric_timeout", "accesses over the fabric time out", remedy, gpu))
    wrong = mask >> 8 & 0xF
    if wrong > 1:
        text = f"the fabric is configured wrongly: {_MISSING.get(wrong, f'reason {wrong}')}"
        faults.append(Fault.warn("fabric_configuration", text, remedy, gpu))
    if fabric.get("summary") == 2 and not faults:
        faults.append(Fault.warn("fabric_unwell", "the fabric calls it unhealthy", remedy, gpu))
    return faults


def remember(facts: Facts, options: Options) -> Facts | None:
    """Keep since when a GPU has not joined."""
    if not facts["gpus"]:
        return None
    starting = any(fabric["state"] in (1, 2) for _, fabric in reported(facts, "fabric"))
    return streaks.kept(facts, [_STARTING] if starting else [])


def valid_while(facts: Facts, options: Options) -> list[tuple[str, ...]]:
    """Return the condition that Fabric Manager stays, if it was there."""
    return [("says", f"/proc/{facts['pid']}/comm", _MANAGER)] if facts["pid"] else []


check = Check(
    **Check.parts_of(__name__),
    **nvml.NVML_LANE,
    reads="NVML: fabric state and health; /proc/driver/nvidia-nvswitch/devices, /proc/*/comm where there are switches",
    cost="one call a GPU, 1–2 ms; a small read a process on boards with NVSwitches",
    options={
        "start_s": Option(300.0, "seconds of joining after which it fails", "ours: eight GPUs join within a minute"),
        "boot_s": Option(600.0, "s after boot when a GPU that never began fails", "ours: services are up by then"),
        "manager_needed": Option(
            True,
            "false: its absence only warns",
            "NVIDIA's Fabric Manager guide: without it CUDA says `system not yet initialized`",
        ),
    },
)
