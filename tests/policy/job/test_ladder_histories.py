"""The ladder over 10,000 random histories of faults, a quarter of them in the default run: what must always hold."""

from __future__ import annotations

from collections import Counter

import pytest
from ladder_training import MOST_INCIDENTS, Training

from slurm_robust.core.model import Road
from slurm_robust.policy.job.ladder import Rung

HISTORIES = 10_000
PARTS = 4


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.variant) for part in range(1, PARTS))])
def test_every_history_ends_within_the_bounds(part: int) -> None:
    """It ends, never climbs down, never evicts more than half nor a good node, and each rung's bound holds.

    The bounds themselves are in `Training._check` and `Shadow.climb`. A failure names its seed: `Training(seed, …)`.
    """
    rungs: Counter[Rung] = Counter()
    ends: Counter[str] = Counter()
    roads: Counter[Road] = Counter()
    for seed in range(part, HISTORIES, PARTS):
        training = Training(seed, honest=seed // PARTS % 2 == 0)
        try:
            ends[training.run()] += 1
        except Exception as error:
            raise AssertionError(f"history {seed}, incident {training.incidents}: {error!r}") from error
        assert training.incidents < MOST_INCIDENTS
        rungs.update(climbed.rung for climbed in training.shadow.rungs)
        roads.update(training.roads)
    assert set(rungs) == set(Rung), "a rung that no history comes to is not tested"
    assert min(ends["finished"], ends["stopped"]) > HISTORIES / PARTS / 20
    assert {Road.SPARE_IN_ALLOCATION, Road.SEAT, Road.RESTART_IN_PLACE} <= set(roads)
