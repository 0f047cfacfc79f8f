"""Nodes of one leaf switch that lose the network together: one message, which names the switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from faults_world import Faults, Make

from slurm_robust.daemon.log_alerts import alert_of
from slurm_robust.marks.fault_marker import FaultMarker, render
from slurm_robust.policy.cluster.leaf_faults import MARK

TREE = "SwitchName=s0 Nodes=n[1-4]\nSwitchName=s1 Nodes=n[5-12]\nSwitchName=top Switches=s[0-1]\n"
FIRST = "look at leaf switch s0 first: n[1-2] failed together"


@pytest.fixture
def world(fault_world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Twelve nodes on two switches."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (tmp_path / "topology.conf").write_text(TREE)
    return fault_world(nodes=12)


def changed(w: Faults, *names: str, **now: object) -> None:
    """These nodes are otherwise now."""
    w.slurm.state.nodes.update({n: replace(w.slurm.state.nodes[n], **now) for n in names})  # type: ignore[arg-type]


def no_link(w: Faults, *names: str, kind: str = "port") -> None:
    """These nodes mark a fault."""
    for name in names:
        sentence = "no link on mlx5_0/1 (DOWN, Disabled)" if kind == "port" else "XID 79 on GPU 0"
        marker = FaultMarker(int(w.slurm.now_s), kind, (), sentence)
        changed(w, name, extra=render(marker))


def messages(w: Faults) -> list[str]:
    """What people are told of."""
    rows = w.journal.db.execute("SELECT at_s, what, text FROM events ORDER BY rowid").fetchall()
    return [a.happened for r in rows if (a := alert_of(r["at_s"], r["what"], r["text"])) is not None]


def reasons(w: Faults) -> list[str]:
    """Why nodes are out."""
    return [node.reason for node in w.slurm.state.nodes.values() if node.drained]


def test_links_of_one_leaf_are_one_fault(world: Faults) -> None:
    """Both are drained, since they are of no use; the second one tells a few seconds later."""
    no_link(world, "n1")
    world.run(4)
    no_link(world, "n2")
    world.run(40)
    assert world.drained() == ["n1", "n2"]
    assert reasons(world) == [f"srobust: no link on mlx5_0/1 (DOWN, Disabled); {FIRST}"] * 2
    (told,) = messages(world)
    assert told.startswith("n[1-2] (2 of the 4 nodes of leaf switch s0) lost the network within a minute: one fault")
    assert [r["reason"] for r in world.journal.db.execute("SELECT reason FROM drains")] == reasons(world)


def test_a_drain_that_the_node_made_itself_and_later_nodes_belong_to_it(world: Faults) -> None:
    """Its reason is completed; a third node is told with the others, under the same key."""
    world.slurm.drain("n1", "srobust: no link on mlx5_0/1 (DOWN, Disabled)")
    no_link(world, "n2")
    world.run(30)
    assert all(FIRST in reason for reason in reasons(world))
    no_link(world, "n3")
    world.run(30)
    assert world.drained() == ["n1", "n2", "n3"]
    lines = world.alerts("nodes.leaf_switch")
    assert [line.partition(" (")[0] for line in lines] == ["n[1-2]", "n[1-3]"]
    assert len({alert_of(0.0, "nodes.leaf_switch", line).key for line in lines}) == 1  # type: ignore[union-attr]


def test_silent_nodes_of_one_leaf(world: Faults) -> None:
    """Their jobs come back, each has its incident, and the drains name the switch."""
    for nodes in (("n1", "n5"), ("n2", "n6")):
        world.slurm.run_job(nodes)
    world.run(4)
    changed(world, "n1", "n2", flags=frozenset({"NOT_RESPONDING"}))
    world.run(10)
    assert len(world.alerts("nodes.leaf_switch")) == 1
    changed(world, "n1", "n2", state="DOWN", reason="Not responding")
    for number in (1, 2):
        world.slurm.requeue(world.job(number).ref)
    world.run(30)
    assert [FIRST in reason for reason in reasons(world)] == [True, True]
    assert len(messages(world)) == 1
    changed(world, "n1", "n2", state="IDLE", flags=frozenset(), reason="")
    world.run(20)
    world.slurm.drain("n1", "srobust: XID 79")
    world.run(10)
    assert reasons(world) == ["srobust: XID 79"]


@pytest.mark.parametrize("case", ["xid", "two leaves", "alone", "reboot", "person", "no topology", "long ago"])
def test_what_is_no_fault_of_a_leaf(world: Faults, tmp_path: Path, case: str) -> None:
    """Other faults, other switches, single nodes, what somebody wants so, and what came before."""
    if case == "no topology":
        (tmp_path / "topology.conf").unlink()
    if case == "reboot":
        changed(world, "n1", "n2", state="DOWN", flags=frozenset({"REBOOT_ISSUED"}), reason="kernel : reboot issued")
    elif case == "person":
        changed(world, "n1", "n2", flags=frozenset({"DRAIN", "NOT_RESPONDING"}), reason="rack move")
    elif case == "long ago":
        changed(world, "n1", "n2", state="DOWN", flags=frozenset({"NOT_RESPONDING"}), reason="Not responding")
        world.live()
    else:
        names = {"alone": ("n1",), "two leaves": ("n1", "n5")}.get(case, ("n1", "n2"))
        no_link(world, *names, kind="xid" if case == "xid" else "port")
    world.run(40)
    assert world.alerts("nodes.leaf_switch") == []
    assert not any("leaf switch" in reason for reason in reasons(world))


@pytest.mark.parametrize("words", ["look at leaf switch s0 first: hang", "hang; look  at leaf\tswitch s0"])
def test_a_claim_cannot_hide_a_drain_by_words_of_the_daemon(
    fault_world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A drain whose reason names a leaf switch is told with the switch, and makes no lemon: only the daemon says so."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    world = fault_world("quarantine: {claims: drain}")
    world.slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",), why=words)
    world.run(20)
    (reason,) = reasons(world)
    assert "switch s0" in reason
    assert MARK not in " ".join(reason.split())
    assert any(text.startswith("Node n2 is out of service") for text in messages(world))
    assert MARK not in " ".join(world.journal.incidents()[0].reason.split())
