"""Faults on many nodes at once, on a simulated Slurm: one alert, and no fault is passed over for it for long."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from faults_world import XID, Make

from slurm_robust.slurm.values import expand


def test_a_storm_is_one_alert(fault_world: Make) -> None:
    """No drain and no requeue; one that comes a bit later belongs to it, also after a restart of the daemon.

    It is named in an alert of its own: nobody else will say that this node has a fault.
    """
    w = fault_world()
    for node in ("n1", "n2", "n3", "n4", "n5"):
        w.slurm.run_job((node,))
    for node in ("n1", "n2", "n3", "n4"):
        w.mark(node, extra="rack 7")
    w.run(20)
    w.live()
    w.mark("n5")
    w.run(30)
    assert w.drained() == []
    assert not [act for act in w.slurm.acts if act.startswith(("drain", "requeue"))]
    (alert,) = w.alerts("nodes.fault_storm")[:1]
    assert "4 of 6 nodes report a fault within a minute (n[1-4]" in alert
    levels = w.journal.db.execute("SELECT level FROM events WHERE what = 'nodes.fault_storm'").fetchall()
    assert [row["level"] for row in levels] == ["warning", "warning"]
    assert w.alerts("nodes.fault_storm")[1].startswith("n5: a fault soon after a storm")
    assert [w.extra(f"n{i}") for i in range(1, 6)] == ["rack 7"] * 4 + [""]


@pytest.mark.parametrize(("leaves", "kind"), [("n[1-4]", "port"), ("n[1-3],n[4-6]", "port"), ("n[1-4]", "xid")])
def test_nodes_of_one_leaf_switch_have_people_look_at_the_switch(
    fault_world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str, kind: str
) -> None:
    """A switch that fails looks like lost links of all its nodes; it takes no GPU off its bus."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    names = [f"SwitchName=s{i} Nodes={part}" for i, part in enumerate(leaves.split(",n"))]
    (tmp_path / "topology.conf").write_text("\n".join(names).replace("=[", "=n["))
    w = fault_world()
    for node in ("n1", "n2", "n3", "n4"):
        w.mark(node, kind=kind)
    w.run(20)
    (alert,) = w.alerts("nodes.fault_storm")
    shown = w.daemon.node_faults.storm_shown()
    assert shown is not None
    assert (shown["kinds"], shown["nodes"]) == ([kind], ["n1", "n2", "n3", "n4"])
    one = "they hang on one switch, that of n[1-4]: look there"
    assert (one if (leaves, kind) == ("n[1-4]", "port") else "they share a cause") in alert


def test_more_than_the_breaker_allows_within_a_minute_is_a_storm(fault_world: Make) -> None:
    """Some of the nodes had no job and drained themselves: they count, too."""
    w = fault_world("breaker: {max_partition_share: 0.25}\ndaemon: {protect: all}\n", nodes=8)
    w.slurm.run_job(("n1",))
    for node in ("n5", "n6"):
        w.slurm.drain(node, f"srobust: {XID}")
        w.slurm.state.nodes[node] = replace(w.slurm.state.nodes[node], reason_at_s=int(w.slurm.now_s))
    w.mark("n1")
    w.run(14)
    assert w.drained() == ["n5", "n6"]
    assert w.job().restart_count == 0
    assert len(w.alerts("nodes.fault_storm")) == 1


def test_two_faults_with_time_between_them_are_no_storm(fault_world: Make) -> None:
    """Each costs its node."""
    w = fault_world()
    w.slurm.run_job(("n1",))
    w.slurm.run_job(("n2",))
    w.mark("n1")
    w.run(90)
    w.mark("n2")
    w.run(20)
    assert w.drained() == ["n1", "n2"]
    assert w.alerts("nodes.fault_storm") == []


