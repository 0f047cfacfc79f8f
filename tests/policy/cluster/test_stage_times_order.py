"""The seconds of each stage: from its two stamps, and nothing if they do not add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.stage_times import STAGES, back_s, stage_seconds

Stamps = st.dictionaries(st.sampled_from(STAGES), st.floats(0, 1e6))


def test_each_stage_begins_with_the_latest_stamp_before_it() -> None:
    """Missing stamps are passed over; one that goes back gives no time, and moves nothing."""
    times = {"suspected": 10.0, "decided": 12.0, "accepted": 12.5, "stopped": 12.0, "running": 20.0}
    assert stage_seconds(times) == pytest.approx({"decided": 2.0, "accepted": 0.5, "running": 7.5})


def test_the_way_back_begins_with_the_fault() -> None:
    """Else with the suspicion; without a new step there is none."""
    assert back_s({"fault": 5.0, "suspected": 10.0, "first_new_step": 60.0}) == 55.0
    assert back_s({"suspected": 10.0, "first_new_step": 60.0}) == 50.0
    assert back_s({"suspected": 10.0}) is None
    assert back_s({"suspected": 70.0, "first_new_step": 60.0}) is None


@given(Stamps)
def test_stages_never_take_negative_time_nor_more_than_the_whole(times: dict[str, float]) -> None:
    """Whatever the stamps are."""
    found = stage_seconds(times)
    known = [at_s for at_s in times.values() if at_s > 0]
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) <= (max(known) - min(known) if known else 0.0) + 1e-6
