"""node_faults: a storm is told by a window over the times, as by comparing each fault with all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from situations import NODES

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.policy.job.eviction import max_evictions
from slurm_robust.policy.job.node_faults import AT_ONCE_S, FaultMove, weigh


def fault(node: str, urgency: str, at_s: float, kind: str) -> Signal:
    """A fault that a node reports."""
    evidence = {"kind": kind, "urgency": urgency, "gpus": (), "port": "", "code": None}
    return Signal(SignalKind.NODE_FAULT, at_s, "kmsg", f"a {kind} fault", node, evidence=evidence)


URGENCIES = st.sampled_from(["now", "if_repeated", "at_next_checkpoint"])
TIMES = st.integers(0, 20).map(lambda tenth: tenth * AT_ONCE_S / 4)
KINDS = st.sampled_from(["xid", "link"])
FAULTS = st.builds(fault, st.sampled_from(NODES), URGENCIES, TIMES, KINDS)
MOVES = st.builds(FaultMove, TIMES, st.sampled_from(["x1", "x2", "n1"]), URGENCIES, KINDS)


def near(one: Signal, other: Signal) -> bool:
    """One event could have caused both."""
    mine, others = one.evidence, other.evidence
    alike = (mine["kind"], mine["urgency"]) == (others["kind"], others["urgency"])
    return abs(one.at_s - other.at_s) <= AT_ONCE_S and (alike or mine["urgency"] == others["urgency"] == "now")


def on_too_many_nodes(one: Signal, some: list[Signal]) -> bool:
    """Of one sort, or urgent as this one is."""
    sort = {s.node for s in some if near(one, s) and s.evidence["kind"] == one.evidence["kind"]}
    urgent = {s.node for s in some if near(one, s)} if one.evidence["urgency"] == "now" else set()
    return max(len(sort), len(urgent)) > max_evictions(len(NODES))


@given(st.lists(FAULTS, max_size=10), st.lists(MOVES, max_size=4))
def test_a_storm_is_what_came_to_too_many_nodes_at_once(faults: list[Signal], moves: list[FaultMove]) -> None:
    """Nodes that were left are among them, where a node in use is concerned."""
    some = [*(move.signal for move in moves), *faults]
    stormy = [s for s in some if on_too_many_nodes(s, some)]
    expected = stormy if any(on_too_many_nodes(s, some) for s in faults) else []
    found = weigh(faults, NODES, NODES, moves).storm
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [s.at_s for s in found] == sorted(s.at_s for s in expected)
