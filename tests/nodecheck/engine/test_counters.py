from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine import counters
from slurm_robust.nodecheck.engine.counters import Growth, growth, keep


def test_growth_is_the_difference_and_its_rate() -> None:
    """Ten more in half an hour are twenty an hour, however many there were."""
    kept = keep({"a": 1000, "b": 5}, "boot", 100.0)
    found = growth(kept, {"a": 1010, "b": 5}, "boot", 1900.0)
    assert found == {"a": Growth(10, 1800.0), "b": Growth(0, 1800.0)}
    assert found["a"].per_hour == 20.0


def test_a_counter_that_went_backwards_says_nothing() -> None:
    """It was reset; what came since cannot be told apart from what was there."""
    assert growth(keep({"a": 10}, "boot", 0.0), {"a": 3}, "boot", 60.0) == {}


def test_another_boot_a_new_counter_and_no_time_say_nothing() -> None:
    """There is no look before to compare with."""
    kept = keep({"a": 1}, "boot", 60.0)
    assert growth(kept, {"a": 9}, "other boot", 120.0) == {}
    assert growth(kept, {"b": 9}, "boot", 120.0) == {}
    assert growth(kept, {"a": 9}, "boot", 60.0) == {}
    assert growth({}, {"a": 9}, "boot", 60.0) == {}


@given(
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())),
    st.dictionaries(st.text(), st.integers()),
)
def test_whatever_was_kept_no_crash_and_no_negative_growth(kept: dict[str, object], counts: dict[str, int]) -> None:
    """The state file may hold anything."""
    for window in (kept, {"boot_id": "b", "at_s": 1.0, "counts": kept}):
        found = growth(window, counts, "b", 2.0)
        assert all(g.delta >= 0 and g.window_s > 0 for g in found.values())


def test_what_is_kept_is_json_and_time_moves_on() -> None:
    """It survives the state file."""
    kept = json.loads(json.dumps(keep({"a": 1}, "boot", counters.uptime_s())))
    later = growth(kept, {"a": 2}, "boot", counters.uptime_s() + 1)
    assert later["a"].delta == 1
