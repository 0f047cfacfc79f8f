"""What the daemon tells of its incidents and nodes afterwards, to people who were not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.cli.commands.incidents import _outcome
from slurm_robust.config.site import Config
from slurm_robust.daemon.api.state_snapshot import show_incident
from slurm_robust.daemon.store.journal import IncidentRow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job on n1 to n3 that has been listened to."""
    made = World(tmp_path, FakeSlurm(), Config())
    made.slurm.run_job(("n1", "n2", "n3"))
    made.run(6)
    yield made
    made.journal.close()


def told(world: World, incident: IncidentRow) -> dict[str, str]:
    """Action kind → what it came to, as `srobust incidents ID` says it."""
    shown = show_incident(incident, world.journal.actions(incident.key))
    return {a["kind"]: _outcome(a) for a in shown["actions"]}


def test_every_action_of_a_whole_recovery_was_called_and_is_done(world: World) -> None:
    """The waiting has a begin, too, and so has the recheck; what the incident came to is said once."""
    world.claim(1, ("n2",))
    world.run(20)
    world.claim(1, (), state="watching", times={"first_new_step": world.slurm.now_s}, step=30)
    world.run(10)
    (incident,) = world.journal.incidents()
    assert (incident.outcome, incident.reason) == ("resumed", "step 30 reached, on n[1,3-4]")
    actions = {a.kind: a for a in world.journal.actions(incident.key)}
    assert all(a.called_at_s and a.done_at_s for a in actions.values())
    assert actions["wait_running"].called_at_s == actions["point_job_at_seat"].called_at_s


def test_recheck_that_was_not_needed_says_why(world: World) -> None:
    """The node was drained by its own prolog first: `not called` would leave open whether one is still to come."""
    world.claim(1, ("n2",))
    world.slurm.stuck.add("n2")  # its job does not end there, so that the recheck cannot begin
    world.run(0.5)
    world.slurm.drain("n2", "srobust: XID 79")
    world.run(20)
    (incident,) = world.journal.incidents()
    assert told(world, incident)["recheck"] == "not needed: drained: srobust: XID 79"


def test_since_when_a_node_is_drained(world: World) -> None:
    """By Slurm's stamp on the reason, whoever drained it; a node in service has neither."""
    node = world.slurm.state.nodes["n5"]
    drained = replace(node, flags=frozenset(("DRAIN",)), reason="bad fan", reason_at_s=999_000)
    world.slurm.state.nodes["n5"] = drained
    world.slurm.state.nodes["n6"] = replace(node, name="n6", reason="left over", reason_at_s=999_000)
    world.run(6)
    shown = {n["name"]: (n["since_s"], n["reason"]) for n in published(world.daemon)["nodes"]}
    assert (shown["n5"], shown["n6"]) == ((999_000, "bad fan"), (None, ""))
