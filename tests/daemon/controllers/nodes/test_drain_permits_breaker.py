"""Drain permits and the breaker, against a simulated Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.daemon.controllers.breaker import request_reset


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes, the defaults but for the mode."""
    made = World(tmp_path, FakeSlurm(), Config())
    yield made
    made.journal.close()


def test_breaker_counts_prolog_drains_and_is_reset(tmp_path: Path) -> None:
    """Drains that the prolog made count too; open, no permit is left; reset, they are back."""
    slurm = FakeSlurm(nodes=12)
    world = World(tmp_path, slurm, parse("breaker: {max_drains: 2, max_partition_share: 1.0}"))
    slurm.run_job(("n1", "n2"))
    world.run(6)
    for name in ("n7", "n8", "n9"):
        slurm.drain(name, "srobust: XID 79")
    world.run(10)
    assert world.daemon.breaker.why_open
    assert not any("srobust-drain-permit" in n.comment for n in slurm.state.nodes.values())
    assert all(n.comment == "[[srobust-no-drain-permit]]" for n in slurm.state.nodes.values())
    request_reset(world.journal, slurm.now_s, "ann")
    world.claim(1, ("n2",), incident="i2")
    world.run(20)
    assert world.outcomes() == ["running"]
    assert all("srobust-drain-permit" in n.comment for n in slurm.state.nodes.values())
    world.journal.close()


def test_own_words_of_administrators_stay_on_the_nodes(world: World) -> None:
    """The leave stands beside what an administrator wrote."""
    node = world.slurm.state.nodes["n3"]
    world.slurm.state.nodes["n3"] = replace(node, comment="rack 7, ticket 12")
    world.run(6)
    assert world.slurm.state.nodes["n3"].comment.startswith("rack 7, ticket 12 [[srobust-drain-permit until=")
    calls = world.slurm.acts.count("comment n3")
    world.run(600, step_s=5.0)
    assert world.slurm.acts.count("comment n3") <= calls + 2
