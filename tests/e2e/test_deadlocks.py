"""The usual hang of a training: all ranks wait in collectives that never meet, and nobody works.

The patience of strong evidence is scaled; one variant keeps the defaults and holds the promise of ninety seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit  # type: ignore[import-not-found]

from slurm_robust.config import SuperviseConfig
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
