from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.catalogue import xids
from slurm_robust.nodecheck.catalogue.xids import Act, FaultSource, XidGrade

APPLICATION = [8, 11, 13, 25, 31, 32, 37, 39, 40, 41, 43, 45, 60, 68, 69, 70, 80, 82, 96, 108, 126, 135, 137, 139]
BROKEN = [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 158]


@pytest.mark.parametrize("code", APPLICATION)
def test_what_an_application_can_do_is_never_a_fault_of_the_node(code: int) -> None:
    """Application-class codes are notes, whatever stands in their message."""
    assert xids.lookup(code).fault is FaultSource.APPLICATION
    assert xids.grade(code, "fatal error, reset required") is XidGrade.NOTE


@pytest.mark.parametrize("code", BROKEN)
def test_documented_resets_reboots_and_repairs_make_a_node_unfit(code: int) -> None:
    """Codes whose documented action is a reset or more, and that no application causes."""
    entry = xids.lookup(code)
    assert xids.grade(code, "") is XidGrade.FAIL
    assert entry.act in (Act.RESET, Act.REBOOT, Act.REPAIR)
    assert entry.fault in (FaultSource.HARDWARE, FaultSource.DRIVER)


def test_no_entry_of_the_catalogue_fails_an_application() -> None:
    """The rule of the module holds for each entry, not only for those named here."""
    wrong = [x.code for x in xids.CATALOGUE.values() if x.grade is XidGrade.FAIL and x.fault is FaultSource.APPLICATION]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "grade"), [(63, XidGrade.NOTE), (92, XidGrade.WARN), (94, XidGrade.WARN), (109, XidGrade.WARN)]
)
def test_repaired_contained_or_ambiguous_memory_errors_do_not_drain(code: int, grade: XidGrade) -> None:
    """A row remapped, a high rate of corrected errors, a contained error, a context switch timeout: told at most."""
    assert xids.grade(code, "") is grade


@pytest.mark.parametrize(
    ("message", "grade"),
    [
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", XidGrade.NOTE),
        ("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", XidGrade.NOTE),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", XidGrade.FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", XidGrade.FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", XidGrade.FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", XidGrade.FAIL),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", XidGrade.WARN),
        ("something of a newer driver", XidGrade.WARN),
    ],
)
def test_154_is_what_its_words_say(message: str, grade: XidGrade) -> None:
    """`changed to None` is a recovery and no fault (gcm took it for one); a wanted reset or reboot is a fault."""
    assert xids.grade(154, message) is grade


@pytest.mark.parametrize(
    ("message", "grade"),
    [
        ("RLW_REMAP Nonfatal XC1 i0 Link 07 (0x00000004 0x00000004 0x0)", XidGrade.WARN),
        ("NETIR_LINK_EVT Non-fatal XC0 i0 Link 08 (0x0)", XidGrade.WARN),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x0)", XidGrade.FAIL),
        ("", XidGrade.WARN),
    ],
)
def test_nvlink_5_errors_fail_only_where_they_call_themselves_fatal(message: str, grade: XidGrade) -> None:
    """144–150 carry their severity in the message."""
    assert xids.grade(149, message) is grade


