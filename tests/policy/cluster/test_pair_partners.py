"""Who can meet a suspect, and which members of a standby pool meet next."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import Config
from slurm_robust.core.model import JobRef
from slurm_robust.policy.cluster.node_states import Cluster
from slurm_robust.policy.cluster.pair_partners import PARTNER_WAIT_S, company, in_spare_pools, pairs_due
from slurm_robust.policy.cluster.standby_health import StandbyCheck
from slurm_robust.policy.cluster.tested_pairs import Company
from slurm_robust.slurm.client import Job, Node, Reservation

NOW_S, DAY_S = 1_000_000.0, 86400.0
NODES = {f"n{i}": Node(f"n{i}", "IDLE", partitions=("main",)) for i in range(1, 6)}
POOL = Reservation("srobust-standby-x", "n[4-5]", ("root",), frozenset(), 0, int(NOW_S) + 1000, "ACTIVE")
PASSED = {n: StandbyCheck(n, passed_at_s=NOW_S - 10, met_at_s=NOW_S - 5) for n in ("n4", "n5")}


def found(
    *more: Reservation,
    jobs: tuple[Job, ...] = (),
    nodes: dict[str, Node] | None = None,
    unchecked: frozenset[str] = frozenset(),
    taken: frozenset[str] = frozenset(),
    known: dict[str, StandbyCheck] | None = None,
) -> Company:
    """Who can meet n1."""
    cluster = Cluster(NODES | (nodes or {}), jobs, (POOL, *more), unchecked)
    rows = PASSED if known is None else known
    return company(NODES["n1"], cluster, rows, taken=taken, until_s=NOW_S + 900, config=Config())


def held(name: str, nodes: str, start_at_s: int = 0) -> Reservation:
    """A reservation."""
    return replace(POOL, name=name, nodes=nodes, start_at_s=start_at_s)


def test_standby_nodes_and_free_nodes_are_told_apart() -> None:
    """Never the suspect itself."""
    assert found() == Company(("n4", "n5"), ("n3", "n2"))


@pytest.mark.parametrize(
    "without_n4",
    [
        found(unchecked=frozenset(("n4",))),
        found(known={"n5": PASSED["n5"]}),
        found(known={**PASSED, "n4": replace(PASSED["n4"], job_id=7)}),
        found(held("srobust-seat-9", "n4")),
        found(held("srobust-quarantine-n4", "n4")),
        found(taken=frozenset(("n4",))),
        found(jobs=(Job(JobRef(1), "RUNNING", "ann", 1, "main", nodes=("n4",)),)),
        found(nodes={"n4": replace(NODES["n4"], gres="gpu:8")}),
        found(nodes={"n4": replace(NODES["n4"], flags=frozenset(("DRAIN",)))}),
    ],
    ids=["unchecked", "unknown", "at check", "seat", "quarantine", "in a test", "job", "other class", "drained"],
)
def test_a_standby_node_that_is_not_ready_meets_nobody(without_n4: Company) -> None:
    """Whatever the reason is."""
    assert without_n4.standby == ("n5",)


def test_half_of_a_pool_is_left_to_the_jobs() -> None:
    """In a pool of two, one meets suspects at a time; a node outside has nothing to do with it."""
    pools = (POOL, held("srobust-standby-y", "n[6-9]"), held("srobust-standby-z", "n10"), held("other", "n11"))
    spare = partial(in_spare_pools, pools, "srobust-standby")
    assert spare(frozenset(("n3", "n6"))) == {"n4", "n5", "n6", "n7", "n8", "n9", "n10"}
    assert spare(frozenset(("n4", "n6", "n7"))) == {"n10"}
    assert spare(frozenset(("n10",))) == {"n4", "n5", "n6", "n7", "n8", "n9"}


def test_nodes_that_somebody_reserved_are_not_taken() -> None:
    """Also not shortly before; one that begins later finds its nodes free again."""
    assert found(held("maintenance", "n2", int(NOW_S) + 900)).idle == ("n3",)
    assert found(held("maintenance", "n2", int(NOW_S) + 901)).idle == ("n3", "n2")


def test_nodes_that_slurm_keeps_for_a_job_are_the_last_choice() -> None:
    """A job that waits for many nodes is not held up while another node is free."""
    assert found(nodes={"n3": replace(NODES["n3"], flags=frozenset(("PLANNED",)))}).idle == ("n2", "n3")


def members(count: int) -> list[Node]:
    """Of a pool."""
    return [NODES[f"n{i}"] for i in range(1, count + 1)]


def row(name: str, met_at_s: float = 0.0, passed_at_s: float = NOW_S - 10) -> StandbyCheck:
    """A member that has passed its full check."""
    return StandbyCheck(name, passed_at_s=passed_at_s, met_at_s=met_at_s)


def test_a_new_member_meets_a_proven_one_first() -> None:
    """Before another new one; and who failed with it comes last."""
    known = {"n1": row("n1"), "n2": row("n2", passed_at_s=NOW_S - 5), "n3": row("n3", met_at_s=5.0)}
    due = pairs_due(members(3), known, {}, busy=frozenset(), now_s=NOW_S, max_age_s=DAY_S)
    assert (due.unmet, due.pair) == (("n1", "n2"), ("n1", "n3"))
    due = pairs_due(members(3), known, {"n1": frozenset(("n3",))}, busy=frozenset(), now_s=NOW_S, max_age_s=DAY_S)
    assert due.pair == ("n1", "n2")
    due = pairs_due(members(3), known, {}, busy=frozenset(("n2", "n3")), now_s=NOW_S, max_age_s=DAY_S)
    assert (due.unmet, due.pair, due.alone) == (("n1", "n2"), None, {})
    assert pairs_due(members(3), known, {}, busy=frozenset(), now_s=NOW_S, max_age_s=0.0).unmet == ()


def test_who_failed_with_another_never_counts_alone() -> None:
    """However long it waits; anybody else does after half an hour."""
    known = {n: row(n, passed_at_s=NOW_S - PARTNER_WAIT_S - 1) for n in ("n1", "n2")}
    failed = {"n1": frozenset(("n2",))}
    due = pairs_due(members(2), known, failed, busy=frozenset(("n1", "n2")), now_s=NOW_S, max_age_s=DAY_S)
    assert set(due.alone) == {"n2"}
    assert due.unmet == ("n1",)


rows = st.builds(
    StandbyCheck,
    st.sampled_from(sorted(NODES)),
    job_id=st.one_of(st.none(), st.integers(1, 9)),
    passed_at_s=st.sampled_from([0.0, NOW_S - 2 * DAY_S, NOW_S - 10]),
    met_at_s=st.sampled_from([0.0, NOW_S - 5]),
)
sets = st.frozensets(st.sampled_from(sorted(NODES)))


@given(st.lists(rows), sets, st.dictionaries(st.sampled_from(sorted(NODES)), sets), st.integers(0, 5))
def test_only_two_free_members_that_passed_their_check_meet(
    checks: list[StandbyCheck], busy: frozenset[str], failed: dict[str, frozenset[str]], count: int
) -> None:
    """And the first of them needs it."""
    known = {c.node: c for c in checks}
    names = {n.name for n in members(count)}
    due = pairs_due(members(count), known, failed, busy=busy, now_s=NOW_S, max_age_s=DAY_S)
    assert not set(due.unmet) & set(due.alone)
    for name in (*due.unmet, *due.alone, *(due.pair or ())):
        assert name in names
        assert known[name].passed_at_s == NOW_S - 10
    if due.pair:
        new, partner = due.pair
        assert new != partner
        assert new in due.unmet
        assert not {new, partner} & busy
        assert known[new].job_id is known[partner].job_id is None
