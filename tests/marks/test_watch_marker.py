"""The marker by which a node says in which mode its node watch is."""

from __future__ import annotations

import pytest

from slurm_robust.marks import blind_marker, fault_marker, watch_marker
from slurm_robust.marks.blind_marker import BlindMarker
from slurm_robust.marks.fault_marker import FaultMarker


def test_it_stands_beside_what_others_write() -> None:
    """Each of the three leaves the others' markers and a person's own text as they are."""
    extra = watch_marker.render("act", "rack 7")
    extra = blind_marker.render(BlindMarker(1, "no binding"), extra)
    extra = fault_marker.render(FaultMarker(2, "xid", (), "XID 79"), extra)
    extra = watch_marker.render("observe", extra)
    assert watch_marker.parse(extra) == "observe"
    assert extra.count("srobust-watch") == 1
    assert blind_marker.parse(extra) == BlindMarker(1, "no binding")
    assert fault_marker.parse(extra) is not None
    assert blind_marker.without(fault_marker.without(watch_marker.without(extra))) == "rack 7"


@pytest.mark.parametrize(
    "extra", ["", "rack 7", "[[srobust-watch v=2 mode=act]]", "[[srobust-watch mode=ACT]]", "[[srobust-watch mode="]
)
def test_what_is_none(extra: str) -> None:
    """No mode is read from what this version did not write; a whole one in its place replaces it."""
    assert watch_marker.parse(extra) == ""
    assert watch_marker.parse(watch_marker.render("act", extra)) == "act"
