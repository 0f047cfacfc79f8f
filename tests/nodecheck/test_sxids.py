from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.catalogue import sxids, xids
from slurm_robust.nodecheck.catalogue.xids import Act, Grade


def test_switch_codes_are_never_xids() -> None:
    """The two catalogues do not meet."""
    assert min(sxids.CATALOGUE) >= sxids.FIRST_CODE > max(xids.CATALOGUE)


def test_only_what_takes_the_whole_fabric_down_fails() -> None:
    """The always-fatal class, and only where the line says fatal."""
    failing = {code for code in sxids.CATALOGUE if sxids.grade(code, fatal=True) is Grade.FAIL}
    assert failing == {12020, 22003, 22011, *range(23001, 23018)}
    assert all(sxids.lookup(code).act is Act.RESET_FABRIC for code in failing)
    assert not any(sxids.grade(code, fatal=False) is Grade.FAIL for code in sxids.CATALOGUE)


@given(st.integers(), st.booleans())
def test_every_code_has_a_grade_and_unknown_ones_accuse_nobody(code: int, fatal: bool) -> None:
    """A code that is not documented warns where it says fatal, else it is a note."""
    assert sxids.lookup(code).code == code
    if code not in sxids.CATALOGUE:
        assert sxids.grade(code, fatal=fatal) is (Grade.WARN if fatal else Grade.NOTE)
