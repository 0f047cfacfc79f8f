"""Links that a job does not use move nobody; what it was seen to use is remembered, and agents heed the site."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_training import NODES
from supervised import World

from slurm_robust.config.site import NodecheckConfig
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent.messages import NodeFindings, PortTraffic
from slurm_robust.supervise.session import node_files

FLAP = {"kind": "port", "port": "mlx5_0/1", "text": "mlx5_0/1 lost its link", "source": "agent"}


@pytest.mark.parametrize(
    ("used", "bytes_per_s", "left"),
    [(2, 1e9, ["n2"]), (2, 1e5, []), (2, 0.0, []), (1, 1e9, [])],
    ids=["over RDMA", "over TCP", "without a word", "on one node"],
)
def test_a_rail_that_the_job_does_not_use_moves_nobody(
    tmp_path: Path, used: int, bytes_per_s: float, left: list[str]
) -> None:
    """Where nothing was moved over RDMA, or between no nodes, two flaps in five minutes are lines in the story."""
    world = World(tmp_path, nodes=NODES)
    attempt = world.attempt()
    world.finds_ranks(nodes=("n2", "n1" if used == 2 else "n2"))
    if bytes_per_s:
        world.session.receive(PortTraffic("n2", 60.0, int(60 * bytes_per_s)))
    for seq in (1, 2):
        finding = NodeFinding(seq, world.clock.at_s, urgency="if_repeated", **FLAP)
        world.session.receive(NodeFindings("n2", (finding,)))
        world.clock.at_s += 100
    faults = world.session.node_faults
    faults.pass_on(attempt.signals, world.session.folder)
    assert sorted(faults.faulty(NODES, NODES).leave_now) == left
    assert ("not seen to train over RDMA" in world.text("node-fault")) == (not left)
    assert [signal.evidence["urgency"] for signal in attempt.signals] == ["if_repeated" if left else "note"] * 2


@pytest.mark.parametrize("kind", ["rdma_ports", "rdma_errors"])
def test_a_check_of_rdma_moves_no_job_of_one_node(tmp_path: Path, kind: str) -> None:
    """Neither now nor after its next checkpoint."""
    world = World(tmp_path, nodes=NODES)
    attempt = world.attempt()
    world.finds_ranks(nodes=("n2", "n2"))
    finding = NodeFinding(1, world.clock.at_s, "poll", kind, "at_next_checkpoint", "mlx5_0/1 is down")
    world.session.receive(NodeFindings("n2", (finding,)))
    faults = world.session.node_faults
    faults.pass_on(attempt.signals, world.session.folder)
    assert faults.faulty(NODES, NODES).all == {}
    assert [signal.evidence["urgency"] for signal in attempt.signals] == ["note"]


def test_what_a_job_was_seen_to_use_is_known_in_its_next_attempt(tmp_path: Path) -> None:
    """Its first minute has no count yet."""
    world = World(tmp_path, nodes=NODES)
    world.attempt()
    world.finds_ranks()
    world.session.receive(PortTraffic("n2", 60.0, 10**12))
    attempt = world.attempt("1.0.1.2")
    world.session.receive(NodeFindings("n2", (NodeFinding(1, world.clock.at_s, urgency="if_repeated", **FLAP),)))
    world.session.node_faults.pass_on(attempt.signals, world.session.folder)
    assert [signal.evidence["urgency"] for signal in attempt.signals] == ["if_repeated"]


def test_agents_are_told_what_the_site_ignores() -> None:
    """As the check has it; what is no list is the check's to complain about."""
    for ignore, told in ((["mlx5_4", "eth7"], "mlx5_4,eth7"), ([], ""), ("mlx5_4", "")):
        config = NodecheckConfig(options={"rdma_ports": {"ignore": ignore}}, cache_dir="/c", kmsg="/k")
        assert node_files(config) == ("/c", "/k", told)
    assert node_files(NodecheckConfig()).ignored_ports == ""
