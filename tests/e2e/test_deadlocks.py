"""The usual hang of a training: all ranks wait in collectives that never meet, and nobody works.

The patience of strong evidence is scaled; one variant keeps the defaults and holds the promise of ninety seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]
TRAIN = Path(__file__).with_name("never_meet.py")
DEFAULTS = SuperviseConfig()
SCALED = {"strong_patience_s": 8.0}
AS_INSTALLED = {
    key: getattr(DEFAULTS, key)
    for key in ("suspicion_floor_s", "corroborate_after_s", "recapture_s", "tick_s", "strong_patience_s")
}


@pytest.mark.parametrize(
    ("supervise", "recorder"),
    [
        pytest.param(SCALED, False, id="stacks"),
        pytest.param(SCALED, True, id="recorder"),
        pytest.param(AS_INSTALLED, False, id="stacks-defaults", marks=pytest.mark.variant),
        pytest.param(AS_INSTALLED, True, id="recorder-defaults", marks=pytest.mark.variant),
    ],
)
def test_ranks_in_collectives_that_never_meet_are_started_again(
    cluster: Cluster, submit: Submit, supervise: dict[str, float], *, recorder: bool
) -> None:
    """Acted on in time, with and without dumps of the flight recorder; no node is left, and the training ends well."""
    dev = cluster(standby=0, supervise=supervise)
    within_s = 90.0 if supervise is AS_INSTALLED else 30.0
    words = f'{sys.executable} {TRAIN} --resume --done "$PWD/done" {"--recorder" if recorder else ""} #'
    job = submit(dev, nodes=3, command=f"srobust run {words}")
    decided = job.hears("decided", within_s + 40)
    assert (decided["road"], decided["evict"]) == ("restart_in_place", []), job.everything()
    times = job.hears("resumed", 60)
    assert times["step"] > 0, job.everything()
    incident = job.incident()
    took_s = incident["times"]["decided"] - incident["times"]["fault"]
    assert supervise["strong_patience_s"] <= took_s <= within_s, job.everything()
    assert ("different operations" in decided["text"]) is recorder, job.everything()
    ended = job.ends(60)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()


@pytest.mark.parametrize(
    ("supervise", "ladder"),
    [
        pytest.param(SCALED, {"tests": ["in-node", "pairs"]}, id="scaled"),
        pytest.param(AS_INSTALLED, {}, id="defaults", marks=pytest.mark.variant),
    ],
)
def test_with_the_ladder_the_nodes_are_tested_before_the_same_is_tried_again(
    cluster: Cluster, submit: Submit, supervise: dict[str, float], ladder: dict[str, object]
) -> None:
    """Nobody is named: in time, all nodes are tested. All pass, and the training goes on upon the same nodes."""
    dev = cluster(standby=0, supervise=supervise, yaml={"ladder": ladder})
    within_s = 90.0 if supervise is AS_INSTALLED else 30.0
    job = submit(dev, nodes=4, command=f'srobust run {sys.executable} {TRAIN} --resume --done "$PWD/done" #')
    first = job.hears("decided", within_s + 40)
    assert (first["road"], first["evict"]) == ("test", []), job.everything()
    assert "in-node and pairs on 4 nodes; if they find nothing: the same again, once" in first["text"], job.everything()
    before = job.job().nodes
    tested = job.hears("tested", 120)
    assert (tested["failed"], "passed" in tested["text"]) == ([], True), job.everything()
    again = job.hears("decided", 30, 2)
    assert (again["road"], again["evict"]) == ("restart_in_place", []), job.everything()
    assert job.hears("resumed", 60)["step"] > 0, job.everything()
    took_s = first["at_s"] - job.incident()["times"]["fault"]
    assert supervise["strong_patience_s"] <= took_s <= within_s, job.everything()
    ended = job.ends(60)
    assert (ended.state, ended.restart_count, ended.nodes) == ("COMPLETED", 0, before), job.everything()
    assert len(job.told("decided")) == 2, job.everything()
    assert all(not node.drained for node in job.client.nodes())


@pytest.mark.parametrize(
    "supervise",
    [
        pytest.param(SCALED, id="scaled"),
        pytest.param(AS_INSTALLED, id="defaults", marks=pytest.mark.variant),
    ],
)
def test_with_over_evict_the_group_that_stands_apart_is_left_untested(
    cluster: Cluster, submit: Submit, supervise: dict[str, float]
) -> None:
    """One of three pipelines stands apart: spares take the place of both of its nodes in time, and training goes on."""
    ladder = {"tests": ["in-node", "pairs"], "over_evict": True}
    dev = cluster(nodes=8, standby=0, supervise=supervise, yaml={"ladder": ladder})
    within_s = 90.0 if supervise is AS_INSTALLED else 30.0
    words = f'-N6 -n6 {sys.executable} {TRAIN} --resume --pipeline --done "$PWD/done" #'
    run = f"srobust run --robust-layout=tp=1,pp=2,dp=3,order=tp-pp-dp {words}"
    job = submit(dev, nodes=8, command=run, sbatch=("--no-kill",))
    decided = job.hears("decided", within_s + 40)
    nodes = job.job().nodes
    assert (decided["road"], set(decided["evict"])) == ("spare_in_allocation", set(nodes[4:6])), job.everything()
    assert "are the parallel group that stands apart (ladder.over_evict)" in decided["text"], job.everything()
    assert set(job.hears("relaunched", 60)["evicted"]) == set(nodes[4:6]), job.everything()
    assert job.hears("resumed", 60)["step"] > 0, job.everything()
    took_s = decided["at_s"] - job.incident()["times"]["fault"]
    assert supervise["strong_patience_s"] <= took_s <= within_s, job.everything()
    ended = job.ends(60)
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    assert (len(job.told("decided")), job.told("tested")) == (1, []), job.everything()
