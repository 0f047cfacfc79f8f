"""Whose fault it is that a mount point does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import USER, process, rank, repeated, waiting

from slurm_robust.localize import circumstances
from slurm_robust.localize.dead_mounts import DeadMount, MountView, dead_mounts
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.judge import judge
from slurm_robust.model import Grade


@pytest.mark.parametrize(
    ("silent", "answers", "blamed"),
    [
        (["n3"], ["n1", "n2"], ["n3"]),
        (["n2"], ["n1"], ["n2"]),
        (["n2", "n3"], ["n1", "n4", "n5"], ["n2", "n3"]),
        (["n2", "n3"], ["n1", "n4"], []),
        (["n1", "n2", "n3"], [], []),
        (["n1"], [], []),
        ([], ["n1", "n2"], []),
    ],
)
def test_a_mount_is_dead_where_others_reach_it(silent: list[str], answers: list[str], blamed: list[str]) -> None:
    """A server that answers nobody, or half of the nodes, is no fault of a node; others were not asked."""
    views = [MountView(node, silent=("/data",), answered=("/home",)) for node in silent]
    views += [MountView(node, answered=("/data", "/home")) for node in answers]
    found = dead_mounts([*views, MountView("n9", answered=("/home",))])
    assert [(one.mount, one.node) for one in found] == [("/data", node) for node in blamed]


def test_its_sentence_names_the_nodes() -> None:
    """Both those where it is dead and those where it is not."""
    (found,) = dead_mounts(
        [MountView("n3", ("/data",)), MountView("n2", (), ("/data",)), MountView("n1", (), ("/data",))]
    )
    assert found.text == "/data does not answer on n3, and answers on n1, n2"


DEAD = (DeadMount("/data", "n2", ("n0", "n1")),)


def waits_in_the_kernel(state: str = "D") -> Evidence:
    """Rank 2 waits in the kernel, or where it is said, while the others wait for it."""
    return repeated(waiting(0), waiting(1), rank(2, process(USER, state=state)), waiting(3))


def test_a_dead_mount_under_a_rank_in_d_state_is_certain() -> None:
    """At once, and the sentence says which mount and where it answers; without it the same is strong."""
    evidence = replace(waits_in_the_kernel(), dead_mounts=DEAD)
    verdict = judge(evidence)
    assert (verdict.grade, verdict.corroborated) == (Grade.CERTAIN, True)
    assert "/data does not answer on n2, and answers on n0, n1" in verdict.suspects[0].why
    alone = judge(waits_in_the_kernel())
    assert (alone.grade, alone.corroborated) == (Grade.STRONG, False)


def test_a_dead_mount_says_nothing_of_other_ranks() -> None:
    """Of a node that nobody suspects, or of a rank that is awake."""
    elsewhere = replace(waits_in_the_kernel(), dead_mounts=(DeadMount("/data", "n3", ("n0",)),))
    awake = replace(waits_in_the_kernel("S"), dead_mounts=DEAD)
    assert judge(elsewhere).grade is Grade.STRONG
    assert judge(awake).grade is not Grade.CERTAIN


def test_a_saved_incident_knows_its_dead_mounts() -> None:
    """The folder judges as the live evidence did."""
    evidence = replace(waits_in_the_kernel(), dead_mounts=DEAD)
    assert circumstances.decode(circumstances.encode(evidence, (), {})).dead_mounts == DEAD
