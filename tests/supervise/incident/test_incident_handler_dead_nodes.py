"""Which nodes are dead: what Slurm reports about them, weighed with their agents' heartbeats."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from handler_parts import Parts
from supervised import World

from slurm_robust.core.model import Signal, SignalKind
from slurm_robust.slurm.client import Node
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.incident.dead_nodes import find_dead_nodes, lost_nodes
from slurm_robust.supervise.outcome import ExecutePlan

AWAY = frozenset({"NOT_RESPONDING"})


def test_a_node_whose_agent_answers_is_not_dead_for_a_slurmd_that_does_not() -> None:
    """A slurmd that is busy or restarted kills no healthy training; DOWN is DOWN."""
    nodes = [Node("n1", "MIXED", AWAY), Node("n2", "MIXED", AWAY), Node("n3", "DOWN"), Node("n4", "MIXED")]
    assert lost_nodes(["n1", "n2", "n3", "n4"], nodes, {"n1", "n3", "n4"}) == ["n2", "n3"]
    assert lost_nodes(["n1"], nodes, set()) == ["n1"], "of those that were asked for"


def test_a_node_that_is_back_is_no_evidence_any_more(tmp_path: Path) -> None:
    """Each time Slurm is asked anew which nodes are lost; since when stays, and so does every other sign."""
    world = World(tmp_path)
    parts = Parts(world)
    nodes = world.slurm.state.nodes
    nodes["n1"], nodes["n2"] = replace(nodes["n1"], state="MIXED", flags=AWAY), replace(nodes["n2"], state="DOWN")
    oom = Signal(SignalKind.OOM_KILL, 1.0, "x", "oom", node="n1")
    parts.attempt.signals.append(oom)
    asyncio.run(find_dead_nodes(world.session, parts.attempt))
    first = parts.attempt.signals[1:]
    assert [x.node for x in first] == ["n1", "n2"]
    world.session.receive(from_agent({"t": "hb", "n": "n1"}))
    world.clock.at_s += 1
    asyncio.run(find_dead_nodes(world.session, parts.attempt))
    assert parts.attempt.signals == [oom, first[1]]


def test_a_slurm_that_does_not_answer_leaves_no_node_dead(tmp_path: Path) -> None:
    """It is reported, and the incident is judged without."""
    world = World(tmp_path, command="python train.py")
    parts = Parts(world)
    world.finds_ranks()
    world.trains()
    world.slurm.state.nodes["n2"] = replace(world.slurm.state.nodes["n2"], state="DOWN")
    parts.exit_of(1, signal=9)
    world.slurm.down = True
    outcome = asyncio.run(parts.handler.rank_died(parts.attempt, parts.start))
    assert isinstance(outcome, ExecutePlan)
    assert "Slurm could not be asked about the job's nodes" in world.text("note")
    assert not any(x.kind is SignalKind.NODE_DOWN for x in parts.attempt.signals)
