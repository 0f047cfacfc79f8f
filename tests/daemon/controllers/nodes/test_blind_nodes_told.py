"""Nodes that cannot check their GPUs: a line in status, one alert for all of them, a metric."""

from __future__ import annotations

from dataclasses import replace

from faults_world import Faults, Make
from snapshots import published

from slurm_robust.core.model import Mode
from slurm_robust.daemon.api import metrics
from slurm_robust.daemon.api.needs import needs
from slurm_robust.marks import blind_marker
from slurm_robust.marks.blind_marker import BlindMarker

WHY = "the package nvidia-ml-py is not installed"


def blind(w: Faults, *names: str, age_s: float = 0.0) -> None:
    """These nodes say that they cannot see their GPUs."""
    for name in names:
        before = w.slurm.state.nodes[name]
        marker = BlindMarker(int(w.slurm.now_s - age_s), WHY)
        w.slurm.state.nodes[name] = replace(before, extra=blind_marker.render(marker, before.extra))


def test_one_alert_for_all_of_them_also_in_observe_mode(fault_world: Make) -> None:
    """Health checks come one after the other; a restart of the daemon repeats nothing, and no marker is touched."""
    w = fault_world()
    w.mode = Mode.OBSERVE
    w.live()
    blind(w, "n1")
    w.run(60)
    blind(w, "n2", "n3")
    w.run(100)
    assert w.alerts("nodes.blind") == []
    w.run(60)
    assert w.alerts("nodes.blind") == [f"3 nodes cannot check their GPUs: n[1-3]: {WHY}"]
    w.live()
    w.run(300)
    assert len(w.alerts("nodes.blind")) == 1
    state = published(w.daemon)
    (said,) = needs(state, state["at_s"])
    assert said == f"3 nodes cannot check their GPUs: n[1-3]: {WHY}; type there: srobust doctor"
    assert b"srobust_blind_nodes 3.0" in metrics.metrics(state, state["at_s"])
    assert w.drained() == []
    assert blind_marker.marked(w.extra("n1"))


def test_when_it_is_over(fault_world: Make) -> None:
    """The node removes its marker; should it become blind again, that is news."""
    w = fault_world()
    blind(w, "n1")
    w.run(150)
    assert len(w.alerts("nodes.blind")) == 1
    w.slurm.state.nodes["n1"] = replace(w.slurm.state.nodes["n1"], extra="")
    w.run(30)
    assert published(w.daemon)["blind_nodes"] == []
    blind(w, "n1")
    w.run(150)
    assert len(w.alerts("nodes.blind")) == 2


def test_a_marker_of_yesterday_or_of_an_earlier_boot(fault_world: Make) -> None:
    """A node that was installed anew cannot remove it."""
    w = fault_world()
    blind(w, "n1", age_s=blind_marker.MAX_AGE_S + 60)
    blind(w, "n2", age_s=600)
    w.slurm.state.nodes["n2"] = replace(w.slurm.state.nodes["n2"], boot_at_s=w.slurm.now_s - 60)
    w.run(150)
    assert w.alerts("nodes.blind") == []
    assert published(w.daemon)["blind_nodes"] == []
