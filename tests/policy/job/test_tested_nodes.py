"""tested.choices: who is left for a link that fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ladder_situations import hang
from situations import culprit

from slurm_robust.policy.job.ladder import TestOutcome
from slurm_robust.policy.job.situation import Situation
from slurm_robust.policy.job.tested import choices

Links = dict[tuple[str, str], str]


def left(s: Situation, links: Links, failed: dict[str, str] | None = None) -> set[str]:
    """The nodes of the first choice."""
    return set(next(choices(replace(s, tested=(TestOutcome(links=links, failed=failed or {}),)))))


@pytest.mark.parametrize(
    ("situation", "links", "expected"),
    [
        (hang(), [("n01", "n02")], {"n02"}),
        (hang(), [("n02", "n01")], {"n02"}),
        (hang(apart_nodes=("n01",)), [("n01", "n02")], {"n01"}),
        (hang(verdict=culprit("n01", infrastructure=False)), [("n01", "n02")], {"n01"}),
        (hang(excluded_named=frozenset({"n02"})), [("n01", "n02")], {"n01"}),
        (hang(apart_nodes=("n03",)), [("n01", "n02"), ("n01", "n03")], {"n01"}),
        (hang(), [("n01", "n02"), ("n03", "n04")], {"n02", "n04"}),
        (hang(healthy_spares=("n01",)), [("n01", "n02")], {"n01"}),
        (hang(healthy_spares=("n01",), apart_nodes=("n02",)), [("n01", "n02")], {"n01"}),
    ],
)
def test_one_node_of_each_link(situation: Situation, links: list[tuple[str, str]], expected: set[str]) -> None:
    """The one with more failed links, else a spare, else the one that stands apart, else the second by name."""
    assert left(situation, dict.fromkeys(links, "the link fails")) == expected


def test_the_link_of_a_failed_node_is_no_matter() -> None:
    """Its node is left anyway."""
    assert left(hang(), {("n01", "n02"): "fails", ("n03", "n04"): "fails"}, {"n01": "n01 fails"}) == {"n01", "n04"}


def test_the_reason_says_that_neither_is_proven_bad() -> None:
    """Both names, and which one goes."""
    s = replace(hang(), tested=(TestOutcome(links={("n01", "n02"): "n01-n02 corrupts"}),))
    (why,) = next(choices(s)).values()
    assert why == "n01-n02 corrupts; neither n02 nor n01 is proven bad, and n02 is left out"


def test_other_nodes_than_the_jobs_are_no_matter() -> None:
    """The job may have moved since."""
    assert list(choices(replace(hang(), tested=(TestOutcome(links={("x", "n01"): "?"}, failed={"y": "?"}),)))) == []
