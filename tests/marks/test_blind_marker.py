"""The blind marker: what is written is read again, beside the fault marker and a person's text, which stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks import fault_marker
from slurm_robust.marks.blind_marker import MAX_AGE_S, BlindMarker, believed, marked, parse, render, without
from slurm_robust.marks.fault_marker import FaultMarker

MARKER = BlindMarker(1_790_000_000, "the package nvidia-ml-py is not installed")
TEXT = "[[srobust-blind v=1 at=1790000000 : the package nvidia-ml-py is not installed]]"
FAULT = fault_marker.render(FaultMarker(1_790_000_001, "xid", (0,), "XID 79"))


def test_the_marker_as_it_stands_in_slurm() -> None:
    """Written and read; it takes the place of an earlier one."""
    assert render(MARKER) == TEXT
    assert parse(TEXT) == MARKER
    assert render(MARKER, "rack 7 [[srobust-blind v=1 at=1 : old]]") == f"rack 7 {TEXT}"
    assert without(f"rack 7 {TEXT}") == "rack 7"


def test_both_markers_live_side_by_side() -> None:
    """Neither removes the other, nor is read as the other."""
    both = render(MARKER, FAULT)
    assert (parse(both), fault_marker.parse(both)) == (MARKER, fault_marker.parse(FAULT))
    assert fault_marker.without(both) == TEXT
    assert without(both) == FAULT
    assert not fault_marker.marked(TEXT)
    assert not marked(FAULT)
    assert parse(fault_marker.render(FaultMarker(2, "xid", (), "XID 48"), both)) == MARKER


@given(st.text(), st.text(), st.integers())
def test_nothing_in_the_field_breaks_the_reader(extra: str, reason: str, at_s: int) -> None:
    """Whatever stands there; what is written is one printable line that is read again, once."""
    parse(extra)
    written = render(BlindMarker(at_s, reason), extra)
    assert written.isprintable()
    assert marked(written)
    assert parse(written) is not None
    assert written.count("[[srobust-blind v=1 at=") >= 1
    assert render(BlindMarker(at_s, reason), written) == written


def test_of_an_earlier_boot_or_too_old_it_does_not_hold() -> None:
    """A node that was installed anew has no state of its own by which it could remove it."""
    assert believed(MARKER, MARKER.at_s + 60.0, MARKER.at_s - 600.0)
    assert not believed(MARKER, MARKER.at_s + 600.0, MARKER.at_s + 300.0)
    assert not believed(MARKER, MARKER.at_s + MAX_AGE_S + 1, 0.0)
