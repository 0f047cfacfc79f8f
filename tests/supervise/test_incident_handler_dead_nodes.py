"""Which nodes are dead: what Slurm says of them, weighed with what their agents say."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from slurm_robust.model import Signal, SignalKind
from slurm_robust.slurm.client import Node
from slurm_robust.supervise.incident.incident_handler import Handling
from slurm_robust.supervise.incident.situation import lost_nodes
from slurm_robust.supervise.watch.fleet import Fleet

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

AWAY = frozenset({"NOT_RESPONDING"})


def test_a_node_whose_agent_answers_is_not_dead_for_a_slurmd_that_does_not() -> None:
    """A slurmd that is busy or restarted kills no healthy training; DOWN is DOWN."""
    nodes = [Node("n1", "MIXED", AWAY), Node("n2", "MIXED", AWAY), Node("n3", "DOWN"), Node("n4", "MIXED")]
    assert lost_nodes(["n1", "n2", "n3", "n4"], nodes, {"n1", "n3", "n4"}) == ["n2", "n3"]
    assert lost_nodes(["n1"], nodes, set()) == ["n1"], "of those that were asked for"


def test_a_node_that_is_back_is_no_evidence_any_more() -> None:
    """Each look says anew which nodes are lost; since when stays, and so does every other sign."""
    said = [Node("n1", "MIXED", AWAY), Node("n2", "DOWN")]
    fleet = Fleet("7.0.1")
    oom = Signal(SignalKind.OOM_KILL, 1.0, "x", "oom", node="n1")
    scene = SimpleNamespace(signals=[oom])
    supervisor = SimpleNamespace(
        nodes=["n1", "n2"],
        present=SimpleNamespace(fleet=fleet, scene=scene),
        context=SimpleNamespace(client=SimpleNamespace(nodes=lambda: said)),
    )
    handling = Handling(cast("Supervisor", supervisor))
    asyncio.run(handling._look_for_dead_nodes())
    first = scene.signals[1:]
    assert [x.node for x in first] == ["n1", "n2"]
    fleet.feed({"t": "hb", "n": "n1"}, time.time())
    asyncio.run(handling._look_for_dead_nodes())
    assert scene.signals == [oom, first[1]]
