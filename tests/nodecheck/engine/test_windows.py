from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine.counters import HOUR_S, Growth
from slurm_robust.nodecheck.engine.windows import growth, keep, per_hour, samples_of

DAY_S = 24 * HOUR_S


def looks(every_s: float, until_s: float, per_look: int = 1) -> tuple[dict[str, Any], int, float]:
    """What is kept after looks at equal distances, a counter that grows by the same each time, and the time."""
    kept: dict[str, Any] = {}
    at_s, count = 1.0, 0
    while at_s < until_s:
        kept = json.loads(json.dumps(keep(kept, {"a": count}, "boot", at_s, DAY_S)))
        at_s, count = at_s + every_s, count + per_look
    return kept, count, at_s


def test_the_window_is_an_hour_or_a_day_however_often_one_looks() -> None:
    """Looks every minute, every five minutes, every half hour: the same rate, and few samples."""
    for every_s in (60.0, 300.0, 1800.0):
        kept, count, at_s = looks(every_s, 3 * DAY_S)
        hour = growth(kept, {"a": count}, "boot", at_s, HOUR_S)["a"]
        day = growth(kept, {"a": count}, "boot", at_s, DAY_S)["a"]
        assert 0.7 * HOUR_S <= hour.window_s <= HOUR_S, every_s
        assert 0.7 * DAY_S <= day.window_s <= DAY_S, every_s
        assert abs(hour.per_hour - HOUR_S / every_s) < 0.01
        assert len(samples_of(kept, "boot")) <= 16


def test_a_look_after_a_long_time_is_compared_with_the_last_one() -> None:
    """Nothing lies in the window: what there is, is longer ago."""
    kept = keep({}, {"a": 5}, "boot", 10.0, DAY_S)
    assert growth(kept, {"a": 9}, "boot", 10.0 + 3 * DAY_S, HOUR_S)["a"] == Growth(4, 3 * DAY_S)


def test_a_reset_on_the_way_starts_anew() -> None:
    """The counter fell from 9 to 1: only what came since then counts."""
    kept: dict[str, Any] = {}
    for at_s, count in ((1.0, 7), (700.0, 9), (1400.0, 1), (2100.0, 3)):
        kept = keep(kept, {"a": count}, "boot", at_s, DAY_S)
    assert growth(kept, {"a": 4}, "boot", 2800.0, HOUR_S)["a"] == Growth(3, 1400.0)


def test_another_boot_and_the_future_say_nothing() -> None:
    """There is no look before to compare with, and none of them is kept."""
    kept = keep({}, {"a": 1}, "boot", 100.0, DAY_S)
    assert growth(kept, {"a": 2}, "other", 200.0, HOUR_S) == {}
    assert growth(kept, {"a": 2}, "boot", 50.0, HOUR_S) == {}
    assert len(keep(kept, {"a": 2}, "other", 200.0, DAY_S)["samples"]) == 1
    assert len(keep(kept, {"a": 2}, "boot", 50.0, DAY_S)["samples"]) == 1


def test_one_event_in_a_second_is_one_an_hour() -> None:
    """A short time between two looks makes no high rate; a long one divides."""
    assert per_hour(Growth(1, 1.0)) == 1.0
    assert per_hour(Growth(10, 2 * HOUR_S)) == 5.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "at_s", "counts"]), inner),
    max_leaves=8,
)
SAMPLE = st.fixed_dictionaries({}, optional={"boot_id": st.just("b"), "at_s": JSON | st.floats(0, 9), "counts": JSON})


@given(st.dictionaries(st.just("samples"), JSON | st.lists(SAMPLE, max_size=5)))
def test_whatever_was_kept_no_crash(kept: dict[str, Any]) -> None:
    """The state file may hold anything."""
    assert all(g.delta >= 0 and g.window_s > 0 for g in growth(kept, {"a": 9}, "b", 10.0, 60.0).values())
    assert keep(kept, {"a": 9}, "b", 10.0, 60.0)["samples"][-1]["counts"] == {"a": 9}