def test_a_storm_in_a_small_partition_ends(fault_world: Make) -> None:
    """Faults elsewhere, one each 55 s, are none of it: neither deaf now nor for as long as they go on."""
    w = fault_world("breaker: {max_partition_share: 0.2}\ndaemon: {protect: all}\n", nodes=40)
    for name in ("n1", "n2", "n3"):
        w.slurm.state.nodes[name] = replace(w.slurm.state.nodes[name], partitions=("debug",))
        w.slurm.run_job((name,))
    w.run(8)
    for name in ("n1", "n2", "n3"):
        w.mark(name)
    w.run(20)
    assert len(w.alerts("nodes.fault_storm")) == 1
    for i in range(10, 16):
        w.slurm.run_job((f"n{i}",), user=f"u{i}")
        w.mark(f"n{i}")
        w.run(55)
    assert w.drained() == [f"n{i}" for i in range(10, 16)]
    assert len(w.alerts("nodes.fault_storm")) == 1


def test_late_faults_do_not_make_a_storm_longer(fault_world: Make) -> None:
    """Of the same kind, in the same partition: those of the first minute are named and left, later ones handled."""
    w = fault_world("breaker: {max_partition_share: 0.2}\ndaemon: {protect: all}\n", nodes=40)
    for i in range(1, 10):
        w.mark(f"n{i}")
    w.run(20)
    assert len(w.alerts("nodes.fault_storm")) == 1
    for i in range(21, 24):
        w.mark(f"n{i}")
        w.run(45)
    assert w.drained() == ["n22", "n23"]
    assert [text.partition(":")[0] for text in w.alerts("nodes.fault_storm")[1:]] == ["n21"]


def test_a_storm_that_goes_on_is_one_for_as_long(fault_world: Make) -> None:
    """Twelve nodes a minute for four minutes; those whose markers are gone still count, and each node is named."""
    w = fault_world("breaker: {}\ndaemon: {protect: all}\n", nodes=320)
    for i in range(1, 49):
        w.slurm.run_job((f"n{i}",), user=f"u{i}")
    w.run(8)
    for i in range(1, 49):
        w.mark(f"n{i}")
        w.run(5)
    w.run(30)
    assert len(w.drained()) <= 6
    assert sum(bool(job.restart_count) for job in w.slurm.state.jobs.values()) <= 6
    said = " ".join(w.alerts("nodes.fault_storm"))
    named = {name for part in re.findall(r"n\[[0-9,-]+\]|n[0-9]+", said) for name in expand(part)}
    assert {f"n{i}" for i in range(1, 49)} <= named | set(w.drained())
    assert not [name for name in w.slurm.state.nodes if w.extra(name)]


def test_a_second_fault_waits_for_more(fault_world: Make) -> None:
    """A storm takes some seconds to show: of thirty nodes within a minute one or two are dealt with before."""
    w = fault_world("breaker: {}\ndaemon: {protect: all}\n", nodes=320)
    for i in range(1, 31):
        w.slurm.run_job((f"n{i}",), user=f"u{i}")
    w.run(8)
    for i in range(1, 31):
        w.mark(f"n{i}")
        w.run(2)
    w.run(60)
    assert len(w.drained()) <= 3
    assert sum(bool(job.restart_count) for job in w.slurm.state.jobs.values()) <= 3


def test_two_faults_in_a_small_partition_are_no_storm(fault_world: Make) -> None:
    """The breaker bounds the drains there; what it refuses is told."""
    w = fault_world("breaker: {max_partition_share: 0.2}\ndaemon: {protect: all}\n", nodes=40)
    for name in ("n1", "n2", "n3", "n4"):
        w.slurm.state.nodes[name] = replace(w.slurm.state.nodes[name], partitions=("debug",))
    w.slurm.drain("n3", "srobust: XID 79")
    w.run(70)  # sooner, it would count towards a storm
    w.mark("n1")
    w.mark("n2")
    w.run(40)
    assert w.alerts("nodes.fault_storm") == []
    assert len(w.drained()) == 2
    assert len([text for text in w.alerts("node_fault") if "is not drained" in text]) == 1
