"""Lists NVIDIA's XID codes: the meaning of each, who is at fault, what to do, and the consequence for the node.

Codes, meanings and immediate actions are those of NVIDIA's own catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, Ampere and newer, as of driver 580), with the
older listing (https://docs.nvidia.com/deploy/xid-errors/, r535 and before) for codes that the catalogue calls unused.
This project decides what makes a node unfit: a code whose documented action is a reset, a reboot or a repair **and**
which no application can bring about by itself. If an application can (109, 155, …), the code is a warning, and the
driver's own word decides: it logs 154 when the GPU does need a reset. Drivers before R550 have no such word (in
NVIDIA's open driver 154 came after 560): there the catalogue's action for 109, a reset, is the only source.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from slurm_robust.nodecheck.catalogue.job_urgency import AT_NEXT_CHECKPOINT, NOTE, NOW, UrgencyRule


class FaultSource(str, enum.Enum):
    """The part that is at fault, as far as the code alone can say."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    APPLICATION = "application"
    NONE = "none"


class Act(str, enum.Enum):
    """The action against the fault."""

    NONE = "none"
    RESTART_APP = "restart the application"
    RESET = "reset the GPU"
    RESET_FABRIC = "reset all GPUs and switches"
    REBOOT = "reboot the node"
    REPAIR = "drain and repair"
    LOOK = "look into it"


