"""What only a person can mend, in Slurm's own words: rebooted nodes, and jobs that a standby pool keeps out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, worlds
from snapshots import published

from slurm_robust.core.model import JobRef
from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.api.needs import needs
from slurm_robust.policy.cluster.kept_out import kept_out
from slurm_robust.slurm.client import Job


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four idle nodes, one of them in the standby pool."""
    with worlds(tmp_path, World) as make:
        yield make("standby: {size: 1, check_max_age_h: 1000}", 4)


def said(world: World) -> list[str]:
    """What needs a person now."""
    return needs(published(world.daemon), world.slurm.now_s)


def told(world: World) -> list[str]:
    """Log lines of rebooted nodes."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'nodes.rebooted'")]


def goes_down(world: World, name: str, *flags: str, reason: str = "Node unexpectedly rebooted") -> None:
    """Slurm shows the node so."""
    node = world.slurm.state.nodes[name]
    world.slurm.state.nodes[name] = replace(node, state="DOWN", flags=frozenset(flags), reason=reason)


def test_a_node_that_slurm_keeps_down_after_a_reboot_needs_a_person(world: World) -> None:
    """Status names the command at once; one alert, once nobody has resumed it for two minutes."""
    goes_down(world, "n1")
    world.run(20)
    (line,) = said(world)
    assert line == (
        "n1 is DOWN (Node unexpectedly rebooted), and Slurm leaves it so: once its log says why: "
        "scontrol update NodeName=n1 State=RESUME"
    )
    assert told(world) == []
    world.run(160)
    world.live()
    world.run(160)
    (text,) = told(world)
    alert = log_alerts.alert_of(world.slurm.now_s, "nodes.rebooted", text)
    assert alert is not None
    assert (alert.event, alert.command) == ("drain", "scontrol update NodeName=n1 State=RESUME")
    assert alert.happened == "1 node is DOWN after a reboot: n1: Node unexpectedly rebooted"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "fan broken"),
        (("DRAIN",), "Node unexpectedly rebooted"),
        (("REBOOT_ISSUED",), "Node unexpectedly rebooted"),
        (("NOT_RESPONDING",), "Node unexpectedly rebooted"),
    ],
)
def test_a_node_that_a_person_has_set_down_or_reboots_needs_nobody(
    world: World, flags: tuple[str, ...], reason: str
) -> None:
    """Whoever did it knows."""
    goes_down(world, "n1", *flags, reason=reason)
    world.run(200)
    assert said(world) == []
    assert told(world) == []


@pytest.mark.parametrize("reason", ["Prolog error", "Kill task failed [root@2026-11-27T16:22:01]"])
def test_a_node_that_slurm_itself_drained_needs_a_person(world: World, reason: str) -> None:
    """Neither a person nor the daemon knows of it, and nothing brings it back."""
    node = world.slurm.state.nodes["n2"]
    world.slurm.state.nodes["n2"] = replace(node, flags=frozenset({"DRAIN"}), reason=reason)
    world.run(20)
    (line,) = said(world)
    assert line == (
        f"n2 is drained by Slurm itself ({reason.partition(' [')[0]}): once slurmd's log there says why: "
        "scontrol update NodeName=n2 State=RESUME"
    )


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_a_job_that_needs_the_pools_nodes_is_named(world: World, nodes: int) -> None:
    """It waits for ever; a job that fits beside the pool, or into no partition, does not wait for that."""
    job = Job(JobRef(77), "PENDING", "ann", 1000, "main", num_nodes=nodes, reason="Resources", priority=5)
    world.slurm.state.jobs[77] = job
    world.run(10)
    lines = said(world)
    if nodes != 4:
        assert lines == []
        return
    (line,) = lines
    assert line == (
        "job 77 of ann needs 4 nodes, and partition main has 3 beside its standby pool: it waits for ever: "
        "lower standby.size in robust.yaml, then: systemctl reload srobustd"
    )
    picture, pooled = world.daemon.context.picture, frozenset(("n4",))
    assert kept_out([job], picture, pooled)
    others = (
        {"reservation": "hers"},
        {"reason": "QOSMaxNodePerUserLimit"},
        {"state": "RUNNING"},
        {"partition": "main,x"},
    )
    for other in others:
        assert not kept_out([replace(job, **other)], picture, pooled)  # type: ignore[arg-type]
