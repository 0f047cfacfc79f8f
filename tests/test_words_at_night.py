"""Sentences that a person reads at 3 a.m., and what they must not say."""

from __future__ import annotations

import pytest

from slurm_robust.core.model import Road, road_words
from slurm_robust.daemon.api.dashboard.incident import _step


@pytest.mark.parametrize("road", list(Road))
def test_a_road_opens_a_sentence_in_words(road: Road) -> None:
    """No key of JSON, and no word that is only ours."""
    assert "_" not in road_words(road.value)
    assert road_words(road.value) != "seat"


@pytest.mark.parametrize("error", ["not needed: drained: srobust: XID 79", "none needed: drained: srobust: XID 79"])
def test_an_action_that_was_not_needed_has_not_failed(error: str) -> None:
    """Neither a cross nor `not done yet`; the older words are in older journals."""
    shown = _step({"kind": "recheck", "target": "n4", "error": error, "calls": 0})
    assert dict(shown.attributes)["class"] == "later"
    assert shown.children == (f"recheck n4: {error}",)
