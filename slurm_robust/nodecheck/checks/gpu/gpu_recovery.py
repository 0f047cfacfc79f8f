"""Does the driver itself want a GPU reset, or the node rebooted?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, Facts, Finding, Options, Status
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, needs_gpus, reported

_ACTIONS = {
    1: (Status.FAIL, "reset", "the driver wants a reset", "drain; `nvidia-smi --gpu-reset -i N`, or reboot"),
    2: (Status.FAIL, "reboot", "the driver wants the node rebooted", "drain and reboot"),
    3: (
        Status.WARN,
        "drain_p2p",
        "the driver wants peer-to-peer traffic ended",
        "end the jobs that use this GPU's peers",
    ),
    4: (Status.FAIL, "drain_reset", "the driver wants it drained and reset", "drain; reset the GPU, or reboot"),
    5: (Status.WARN, "imex", "the driver wants the IMEX domain recovered", "restart nvidia-imex in the domain"),
    6: (Status.FAIL, "bus_reset", "the driver wants its PCIe bus reset", "drain and reboot"),
    7: (Status.FAIL, "reboot", "the driver wants the system rebooted", "drain and power-cycle"),
}


@needs_gpus("recovery_action", "recovery action", needed=False)
def judge(facts: Facts, options: Options) -> Finding:
    """Judge by the driver's own word: a reset or a reboot fails, other words warn."""
    complaints = []
    for gpu, action in reported(facts, "recovery_action"):
        if action:
            other = (Status.WARN, "other", f"the driver wants action {action}", "look the action up in nvml.h")
            status, reason, text, remedy = _ACTIONS.get(action, other)
            complaints.append(Fault(status, f"recovery_{reason}", text, remedy, gpu))
    return conclude_gpus(complaints, ("no_recovery", "the driver wants no GPU reset"))


probe = probe_of("recovery_action")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: GPU recovery action (driver 565 and newer)",
    cost="one call a GPU, under 1 ms",
)
