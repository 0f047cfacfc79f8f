"""Whose fault it is that a mount point does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from localize_scenes import SAVE, USER, process, rank, repeated, waiting

from slurm_robust.core.model import Grade
from slurm_robust.localize import circumstances
from slurm_robust.localize.dead_mounts import DeadMount, MountView, dead_mounts
from slurm_robust.localize.evidence import Evidence, StackFrame
from slurm_robust.localize.judge import judge


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
    assert [(one.mount, one.node) for one in found if one.answers_on] == [("/data", node) for node in blamed]
    of_server = [one.node for one in found if not one.answers_on]
    assert of_server == ([] if blamed or len(silent) < 2 else silent)


def test_its_sentence_names_the_nodes() -> None:
    """Both those where it is dead and those where it is not."""
    (found,) = dead_mounts(
        [MountView("n3", ("/data",)), MountView("n2", (), ("/data",)), MountView("n1", (), ("/data",))]
    )
    assert found.text == "/data does not answer on n3, and answers on n1, n2"


DEAD = (DeadMount("/data", "n2", ("n0", "n1")),)


def waits_in_the_kernel(state: str = "D", stack: tuple[StackFrame, ...] = USER, times: int = 4) -> Evidence:
    """Rank 2 waits in the kernel, or where it is said, while the others wait for it."""
    held = process(stack, state=state, wchan="nfs_wait_bit_killable")
    return repeated(waiting(0), waiting(1), rank(2, held), waiting(3), times=times, every_s=45.0)


@pytest.mark.parametrize(("stack", "alone"), [(USER, Grade.STRONG), (SAVE, Grade.WEAK)], ids=["program", "save"])
def test_a_dead_mount_under_a_rank_in_d_state_is_certain(stack: tuple[StackFrame, ...], alone: Grade) -> None:
    """Once the rank is known to be held, and the sentence says which mount and where it answers."""
    evidence = waits_in_the_kernel(stack=stack)
    verdict = judge(replace(evidence, dead_mounts=DEAD))
    assert (verdict.grade, verdict.corroborated) == (Grade.CERTAIN, True)
    assert "/data does not answer on n2, and answers on n0, n1" in verdict.suspects[0].why
    assert verdict.suspects[0].infrastructure
    assert (judge(evidence).grade, judge(evidence).corroborated) == (alone, True)


def test_a_server_that_is_away_costs_no_node() -> None:
    """A rank was the first to ask a file system that fails over: others would hang there, too."""
    away = tuple(DeadMount("/data", node, ()) for node in ("n1", "n2"))
    verdict = judge(replace(waits_in_the_kernel(), dead_mounts=away))
    assert (verdict.grade, verdict.corroborated) == (Grade.WEAK, True)
    assert "n2 and on other nodes: its server or the network is away" in verdict.suspects[0].why
    assert not verdict.suspects[0].infrastructure
    own = judge(replace(waits_in_the_kernel(), dead_mounts=(*DEAD, DeadMount("/home", "n2", ()))))
    assert own.grade is Grade.CERTAIN, "a mount that is dead there alone says more"


@pytest.mark.parametrize(("stack", "times"), [(USER, 1), (SAVE, 1), (SAVE, 3)])
def test_a_dead_mount_holds_nobody_sooner(stack: tuple[StackFrame, ...], times: int) -> None:
    """A mount that is slow while a rank saves: the rank must stand as long as without the mount."""
    verdict = judge(replace(waits_in_the_kernel(stack=stack, times=times), dead_mounts=DEAD))
    assert not verdict.corroborated
    assert verdict.grade is not Grade.CERTAIN


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
