"""Lists the faults that may be repaired without a person: the remedy of each fault, and its source. Pure.

XIDs and SXIDs have their remedies in the catalogues of NVIDIA's codes (`Act`), and a 154 names its own. Faults that a
person must repair, or without a documented remedy, are left out: no repair is tried for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_robust.marks.remedy import Remedy
from slurm_robust.nodecheck.catalogue import sxids, xids
from slurm_robust.nodecheck.catalogue.xids import Act
from slurm_robust.nodecheck.engine.finding import NodeReport, Result, Status

_RESET, _REBOOT = Remedy.GPU_RESET, Remedy.REBOOT

BY_ACT: Mapping[Act, Remedy] = {Act.RESET: _RESET, Act.RESET_FABRIC: _RESET, Act.REBOOT: _REBOOT}
"""The catalogue's action → the remedy; `REPAIR` and all other actions have none."""


class Row(NamedTuple):
    """A remedy, and its source."""

    remedy: Remedy
    source: str


_NVML = "nvml.h, `nvmlDeviceGpuRecoveryAction_t`: the driver names it"
_MEMORY = "NVIDIA's GPU memory error management guide: a reset (or a reboot) completes it"
BY_FINDING: Mapping[tuple[str, str], Row] = {
    ("gpu_recovery", "recovery_reset"): Row(_RESET, _NVML),
    ("gpu_recovery", "recovery_drain_reset"): Row(_RESET, _NVML),
    ("gpu_recovery", "recovery_bus_reset"): Row(_REBOOT, _NVML),
    ("gpu_recovery", "recovery_reboot"): Row(_REBOOT, _NVML),
    ("gpu_rows", "remap_pending"): Row(_RESET, _MEMORY),
    ("gpu_rows", "repair_pending"): Row(_RESET, _MEMORY),
    ("gpu_pages", "page_pending_double"): Row(_RESET, _MEMORY),
    ("gpu_driver", "gpu_lost"): Row(_REBOOT, "NVIDIA's XID catalogue, 79: a GPU off the bus answers no reset"),
    ("gpu_driver", "driver_hung"): Row(_REBOOT, "ours: a call that sleeps in the driver ends with the boot only"),
    ("gpu_driver", "driver_mismatch"): Row(_REBOOT, "ours: the boot loads the kernel module that is installed"),
}
"""(check, reason of its finding) → remedy."""


def of_event(code: int, message: str) -> Remedy | None:
    """Return the remedy of an XID or SXID; a 154 says which in its message."""
    if code == 154:
        action = xids.recovery_action(message).lower()
        return _REBOOT if "reboot" in action else _RESET if "reset" in action else None
    entry = sxids.lookup(code) if code >= sxids.FIRST_CODE else xids.lookup(code)
    return BY_ACT.get(entry.act)


def of_result(result: Result) -> Remedy | None:
    """Return the remedy of one check's finding; a finding that names its own remedy has that one."""
    if named := result.finding.evidence.get("repair"):
        return Remedy(named)
    if result.name != "xid":
        row = BY_FINDING.get((result.name, result.finding.reason))
        return row.remedy if row else None
    events: Iterable[Mapping[str, Any]] = result.finding.evidence.get("events", ())
    return strongest(of_event(event["xid"], event["message"]) for event in events)


def strongest(remedies: Iterable[Remedy | None]) -> Remedy | None:
    """Return the remedy that includes all others; None if a fault has no remedy, or if there is no fault."""
    wanted = list(remedies)
    order = list(Remedy)
    if not wanted or None in wanted:
        return None
    return max((remedy for remedy in wanted if remedy is not None), key=order.index)


def of_report(report: NodeReport) -> Remedy | None:
    """Return the remedy for all failed checks of this report."""
    return strongest(of_result(result) for result in report.results if result.finding.status is Status.FAIL)
