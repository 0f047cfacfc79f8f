"""Lists NVSwitch errors (SXIDs): the meaning of each, and its consequence for the node.

Sources: classes, effects and recovery are those of NVIDIA's Fabric Manager guide (DU-09883-001, appendix D.4 to D.7);
names of further codes, and what the driver prints without a class, those of NVIDIA's open driver (595,
src/common/nvswitch/interface/ctrl_dev_nvswitch.h and the calls of NVSWITCH_PRINT_SXID).

The guide has three classes: *non-fatal*; *fatal* for one port, where the GPU behind it logs XID 74 itself; and *always
fatal*, where GPUs and switches must all be reset. *Always fatal* makes a node unfit if the driver's own line says
`Fatal`: an uncoordinated reset of one GPU gives fatal port errors too. A few codes make a node unfit even if the line
does not say `Fatal`: after them GPU access hangs by the guide, or the switch itself has stopped.
"""

from __future__ import annotations

from slurm_robust.nodecheck.catalogue.xids import Act, FaultSource, Xid, XidGrade

FIRST_CODE = 10_000
"""The first number of switch errors in NVIDIA's driver, so that none is taken for an XID."""

_ALWAYS_FATAL = {
    12020: "egress sequence id error",
    22003: "link micro-controller halted",
    22011: "link micro-controller error",
    **dict.fromkeys((23001, 23010), "ingress buffer overflow"),
    **dict.fromkeys((23002, 23011), "ingress buffer underflow"),
    **dict.fromkeys((23003, 23012), "egress credit overflow"),
    **dict.fromkeys((23004, 23013), "egress credit underflow"),
    **dict.fromkeys((23005, 23014), "ingress packet burst error"),
    **dict.fromkeys((23006, 23015), "ingress packet sticky error"),
    **dict.fromkeys((23007, 23016), "bubbles at ingress"),
    23008: "ingress packet to an invalid destination",
    23009: "ingress packet parity error",
    23017: "ingress credit parity error",
}
_FATAL_PORT = {
    11001: "ingress invalid command",
    11009: "ingress invalid virtual channel",
    11013: "ingress header double-bit error",
    11018: "ingress routing table double-bit error",
    11019: "ingress LAN table double-bit error",
    11020: "ingress control parity error",
    12001: "egress crossbar overflow",
    12002: "egress packet route error",
    12022: "egress input double-bit error",
    12024: "egress output double-bit error",
    12025: "egress credit overflow",
    12026: "egress request to the wrong destination",
    12027: "egress response to the wrong destination",
    12030: "egress control parity error",
    12031: "egress credit parity error",
    12032: "egress packet type mismatch",
    14017: "transaction timeout",
    15001: "route buffer over- or underflow",
    15006: "route transfer over- or underflow",
    15009: "route table double-bit error",
    15010: "route parity error",
    15012: "route input double-bit error",
    15013: "route credit parity error",
    **dict.fromkeys((19047, 19048, 19054, 19056, 19058), "link transport double-bit error"),
    **dict.fromkeys((19060, 19061, 19063, 19064, 19066, 19067, 19069, 19070), "link memory double-bit error"),
    20034: "link fault (training state machine)",
    22012: "link micro-controller interrupt",
    **dict.fromkeys((24004, 24005, 24006), "source tracking double-bit error"),
    24007: "source tracking timeout",
}
_HANGS = {
    12028: "egress privileged access error",
    19084: "link heartbeat timeout",
}
"""D.4 calls them non-fatal: after 12028 the GPU's access hangs, and 19084 asks for a reset of all GPUs and switches."""
_STOPPED = {
    10006: "switch shut down for heat",
    10007: "switch does not answer",
    26006: "switch's own micro-controller halted",
}
"""The driver prints them without a class: the switch shuts down, every register reads 0xbadf…, its firmware is dead."""
_LOOK = {
    10001: "switch privileged access error",
    10002: "switch privileged access timeout",
    10003: "switch interrupt that nothing handled",
    10004: "switch is too hot",
    11004: "packet outside the fabric's partition",
    20012: "broken or inconsistent link",
    25010: "link training failed",
    26001: "switch's own micro-controller could not be reset",
    26002: "switch's own micro-controller could not be started",
    26003: "switch's own micro-controller takes no commands",
    26004: "switch's own micro-controller does not answer",
    26005: "switch's own micro-controller could not be shut down",
    26007: "switch's own micro-controller met an external error",
    26008: "watchdog of the switch's own micro-controller",
    27005: "faulty cable module",
    27006: "cable module did not start",
    27007: "cable module could not be recovered",
    28001: "cable module is too hot",
    28003: "cable module is hot enough to shut down",
    28005: "cable module shut down: its heat is no longer watched",
}
_HARMLESS = {
    10005: "switch cooled down again",
    28002: "cable module cooled down again",
    28004: "cable module cooled down below its limit again",
    **dict.fromkeys((11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011), "corrected single-bit errors"),
    **dict.fromkeys((19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071), "corrected single-bit errors"),
    **dict.fromkeys((24001, 24002, 24003), "corrected single-bit errors"),
    20001: "replayed transmission",
    20009: "short error rate of a receiver",
    22013: "link state request",
}


def _entries(names: dict[int, str], act: Act, grade: XidGrade) -> dict[int, Xid]:
    return {code: Xid(code, name, FaultSource.HARDWARE, act, grade) for code, name in names.items()}


CATALOGUE: dict[int, Xid] = {
    **_entries(_ALWAYS_FATAL, Act.RESET_FABRIC, XidGrade.FAIL),
    **_entries(_HANGS, Act.RESET_FABRIC, XidGrade.FAIL),
    **_entries(_STOPPED, Act.REBOOT, XidGrade.FAIL),
    **_entries(_FATAL_PORT, Act.LOOK, XidGrade.WARN),
    **_entries(_LOOK, Act.LOOK, XidGrade.WARN),
    **_entries(_HARMLESS, Act.NONE, XidGrade.NOTE),
}
"""Every code with a class in NVIDIA's documents, and some codes whose name says the class."""


def lookup(code: int) -> Xid:
    """Return the code's entry; the entry of an undocumented code does not blame any part."""
    return CATALOGUE.get(code) or Xid(code, "not in NVIDIA's guide", FaultSource.NONE, Act.LOOK, XidGrade.WARN)


def grade(code: int, *, fatal: bool | None, message: str = "") -> XidGrade:
    """Return the consequence of a line for the node.

    Args:
        code: The SXID.
        fatal: Whether the line calls itself fatal; None if it says neither `Fatal` nor the opposite.
        message: The rest of the line.
    """
    entry = lookup(code)
    if code in _HANGS or code in _STOPPED or (code == _TOO_HOT and _SHUTS_DOWN in message):
        return XidGrade.FAIL
    if fatal:
        # A line that calls itself fatal is told, even if the guide grades its code lower.
        return XidGrade.WARN if entry.grade is XidGrade.NOTE else entry.grade
    return entry.grade if code in _LOOK else XidGrade.NOTE


_TOO_HOT, _SHUTS_DOWN = 10004, "Shutting Down"
"""The open driver prints a shutdown that the board's power manager asks for under the code of a warning."""