class XidGrade(str, enum.Enum):
    """The consequence for the node: `fail` is latched, `warn` is told, `note` is only evidence."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True)
class Xid:
    """A code of the catalogue: all that is known without the words of a line (`grade` uses these).

    Attributes:
        code: The XID.
        name: The code's meaning, in a few words.
        fault: Who is at fault.
        act: The action against the fault.
        grade: The consequence for the node of a line with this code.
        urgency: What a job on the node should do if the line is a fault; None if that follows from the grade.
        others_work: Whether the node's other GPUs go on working. Faults of links, of the bus and of firmware affect
            other GPUs.
    """

    code: int
    name: str
    fault: FaultSource
    act: Act
    grade: XidGrade
    urgency: UrgencyRule | None = None
    others_work: bool = False


_H, _D, _A, _N = FaultSource.HARDWARE, FaultSource.DRIVER, FaultSource.APPLICATION, FaultSource.NONE
_FAIL, _WARN, _NOTE = XidGrade.FAIL, XidGrade.WARN, XidGrade.NOTE

_ENDS_JOBS = UrgencyRule(
    NOW, "NVIDIA's XID catalogue: its immediate action is a reset, a reboot or a repair, and no work goes on before"
)
_DRIVER_SAYS = UrgencyRule(NOW, "NVIDIA's driver says so itself")
_REMAPPED = UrgencyRule(
    AT_NEXT_CHECKPOINT,
    "NVIDIA's GPU memory error management: remapped at the next reset; work may go on until then",
)
_STORM = UrgencyRule(
    AT_NEXT_CHECKPOINT,
    "ours: corrected errors lose no data; a storm of them slows the job and often comes before uncorrected ones",
)
_CONTAINED = UrgencyRule(
    AT_NEXT_CHECKPOINT,
    "NVIDIA's XID catalogue: only the application that was hit ends; reset when the GPU is idle",
)
_ENGINE = UrgencyRule(NOTE, "NVIDIA's XID catalogue: the application's own, or nothing to do")
_PERSON = UrgencyRule(NOTE, "ours: a person should know; a job gains nothing by leaving")

_ROWS = (
    Xid(8, "GPU stopped processing (channel idle timeout)", _A, Act.RESTART_APP, _NOTE),
    Xid(11, "invalid or corrupted push buffer stream", _A, Act.RESTART_APP, _NOTE),
    Xid(13, "graphics engine exception", _A, Act.RESTART_APP, _NOTE, _ENGINE),
    Xid(25, "invalid or illegal push buffer stream", _A, Act.RESTART_APP, _NOTE),
    Xid(31, "GPU memory page fault", _A, Act.RESTART_APP, _NOTE, _ENGINE),
    Xid(32, "invalid or corrupted push buffer stream", _A, Act.RESTART_APP, _NOTE),
    Xid(37, "driver firmware error (unknown method)", _A, Act.NONE, _NOTE),
    Xid(38, "driver firmware error (watchdog)", _D, Act.LOOK, _WARN),
    Xid(43, "GPU stopped processing (the application's channel was reset)", _A, Act.NONE, _NOTE, _ENGINE),
    Xid(44, "graphics engine fault during context switch", _D, Act.LOOK, _WARN),
    Xid(45, "preemptive cleanup after an earlier error", _A, Act.NONE, _NOTE, _ENGINE),
    Xid(46, "GPU stopped processing (GPU timeout)", _D, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(48, "double-bit ECC error", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(54, "auxiliary power is not connected", _H, Act.REPAIR, _FAIL, _ENDS_JOBS),
    Xid(57, "video memory interface could not be programmed", _H, Act.LOOK, _WARN),
    Xid(58, "unstable video memory interface", _H, Act.LOOK, _WARN),
    Xid(60, "video processor exception", _A, Act.RESTART_APP, _NOTE),
    Xid(61, "internal micro-controller breakpoint", _D, Act.LOOK, _WARN),
    Xid(62, "internal micro-controller halt", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(63, "memory row remapped or page retired", _H, Act.NONE, _NOTE, _REMAPPED),
    Xid(64, "memory row could not be remapped or page retired", _H, Act.REPAIR, _FAIL, _ENDS_JOBS, True),
    Xid(66, "illegal access by the driver", _D, Act.LOOK, _WARN),
    Xid(67, "illegal access by the driver", _D, Act.LOOK, _WARN),
    Xid(68, "video decoder exception", _A, Act.RESTART_APP, _NOTE),
    Xid(69, "graphics engine class error", _A, Act.RESTART_APP, _NOTE),
    Xid(74, "NVLink error", _H, Act.RESET, _FAIL, _ENDS_JOBS),
    Xid(78, "vGPU could not be started", _D, Act.LOOK, _WARN),
    Xid(79, "GPU has fallen off the bus", _H, Act.REBOOT, _FAIL, _ENDS_JOBS),
    Xid(80, "corrupted data sent to the GPU", _A, Act.RESTART_APP, _NOTE),
    Xid(92, "high rate of single-bit ECC errors", _H, Act.LOOK, _WARN, _STORM),
    Xid(93, "InfoROM wear limit exceeded", _D, Act.LOOK, _WARN),
    Xid(94, "contained memory error", _H, Act.RESTART_APP, _WARN, _CONTAINED),
    Xid(95, "uncontained memory error", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(106, "management test message", _N, Act.NONE, _NOTE),
    Xid(107, "management test message", _N, Act.NONE, _NOTE),
    Xid(108, "NVLink remote translation error", _A, Act.NONE, _NOTE, _ENGINE),
    Xid(109, "context switch timeout", _A, Act.RESET, _WARN, _ENGINE, True),
    Xid(110, "security fault", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(119, "GSP did not answer a remote call", _D, Act.RESET, _FAIL, _ENDS_JOBS),
    Xid(120, "GSP error", _D, Act.RESET, _FAIL, _ENDS_JOBS),
    Xid(121, "corrected errors of the chip-to-chip link", _H, Act.NONE, _NOTE, _PERSON),
    Xid(136, "NVLink training failed", _H, Act.RESET, _FAIL, _ENDS_JOBS),
    Xid(137, "NVLink privilege error (illegal access to a peer)", _A, Act.NONE, _NOTE, _ENGINE),
    Xid(139, "optical-flow engine error", _A, Act.RESTART_APP, _NOTE),
    Xid(140, "unrecovered ECC error", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(141, "CUDA fast path error", _D, Act.LOOK, _WARN),
    Xid(143, "GPU initialisation error", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(151, "key rotation error", _D, Act.REBOOT, _FAIL, _ENDS_JOBS),
    Xid(154, "GPU recovery action changed", _N, Act.RESET, _WARN, _DRIVER_SAYS),
    Xid(155, "NVLink error defined by software", _A, Act.RESET, _WARN, _PERSON),
    Xid(156, "memory resource retired", _H, Act.RESET, _WARN, _REMAPPED),
    Xid(157, "memory resource could not be retired", _H, Act.LOOK, _WARN, _REMAPPED),
    Xid(158, "fatal GPU timeout", _H, Act.RESET, _FAIL, _ENDS_JOBS, True),
    Xid(159, "coherent-interconnect error without data", _D, Act.LOOK, _WARN),
    Xid(160, "memory channel retired", _H, Act.LOOK, _WARN, _REMAPPED),
    Xid(161, "memory channel could not be retired", _H, Act.LOOK, _WARN, _REMAPPED),
    Xid(162, "power smoothing engaged again", _N, Act.NONE, _NOTE),
    Xid(163, "power smoothing disengaged", _N, Act.NONE, _NOTE),
    Xid(164, "power smoothing near the end of its life", _H, Act.LOOK, _WARN, _PERSON),
    Xid(165, "power smoothing at the end of its life", _H, Act.LOOK, _WARN, _PERSON),
    Xid(167, "fatal PCIe timeout", _H, Act.LOOK, _WARN),
    Xid(168, "reduced GPU memory capacity", _H, Act.LOOK, _WARN, _REMAPPED),
    Xid(169, "security micro-controller halt", _H, Act.LOOK, _WARN),
    Xid(166, "traffic on an encrypted NVLink before it was set up", _H, Act.LOOK, _WARN),
    Xid(170, "interrupt of an encrypted NVLink", _H, Act.LOOK, _WARN),
    Xid(171, "uncorrectable error in DRAM (goes with 48)", _H, Act.LOOK, _WARN, _REMAPPED),
    Xid(172, "uncorrectable error in SRAM (goes with 48)", _H, Act.LOOK, _WARN, _REMAPPED),
)

# Codes that today's drivers name and never log ("unused" in the catalogue), and what older ones meant by them.
_OLD_ROWS: tuple[tuple[tuple[int, ...], str, FaultSource, Act, XidGrade], ...] = (
    ((*range(1, 8),), "invalid or corrupted push buffer stream (older drivers)", _A, Act.RESTART_APP, _NOTE),
    ((9, 10, 12), "graphics engine error (older drivers)", _A, Act.RESTART_APP, _NOTE),
    ((14, 17, 23, 91), "reserved by the driver", _N, Act.NONE, _NOTE),
    ((15, 16, 19, 56, 81, *range(112, 119)), "display engine error", _D, Act.LOOK, _NOTE),
    ((18,), "bus mastering was disabled", _D, Act.LOOK, _WARN),
    ((20, 21, 22, 27, 28, 29, 33, 34, 35, 36, 42, 47, 65, 73), "video engine exception", _A, Act.RESTART_APP, _NOTE),
    ((24, 30), "GPU semaphore timeout or access error (older drivers)", _D, Act.LOOK, _WARN),
    ((26,), "frame buffer timeout (older drivers)", _D, Act.LOOK, _WARN),
    ((*range(49, 54), 55), "power state event (older drivers)", _N, Act.NONE, _NOTE),
    ((59,), "internal micro-controller error (older drivers)", _D, Act.LOOK, _WARN),
    ((87,), "report of the driver's telemetry", _N, Act.NONE, _NOTE),
    ((90, 111), "error of the level 2 cache or its bundles", _H, Act.LOOK, _WARN),
    ((122, 123, 124), "the board's flash memory could not be read or written", _H, Act.LOOK, _WARN),
    ((125,), "the InfoROM's file system has an error", _H, Act.LOOK, _WARN),
    ((138, 152, 153), "deep-learning accelerator error", _D, Act.LOOK, _WARN),
)

_TOLD_ONLY = range(122, 126)
_COPY_ENGINES = (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136))
_VIDEO_ENGINES = (82, 83, 84, 86, 88, 89, *range(96, 106), 142)
_NVLINK5 = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}

CATALOGUE: dict[int, Xid] = {
    **{code: Xid(code, *row[1:], _PERSON if code in _TOLD_ONLY else None) for row in _OLD_ROWS for code in row[0]},
    **{row.code: row for row in _ROWS},
    **{code: Xid(code, "copy engine exception", _A, Act.RESTART_APP, _NOTE) for code in _COPY_ENGINES},
    **{code: Xid(code, "video engine exception", _A, Act.RESTART_APP, _NOTE) for code in _VIDEO_ENGINES},
    **{
        code: Xid(code, f"NVLink 5 error ({unit})", _H, Act.RESET, _WARN, _ENDS_JOBS) for code, unit in _NVLINK5.items()
    },
}
"""Every code that NVIDIA's catalogue or driver names: 1–172 as of driver 580."""

