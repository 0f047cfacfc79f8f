"""A drain that slurmctld forgot is done again; one that a person ended is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse

DRAIN = "srobust: XID 79"


def life(tmp_path: Path, **before: object) -> tuple[World, FakeSlurm]:
    """Node n5 as it was, then drained by its prolog a moment ago, and seen."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("{}"))
    slurm.state.nodes["n5"] = replace(slurm.state.nodes["n5"], **before)  # type: ignore[arg-type]
    world.run(6)
    slurm.save()
    slurm.drain("n5", DRAIN)
    slurm.state.nodes["n5"] = replace(slurm.state.nodes["n5"], reason_at_s=int(slurm.now_s))
    world.run(6)
    return world, slurm


@pytest.mark.parametrize("before", [{}, {"reason": "bad fan", "reason_at_s": 999_000}], ids=["none", "of an old drain"])
def test_a_forgotten_drain_is_done_again(tmp_path: Path, before: dict[str, object]) -> None:
    """Also where the reason of an older drain stands on the node, as on Slurm 24.11."""
    world, slurm = life(tmp_path, **before)
    slurm.forget()
    world.run(12)
    node = slurm.state.nodes["n5"]
    assert (node.drained, node.reason) == (True, DRAIN)
    world.journal.close()


@pytest.mark.parametrize("reason", [DRAIN, "seen to (ann)"])
def test_a_node_that_a_person_resumed_stays_in_service(tmp_path: Path, reason: str) -> None:
    """Slurm 24.11 leaves the drain's own reason there; a person may have written another one."""
    world, slurm = life(tmp_path)
    slurm.failures = 1
    node = slurm.state.nodes["n5"]
    back = replace(node, flags=frozenset[str](), reason=reason, reason_at_s=node.reason_at_s + 60 * (reason != DRAIN))
    slurm.state.nodes["n5"] = back
    world.run(12)
    assert not slurm.state.nodes["n5"].drained
    world.journal.close()
