"""How urgent is a finding for the jobs on its node? Tables of SXIDs, kernel messages and checks; pure.

An XID's own urgency stands in its row of `catalogue.xids`.

The catalogue and the checks judge whether something is a fault (`XidGrade`, `Status`); this module says only what a
running job should do about it. A fault without a row follows its grade.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.nodecheck.catalogue import xids
from slurm_robust.nodecheck.catalogue.job_urgency import AT_NEXT_CHECKPOINT, IF_REPEATED, NOTE, NOW, UrgencyRule
from slurm_robust.nodecheck.catalogue.xids import FaultSource, XidGrade
from slurm_robust.nodecheck.engine.finding import Status

_ACTION = "NVIDIA's XID catalogue: its immediate action is a reset, a reboot or a repair, and no work goes on before"
_FABRIC = "NVIDIA's Fabric Manager guide, appendix D: always fatal; GPUs and switches must be reset"
_PORT = "ours: what is fatal for one port of a switch, its guide says, is an XID of the GPU behind it, too"
_ROWS = "NVIDIA's GPU memory error management: remapped at the next reset; work may go on until then"
_STORM = "ours: corrected errors lose no data; a storm of them slows the job and often comes before uncorrected ones"
_CONTAINED = "NVIDIA's XID catalogue: only the application that was hit ends; reset when the GPU is idle"
_ENGINE = "NVIDIA's XID catalogue: the application's own, or nothing to do"
_HARMLESS = "NVIDIA's Fabric Manager guide, appendix D: not fatal"
_FLAP = "ours: a link that comes back within seconds costs NCCL one retry; two flaps in minutes end a job"
_RAIL = "ours: the other rails carry the traffic, slowly"
_HEAT = "ours: a slow GPU or CPU slows all ranks and loses nothing"
_DISK = "ours: whoever uses this disk has lost it, and fails at the next access"
_ARRAY = "ours: an array that has lost one of its disks goes on, and has none left to lose"
_PERSON = "ours: a person should know; a job gains nothing by leaving"
_DRIVER = "NVIDIA's driver says so itself"
_STATE = "ours: the check fails a node only for what ends its jobs"
_GRADE_FAIL = "the catalogue: a code for which it fails the node, and no application's"
_GRADE_WARN = "the catalogue: hardware that warns works for the moment"

SXIDS: Mapping[str, UrgencyRule] = {
    "fail": UrgencyRule(NOW, _FABRIC),
    "warn": UrgencyRule(AT_NEXT_CHECKPOINT, _PORT),
    "note": UrgencyRule(NOTE, _HARMLESS),
}
"""XidGrade of an SXID's line → how urgent it is."""
_SXID_NOTES = frozenset({10001, 10002, 10003, 11004, 20012})
"""Codes that warn, and cost no job anything: a switch's own housekeeping, packets that belong nowhere."""

KERNEL: Mapping[str, UrgencyRule] = {
    **dict.fromkeys(("disk_lost", "fs_shutdown", "remount_ro"), UrgencyRule(NOW, _DISK)),
    "gpu_driver": UrgencyRule(NOW, "ours: a GPU that has left the bus or cannot be started computes nothing"),
    **dict.fromkeys(("nic_timeout", "nic_firmware", "transmit_timeout"), UrgencyRule(IF_REPEATED, _FLAP)),
    **dict.fromkeys(("command_timeout", "cable_error", "card_unhealthy"), UrgencyRule(IF_REPEATED, _FLAP)),
    **dict.fromkeys(("pcie_corrected", "memory_corrected"), UrgencyRule(AT_NEXT_CHECKPOINT, _STORM)),
    **dict.fromkeys(("throttled", "overheated"), UrgencyRule(AT_NEXT_CHECKPOINT, _HEAT)),
    **dict.fromkeys(
        ("memory_failure", "machine_check"),
        UrgencyRule(AT_NEXT_CHECKPOINT, "ours: the kernel ended whoever used the bad memory; others go on beside it"),
    ),
    **dict.fromkeys(
        ("oops", "stall", "fs_error"),
        UrgencyRule(AT_NEXT_CHECKPOINT, "ours: the kernel goes on, and nobody knows for how long"),
    ),
}
"""Kind of kernel message → how urgent it is; kinds that are not named are a note: nothing is won by leaving."""

CHECKS: Mapping[str, UrgencyRule] = {
    **dict.fromkeys(("gpu_driver", "gpu_count"), UrgencyRule(NOW, "ours: a lost GPU ends the job at its next kernel")),
    "gpu_recovery": UrgencyRule(NOW, _DRIVER),
    "gpu_ecc": UrgencyRule(NOW, _ACTION),
    "gpu_pages": UrgencyRule(NOW, _ACTION),
    "gpu_rows": UrgencyRule(NOW, "NVIDIA's GPU memory error management: a failed remap is a reason for a return"),
    "gpu_nvlink": UrgencyRule(NOW, "NVIDIA's XID catalogue, 74: applications that use the link end"),
    "gpu_fabric": UrgencyRule(NOW, "NVIDIA's Fabric Manager guide: no traffic over switches without the fabric"),
    "gpu_temperature": UrgencyRule(AT_NEXT_CHECKPOINT, _HEAT),
    "gpu_throttle": UrgencyRule(AT_NEXT_CHECKPOINT, _HEAT),
    "filesystem": UrgencyRule(AT_NEXT_CHECKPOINT, "ours: a mount that does not answer may belong to another job"),
    "disks": UrgencyRule(AT_NEXT_CHECKPOINT, "ours: of a disk that is in use the kernel log tells at once"),
    "rdma_ports": UrgencyRule(AT_NEXT_CHECKPOINT, _RAIL),
    "rdma_errors": UrgencyRule(AT_NEXT_CHECKPOINT, _RAIL),
    "ethernet": UrgencyRule(AT_NEXT_CHECKPOINT, _RAIL),
}
"""Check → the urgency if the check fails the node."""