_SEVEN = re.compile(r"\(0x[0-9a-fA-F]{1,8}(?:, ?0x[0-9a-fA-F]{1,8}){6}\)")
_IGNORED = (1 << 0 | 1 << 23 | 1 << 30, 0, 0, 0, 0, 0, 0)
_SECONDARY = (1 << 1 | 1 << 20, 0, 0, 1 << 16 | 1 << 17, 1 << 20 | 1 << 23 | 1 << 26 | 1 << 29, 0, 0)
"""Bits of the registers of 74: of no meaning; of another fault's consequence, or of errors that were corrected."""
_LINK_DOWN = re.compile(r"NETIR_LINK_(?:EVT|DOWN)\b.{0,60}\((0x[0-9a-fA-F]{1,8})\b")
_TAKEN_DOWN = (0b100110, 0b101000)
_FATAL = re.compile(r"\bfatal\b", re.IGNORECASE)
_NON_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_RECOVERY = re.compile(r"changed from .*? to 0x[0-9a-f]+ \(([^)]{1,60})\)|changed to \(?(\w[\w ]{0,40})", re.IGNORECASE)
_WANTS_RESET = re.compile(r"reset|reboot|\bflr\b", re.IGNORECASE)


_RLW = re.compile(r"\b(RLW_\w{3,12})\b[^(]{0,60}\(0x[0-9a-fA-F]{1,8},? (0x[0-9a-fA-F]{1,8})\b")
_RLW_RESET = {"RLW_REMAP": 0xC0, "RLW_RSPCOL": 0x2, "RLW_SRC_TRACK": 0x31, "RLW_TAGSTATE": 0x12_0002}
_RLW_NOTHING = {
    "RLW_REMAP": 0x300,
    "RLW_RSPCOL": 0x1,
    "RLW_RXPIPE": 0x8,
    "RLW_SRC_TRACK": 0x2,
    "RLW_TAGSTATE": 0x1_0001,
}
"""The bits of 145's second register, its error status, by unit: bits of hardware faults after which the GPU must be
reset, and bits without consequence (catalogue, NVLink 5 table). Other bits come from software, or a 154 says what they
need."""
_ASKS_FOR_RESET = 550
"""Drivers before this one never log 154."""


