"""A shared scratch that is full: a line in status and at each node, one alert for all of them, a metric."""

from __future__ import annotations

from dataclasses import replace

from faults_world import Faults, Make
from snapshots import published

from slurm_robust.core.model import Mode
from slurm_robust.daemon.api import metrics
from slurm_robust.daemon.api.needs import needs
from slurm_robust.daemon.log_alerts import alert_of
from slurm_robust.marks import blind_marker
from slurm_robust.marks.blind_marker import FULL, BlindMarker


def fill(w: Faults, *names: str) -> None:
    """The health checks of these nodes say that /scratch is full."""
    for name in names:
        before = w.slurm.state.nodes[name]
        extra = blind_marker.render(BlindMarker(int(w.slurm.now_s), "/scratch"), before.extra, FULL)
        w.slurm.state.nodes[name] = replace(before, extra=extra)


def test_it_is_told_once_for_all_nodes_and_shown_while_it_is_so(fault_world: Make) -> None:
    """Also in observe mode; nothing is done about it."""
    w = fault_world()
    w.mode = Mode.OBSERVE
    w.live()
    fill(w, "n1", "n2", "n3")
    w.run(150)
    assert w.alerts("nodes.full") == ["3 nodes have a full file system: n[1-3]: /scratch"]
    assert w.alerts("nodes.blind") == []
    alert = alert_of(1.0, "nodes.full", w.alerts("nodes.full")[0])
    assert alert is not None
    assert (alert.event, alert.severity) == ("full", "warning")
    state = published(w.daemon)
    assert needs(state, state["at_s"]) == [
        "/scratch is full on 3 nodes (n[1-3]): there: df -h /scratch; df -i /scratch"
    ]
    words = {row["name"]: row["word"] for row in state["nodes"]}
    assert words["n1"] == "has a full file system: /scratch"
    assert words["n4"] == ""
    assert b"srobust_full_nodes 3.0" in metrics.metrics(state, state["at_s"])
    for name in ("n1", "n2", "n3"):
        w.slurm.state.nodes[name] = replace(w.slurm.state.nodes[name], extra="")
    w.run(30)
    state = published(w.daemon)
    assert needs(state, state["at_s"]) == []
    assert {row["word"] for row in state["nodes"]} == {""}
    assert w.drained() == []