REASONS: Mapping[str, UrgencyRule] = {
    "port_down": UrgencyRule(IF_REPEATED, _FLAP),
    "port_not_configured": UrgencyRule(IF_REPEATED, _FLAP),
    "link_down": UrgencyRule(IF_REPEATED, _FLAP),
    "bond_member_down": UrgencyRule(IF_REPEATED, _FLAP),
    "link_flaps": UrgencyRule(AT_NEXT_CHECKPOINT, _RAIL),
    "remap_pending": UrgencyRule(AT_NEXT_CHECKPOINT, _ROWS),
    "repair_pending": UrgencyRule(AT_NEXT_CHECKPOINT, _ROWS),
    "page_pending": UrgencyRule(AT_NEXT_CHECKPOINT, _ROWS),
    "corrected_rate": UrgencyRule(AT_NEXT_CHECKPOINT, _STORM),
}
"""Reason of a check's finding → the urgency if the check only warns; a warning that is not named is a note."""
_SOFT_FAILURES = ("remap_pending", "repair_pending", "recovery_drain_reset", "no_fabric_manager")
"""Failures that make a node unfit for the next job, and let the present one reach its checkpoint."""
UNSEEN = UrgencyRule(NOTE, "ours: a line that the node itself does not bear out moves no job")
ALL_RAILS = UrgencyRule(NOW, "ours: no RDMA port is left: the job waits for ever, or for its own timeout")


def of_xid(code: int, grade: XidGrade, message: str = "") -> UrgencyRule:
    """Return the urgency of a line with this XID.

    Args:
        code: The XID.
        grade: The grade that the catalogue (or the site) gives this very line.
        message: The line's text: a line of XID 154 names what the driver wants.
    """
    known = xids.lookup(code)
    named = known.urgency
    # A row that is remapped is no fault of the node, and still concerns the job: its code is a note itself.
    if grade is XidGrade.NOTE and not (named and named.name != NOTE and known.grade is XidGrade.NOTE):
        return UrgencyRule(NOTE, _ENGINE)
    if code == 154 and (grade is XidGrade.WARN or xids.recovery_action(message).lower().startswith("drain")):
        return UrgencyRule(AT_NEXT_CHECKPOINT, _DRIVER)
    if grade is XidGrade.FAIL:
        return named if named and named.name != NOTE else UrgencyRule(NOW, _GRADE_FAIL)
    if grade is XidGrade.WARN and named and named.name == NOW:
        return UrgencyRule(NOTE, _PERSON)  # of a family whose worse lines fail, one that calls itself not fatal
    if named:
        return named
    hardware = known.fault is FaultSource.HARDWARE
    return UrgencyRule(AT_NEXT_CHECKPOINT, _GRADE_WARN) if hardware else UrgencyRule(NOTE, _PERSON)


def of_sxid(code: int, grade: XidGrade) -> UrgencyRule:
    """Return the urgency of an NVSwitch's line with this code, by the grade from the catalogue (or the site)."""
    return SXIDS["note" if grade is XidGrade.WARN and code in _SXID_NOTES else grade.value]


def of_kernel(kind: str, status: Status, *, about_gpu: bool = False) -> UrgencyRule:
    """Return the urgency of a kernel message of this kind.

    Args:
        kind: The kind, by `kernel_patterns.KINDS` or the check `nic_log`.
        status: The status that its check gives it.
        about_gpu: Whether the message names a GPU: a message of kind `gpu_driver` without a GPU comes when a driver is
            loaded.
    """
    if status not in (Status.WARN, Status.FAIL):
        return UrgencyRule(NOTE, _PERSON)
    if kind == "gpu_driver" and not about_gpu:
        return UrgencyRule(NOTE, _PERSON)
    if kind in ("fs_shutdown", "remount_ro") and status is Status.WARN:
        return UrgencyRule(NOTE, "the check: the file system is not mounted any more, or has recovered")
    known = KERNEL.get(kind, UrgencyRule(NOTE, _PERSON))
    return UrgencyRule(AT_NEXT_CHECKPOINT, _STATE) if known.name == NOTE and status is Status.FAIL else known


def of_lost_disk(status: Status, *, example: str, named: bool, used: bool | None) -> UrgencyRule:
    """Return the urgency of a kernel message that a disk is gone.

    Args:
        status: The status that its check gives it.
        example: The line; an array that goes on without the disk says so in it.
        named: Whether it names the disk. An unnamed disk is often a drive that somebody attached remotely.
        used: Whether something on the disk is mounted; None if that is not known.
    """
    if "Disk failure on" in example and "failing" not in example:
        return UrgencyRule(AT_NEXT_CHECKPOINT, _ARRAY)
    if not named or used is False:
        return UrgencyRule(NOTE, "ours: nothing on it is mounted, or nobody can tell which disk it is")
    return of_kernel("disk_lost", status)


def of_check(name: str, reason: str, status: Status) -> UrgencyRule:
    """Return the urgency of a check's finding; a failure is never a note."""
    if status is Status.WARN:
        return REASONS.get(reason, UrgencyRule(NOTE, _PERSON))
    if status is not Status.FAIL:
        return UrgencyRule(NOTE, _PERSON)
    if reason in _SOFT_FAILURES:
        return UrgencyRule(AT_NEXT_CHECKPOINT, REASONS.get(reason, UrgencyRule("", _ROWS)).source)
    return CHECKS.get(name, UrgencyRule(AT_NEXT_CHECKPOINT, _STATE))