def lookup(code: int) -> Xid:
    """Return the code's entry; the entry of an undocumented code warns and does not blame any part."""
    return CATALOGUE.get(code) or Xid(code, "not in NVIDIA's catalogue", FaultSource.NONE, Act.LOOK, XidGrade.WARN)


def recovery_action(message: str) -> str:
    """Return the action that a 154 line names (`None`, `GPU Reset Required`, …), empty if it names none."""
    match = _RECOVERY.search(message)
    return (match[1] or match[2]).strip() if match else ""


def other_gpus_work(code: int, message: str) -> bool:
    """Return whether this fault is one GPU's own affair: a job that was not given that GPU may run."""
    if code == 154:
        action = recovery_action(message).lower()
        return wants_peers_ended(code, message) or ("reset" in action and "reboot" not in action)
    return lookup(code).others_work


def _of_nvlink(message: str) -> XidGrade:
    """Judge the seven registers of a 74 (catalogue, WORKFLOW_NVLINK_ERR); a fault if they say nothing known."""
    match = _SEVEN.search(message)
    registers = [int(text, 16) for text in re.findall(r"0x[0-9a-fA-F]+", match[0])] if match else []
    if not any(registers) or any(bits & ~(_IGNORED[at] | _SECONDARY[at]) for at, bits in enumerate(registers)):
        return XidGrade.FAIL
    return XidGrade.WARN if any(bits & _SECONDARY[at] for at, bits in enumerate(registers)) else XidGrade.NOTE


def _of_nvlink5(message: str) -> XidGrade:
    """Judge 144–150, which call themselves `Fatal` or `Nonfatal`; a 149 for a link that software took down is fine."""
    if not _FATAL.search(_NON_FATAL.sub("", message)):
        return XidGrade.WARN
    down = _LINK_DOWN.search(message)
    return XidGrade.WARN if down and int(down[1], 16) >> 20 & 0x3F in _TAKEN_DOWN else XidGrade.FAIL


def _of_rlw(message: str) -> XidGrade:
    """Judge 145 by the unit and its error status, beside the word that it calls itself."""
    match = _RLW.search(message)
    unit, status = (match[1], int(match[2], 16)) if match else ("", 0)
    if status & _RLW_RESET.get(unit, 0) or _of_nvlink5(message) is XidGrade.FAIL:
        return XidGrade.FAIL
    corrected = _RLW_NOTHING.get(unit, 0)
    return XidGrade.NOTE if status and not status & ~corrected else XidGrade.WARN


def wants_peers_ended(code: int, message: str) -> bool:
    """True for a 154 after which no peer-to-peer traffic may begin until the driver withdraws it (`Drain P2P`)."""
    return code == 154 and recovery_action(message).lower() == "drain p2p"


def _of_recovery(message: str) -> XidGrade:
    """Judge 154 by the action that the driver now wants, which may be `None`."""
    action = recovery_action(message)
    if action.lower() == "none":
        return XidGrade.NOTE
    return XidGrade.FAIL if _WANTS_RESET.search(action) else XidGrade.WARN


_BY_MESSAGE: dict[int, Callable[[str], XidGrade]] = {
    74: _of_nvlink,
    154: _of_recovery,
    **dict.fromkeys(_NVLINK5, _of_nvlink5),
    145: _of_rlw,
}
"""Codes that say in their words or registers how bad it is."""
SAID_IN_WORDS = frozenset(_BY_MESSAGE)
"""XIDs whose line says how bad they are, and whose event does not."""


def grade(code: int, message: str, driver: int = 0) -> XidGrade:
    """Return this line's consequence for the node; `driver` is NVIDIA's major version, 0 if it is not known."""
    if code == 109 and 0 < driver < _ASKS_FOR_RESET:
        return XidGrade.FAIL
    judge = _BY_MESSAGE.get(code)
    return judge(message) if judge else lookup(code).grade
