"""Which standby nodes are checked next: those that nobody knows, while half of a pool stays ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.standby_health import StandbyCheck, due, wants_check
from slurm_robust.slurm.client import Node

NOW_S, DAY_S = 1_000_000.0, 86400.0
NODES = [Node(f"n{i}", "IDLE") for i in range(1, 5)]


@pytest.mark.parametrize(
    ("known", "boot_at_s", "wants"),
    [
        (None, 0, True),
        (StandbyCheck("n1"), 0, True),
        (StandbyCheck("n1", passed_at_s=NOW_S - 60), 0, False),
        (StandbyCheck("n1", passed_at_s=NOW_S - DAY_S - 1), 0, True),
        (StandbyCheck("n1", passed_at_s=NOW_S - 60), int(NOW_S) - 30, True),
        (StandbyCheck("n1", passed_at_s=NOW_S - 60), int(NOW_S) - 90, False),
        (StandbyCheck("n1", passed_at_s=NOW_S + 3600), 0, True),
    ],
)
def test_a_member_wants_a_check(known: StandbyCheck | None, boot_at_s: int, wants: bool) -> None:
    """Never passed, too long ago, booted since, or passed in the future of a clock that was set back."""
    assert wants_check(replace(NODES[0], boot_at_s=boot_at_s), known, NOW_S, DAY_S) is wants


def test_half_of_a_pool_stays_ready() -> None:
    """Two of four at once; a pool of one is checked all the same; the never checked come first."""
    old = {"n1": StandbyCheck("n1", passed_at_s=1.0)}
    found = due(NODES, old, busy=frozenset(), now_s=NOW_S, max_age_s=DAY_S)
    assert found.unchecked == ("n1", "n2", "n3", "n4")
    assert found.begin == ("n2", "n3")
    assert due(NODES[:1], {}, busy=frozenset(), now_s=NOW_S, max_age_s=DAY_S).begin == ("n1",)
    assert due(NODES, {}, busy=frozenset(), now_s=NOW_S, max_age_s=0.0) == due(
        [], {}, busy=frozenset(), now_s=0, max_age_s=1
    )


rows = st.builds(
    StandbyCheck,
    st.sampled_from([n.name for n in NODES]),
    job_id=st.one_of(st.none(), st.integers(1, 9)),
    passed_at_s=st.floats(0, NOW_S),
    next_try_at_s=st.floats(0, 2 * NOW_S),
)


@given(st.lists(rows), st.sets(st.sampled_from(["n1", "n2", "n3", "n4"])))
def test_nobody_who_is_busy_waiting_or_fit_is_checked(checks: list[StandbyCheck], busy: set[str]) -> None:
    """And never more than half of the pool at once."""
    known = {c.node: c for c in checks}
    found = due(NODES, known, busy=frozenset(busy), now_s=NOW_S, max_age_s=DAY_S)
    under_way = [c for c in known.values() if c.job_id is not None]
    assert set(found.begin) <= set(found.unchecked) - busy
    assert not {c.node for c in under_way} & set(found.begin)
    assert not found.begin or len(found.begin) + len(under_way) <= 2
    assert all(known[n].next_try_at_s <= NOW_S for n in found.begin if n in known)