@pytest.mark.parametrize(
    ("registers", "grade"),
    [
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.FAIL),  # the link's hardware
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.NOTE),
        ("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.NOTE),
        ("0x100002, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.WARN),  # by something else
        ("0x100003, 0x0, 0x0, 0x30000, 0x0, 0x0, 0x0", XidGrade.WARN),
        ("0x100002, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", XidGrade.FAIL),  # the fabric must be reset
        ("0x0, 0x0, 0x0, 0x0, 0x900000, 0x0, 0x0", XidGrade.WARN),  # corrected errors above a threshold
        ("0x0, 0x0, 0x0, 0x0, 0x980000, 0x0, 0x0", XidGrade.FAIL),  # uncorrected ones
        ("0x1, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0", XidGrade.FAIL),
        ("0x1, 0x4, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.FAIL),  # bits that nobody documents
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", XidGrade.FAIL),  # nothing is said
        ("0x1, 0x0", XidGrade.FAIL),
    ],
)
def test_74_is_what_its_registers_say(registers: str, grade: XidGrade) -> None:
    """NVIDIA's workflow: some bits may be ignored, some follow from another fault, the rest is the link's own."""
    message = f"pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6({registers})"
    assert xids.grade(74, message) is grade


@pytest.mark.parametrize(
    ("registers", "grade"),
    [
        ("0x026005c6", XidGrade.WARN),
        ("0x02800011", XidGrade.WARN),
        ("0x004505c6", XidGrade.FAIL),
        ("0x02a00011", XidGrade.FAIL),
    ],
)
def test_a_link_that_software_took_down_is_told_only(registers: str, grade: XidGrade) -> None:
    """Two of the reasons for which 149 says that a link went down need nothing, as its table has it."""
    message = f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 ({registers} 0x00000000 0x00000000 0x0 0x0 0x0 0x0)"
    assert xids.grade(149, message) is grade


@pytest.mark.parametrize(
    ("message", "grade"),
    [
        ("RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000040 0x00000000)", XidGrade.FAIL),
        ("RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000018 0x00000000)", XidGrade.FAIL),
        ("RLW_TAGSTATE Nonfatal XC0 i0 Link 00 (0x00000008 0x00020000 0x00000000)", XidGrade.FAIL),
        ("RLW_RSPCOL Fatal XC0 i0 Link 00 (0x00000005 0x00000002 0x00000000)", XidGrade.FAIL),
        ("RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001 0x00000008)", XidGrade.FAIL),
        ("RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)", XidGrade.WARN),
        ("RLW_REMAP Nonfatal XC1 i0 Link 07 (0x00000004 0x00000004 0x0)", XidGrade.WARN),
        ("RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x00000000)", XidGrade.WARN),
        ("RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x00000006 0x00000001 0x00000000)", XidGrade.WARN),
        ("RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100 0x00000000)", XidGrade.NOTE),
        ("RLW_TAGSTATE Nonfatal XC0 i0 Link 00 (0x00000008 0x00010001 0x00000000)", XidGrade.NOTE),
        ("RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000104 0x00000000)", XidGrade.WARN),
        ("RLW_NEW Nonfatal XC0 i0 Link 00 (0x00000004 0x00000040 0x00000000)", XidGrade.WARN),
        ("RLW_REMAP Nonfatal", XidGrade.WARN),
    ],
)
def test_145_is_what_its_error_status_says(message: str, grade: XidGrade) -> None:
    """Hardware faults fail though the line says `Nonfatal`; corrected ones are notes; what software did warns."""
    assert xids.grade(145, message) is grade


@pytest.mark.parametrize(
    ("driver", "grade"), [(535, XidGrade.FAIL), (549, XidGrade.FAIL), (550, XidGrade.WARN), (0, XidGrade.WARN)]
)
def test_109_fails_where_no_154_can_follow(driver: int, grade: XidGrade) -> None:
    """Newer drivers say by themselves whether the GPU needs its reset; no other code changes with the driver."""
    assert xids.grade(109, "pid=4711, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT", driver) is grade
    assert xids.grade(31, "", driver) is XidGrade.NOTE


def test_what_was_corrected_is_no_fault() -> None:
    """121: corrected errors between Grace and its GPU, which have no consequence."""
    assert xids.grade(121, "") is XidGrade.NOTE


def test_every_code_up_to_the_catalogue_s_last_has_a_name() -> None:
    """No gap: a code without an entry would warn as `not in NVIDIA's catalogue`."""
    assert sorted(xids.CATALOGUE) == list(range(1, 173))


def test_codes_that_drivers_no_longer_log_accuse_nobody() -> None:
    """What only older drivers logged, and what belongs to displays, never makes a node unfit."""
    for code in (1, 16, 20, 30, 56, 81, 90, 118, 125, 138, 152):
        assert xids.grade(code, "fatal") is not XidGrade.FAIL


@given(st.integers(0, 9999), st.text(max_size=200))
def test_every_code_has_an_entry_and_unknown_ones_accuse_nobody(code: int, message: str) -> None:
    """A code that is not documented warns, and never makes a node unfit."""
    assert xids.lookup(code).code == code
    if code not in xids.CATALOGUE:
        assert xids.grade(code, message) is XidGrade.WARN
