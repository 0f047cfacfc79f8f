"""Which room a node is in, and the standby pools."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.site import Config, StandbyConfig
from slurm_robust.core.model import JobRef
from slurm_robust.policy.cluster.node_states import (
    Cluster,
    HardwareClass,
    PoolRules,
    candidates,
    class_of,
    foreign,
    idle,
    lost_gres,
    plan_pools,
)
from slurm_robust.slurm.client import Job, Node, Reservation

NODES = {f"n{i}": Node(f"n{i}", "IDLE", partitions=("main", "all"), gres="gpu:a100:8(S:0-1)") for i in range(1, 7)}


def pools(nodes: dict[str, Node], *reservations: Reservation, size: int = 2) -> dict[str, tuple[str, ...]]:
    """Pool name → members."""
    made = plan_pools(nodes, reservations, PoolRules(StandbyConfig(size=size), "srobust-seat"))
    return {p.name: p.nodes for p in made}


def test_foreign() -> None:
    """A node that is out by anybody's words is theirs, except by ours and slurmctld's own."""
    node = replace(NODES["n1"], flags=frozenset(("DRAIN",)))
    assert [foreign(replace(node, reason=r)) for r in ("", "srobust: x", "Not responding", "fan", " SROBUST: x")] == [
        False,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("state", "flag", "theirs"),
    [
        ("IDLE", "DRAIN", True),
        ("MIXED", "DRAIN", True),
        ("DOWN", "", True),
        ("ALLOCATED", "FAIL", True),
        ("IDLE", "", False),
        ("MIXED", "", False),
        ("IDLE", "NOT_RESPONDING", False),
    ],
)
def test_a_reason_is_somebodys_only_while_the_node_is_out(state: str, flag: str, theirs: bool) -> None:
    """Slurm 24.11 keeps the text when a node is resumed: what a person said of its last fault holds nothing up then."""
    flags = frozenset((flag,)) if flag else frozenset[str]()
    assert foreign(replace(NODES["n1"], state=state, flags=flags, reason="fan")) is theirs


def test_class_ignores_sockets_and_names_fit_slurm() -> None:
    """Sockets do not make another class; the name is short, and different for different hardware."""
    node = NODES["n1"]
    assert class_of(node, "main") == class_of(replace(node, gres="gpu:a100:8"), "main")
    slugs = {HardwareClass("main", g, f).slug for g in ("", "gpu:8", "gpu:4") for f in ((), ("ib",))}
    assert len(slugs) == 6
    assert all(len(s) <= 40 and s.replace("-", "").isalnum() for s in slugs)


def test_pool_takes_idle_nodes_and_keeps_its_members() -> None:
    """The highest idle names first; members stay where they are; the drained are replaced, those at work let go."""
    (name,) = pools(NODES)
    assert pools(NODES)[name] == ("n5", "n6")
    there = Reservation(name, "n[1-2]")
    assert pools(NODES, there)[name] == ("n1", "n2")
    drained = {**NODES, "n2": replace(NODES["n2"], flags=frozenset(("DRAIN",)))}
    assert pools(drained, there)[name] == ("n1", "n6")
    busy = {**NODES, "n1": replace(NODES["n1"], state="ALLOCATED")}
    assert pools(busy, there)[name] == ("n2", "n6")
    # In a seat a member is about to work: it stays until it does.
    assert pools(busy, there, Reservation("srobust-seat-7", "n1"))[name] == ("n1", "n2")
    assert pools(NODES, there, size=0)[name] == ()


@given(
    st.dictionaries(st.sampled_from(sorted(NODES)), st.sampled_from(["ALLOCATED", "DRAIN", "team", "IDLE"])),
    st.integers(0, 6),
    st.sets(st.sampled_from(sorted(NODES))),
)
def test_pools_never_take_what_is_not_free(states: dict[str, str], size: int, members: set[str]) -> None:
    """No node of others' reservations, no busy and no drained one, never more than wanted."""
    nodes = dict(NODES)
    for name, state in states.items():
        flags = frozenset(("DRAIN",)) if state == "DRAIN" else frozenset()
        nodes[name] = replace(nodes[name], state="ALLOCATED" if state == "ALLOCATED" else "IDLE", flags=flags)
    team = Reservation("team", ",".join(n for n, s in states.items() if s == "team"))
    (name,) = pools(NODES, size=1)
    there = Reservation(name, ",".join(sorted(members)))
    for chosen in pools(nodes, team, there, size=size).values():
        assert len(chosen) <= size
        assert all(states.get(n) not in ("ALLOCATED", "DRAIN") for n in chosen)
        assert all(states.get(n) != "team" or n in members for n in chosen)


def test_a_node_whose_gres_slurm_lost_is_no_place_to_go() -> None:
    """Idle, and counted as used: no job that needs it would ever start there; while a job runs, it is the job's."""
    leaking = Node("n1", "IDLE", partitions=("main",), gres="gpu:4", gres_used=4)
    assert not idle(leaking)
    assert idle(replace(leaking, gres_used=0))
    busy = replace(leaking, name="n2", state="MIXED")
    ending = replace(leaking, name="n3", flags=frozenset({"COMPLETING"}))
    assert lost_gres([leaking, busy, ending, replace(leaking, name="n4", gres_used=0)]) == ("n1",)


@pytest.mark.parametrize(
    ("asked", "lost", "found"),
    [
        ("main", ["n1", "n2"], ["n5", "n6"]),
        ("main,all", ["n1", "n2"], ["n5", "n6"]),
        ("other,main", ["n1", "n2"], ["n5", "n6"]),
        ("other,all", ["n1", "n4"], ["n2", "n3", "n5", "n6"]),
        ("other,all", ["n4"], ["n3"]),
    ],
)
def test_a_job_that_waits_for_several_partitions_gets_nodes_of_one(
    asked: str, lost: list[str], found: list[str]
) -> None:
    """Slurm shows all that it may run in as soon as it waits, and starts it in one of them only."""
    nodes = {**NODES, **{n: replace(NODES[n], partitions=("other", "all")) for n in ("n3", "n4")}}
    job = Job(JobRef(1), "PENDING", "ann", 1000, asked, num_nodes=2, exclude=",".join(lost))
    taken = replace(job, ref=JobRef(2), state="RUNNING", nodes=("n2",) if "main" in asked else ())
    assert candidates(job, lost, Cluster(nodes, (taken,), ()), Config(), 1e9) == found
