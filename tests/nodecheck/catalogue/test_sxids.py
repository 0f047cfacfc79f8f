from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.catalogue import sxids, xids
from slurm_robust.nodecheck.catalogue.xids import Act, XidGrade


def test_switch_codes_are_never_xids() -> None:
    """The two catalogues do not meet."""
    assert min(sxids.CATALOGUE) >= sxids.FIRST_CODE > max(xids.CATALOGUE)


def test_only_what_takes_the_whole_fabric_down_fails() -> None:
    """The always-fatal class where the line says fatal; whatever it says, what stops a switch or hangs GPU access."""
    always = {10006, 10007, 12028, 19084, 26006}
    failing = {code for code in sxids.CATALOGUE if sxids.grade(code, fatal=True) is XidGrade.FAIL}
    assert failing == {12020, 22003, 22011, *range(23001, 23018)} | always
    assert all(sxids.lookup(code).act in (Act.RESET_FABRIC, Act.REBOOT) for code in failing)
    for fatal in (False, None):
        assert {code for code in sxids.CATALOGUE if sxids.grade(code, fatal=fatal) is XidGrade.FAIL} == always


def test_every_entry_of_the_look_class_is_told_without_a_severity() -> None:
    """What the driver prints without a class is no note, except that something got well again."""
    for code in (10004, 25010, 26004, 27005, 28001, 28003):
        assert sxids.grade(code, fatal=None) is XidGrade.WARN
    for code in (10005, 28002, 28004):
        assert sxids.grade(code, fatal=None) is XidGrade.NOTE


@given(st.integers(), st.booleans())
def test_every_code_has_a_grade_and_unknown_ones_accuse_nobody(code: int, fatal: bool) -> None:
    """A code that is not documented warns where it says fatal, else it is a note."""
    assert sxids.lookup(code).code == code
    if code not in sxids.CATALOGUE:
        assert sxids.grade(code, fatal=fatal) is (XidGrade.WARN if fatal else XidGrade.NOTE)
        assert sxids.grade(code, fatal=None) is XidGrade.NOTE
