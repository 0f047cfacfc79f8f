"""Which nodes train, and what a spare's lost GPU means while not all ranks are found."""

from __future__ import annotations

from pathlib import Path

from supervised import World

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.messages import NodeFindings
from slurm_robust.supervise.watch.fault_watch import nodes_in_use

NODES = ("n1", "n2", "n3")


def test_all_usable_nodes_may_train_until_every_rank_is_found(tmp_path: Path) -> None:
    """A lost GPU of a node whose ranks come a moment later may be another job's: it is no spare yet."""
    world = World(tmp_path, command="-N2 python train.py", nodes=NODES)
    session, attempt = world.session, world.attempt()
    lost = NodeFinding(1, world.clock.at_s, "kmsg", "xid", "now", "XID 79", (7,), "", 79)
    session.receive(NodeFindings("n2", (lost,), unused=True))
    assert nodes_in_use(session, attempt) == set(NODES)
    world.finds(0, "n1", world=2)
    assert nodes_in_use(session, attempt) == set(NODES)
    assert session.node_faults.faulty(NODES, nodes_in_use(session, attempt)).all == {}
    world.finds(1, "n2", world=2)
    assert nodes_in_use(session, attempt) == {"n1", "n2"}
    assert session.node_faults.faulty(NODES, nodes_in_use(session, attempt)).all == {}
    session.receive(NodeFindings("n3", (lost,), unused=True))
    assert set(session.node_faults.faulty(NODES, nodes_in_use(session, attempt)).leave_now) == {"n3"}


def test_a_node_of_which_all_that_train_are_known_is_enough(tmp_path: Path) -> None:
    """Four ranks on two nodes; one of them is not found."""
    world = World(tmp_path, command="-N2 python train.py", nodes=NODES)
    attempt = world.attempt()
    for rank, node in enumerate(("n1", "n1", "n2")):
        world.finds(rank, node, world=4)
    assert nodes_in_use(world.session, attempt) == {"n1", "n2"}
    world.session.allocation.evicted |= {"n1"}
    assert nodes_in_use(world.session, attempt) == {"n2"}
