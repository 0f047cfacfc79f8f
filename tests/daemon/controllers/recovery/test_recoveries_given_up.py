"""States from which no step led out: a recovery that undid the next one, waits and books in the future of a clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.core.model import Attempt, Incident
from slurm_robust.daemon.controllers.breaker import request_reset
from slurm_robust.daemon.store.journal import IncidentRow
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.marks.claim import Claim, render
from slurm_robust.policy.cluster.recovery_plan import NODE_LOST

DAY_S = 86400.0


@pytest.mark.parametrize("killed", [False, True])
def test_second_recovery_within_a_minute_is_not_undone_by_the_first(world: World, killed: bool) -> None:
    """Both use the same seat's name: the first, which is looked back at, must not take it for one it left behind."""
    world.claim(1, ("n2",))
    world.run(5)
    assert world.slurm.state.jobs[1].restart_count == 1
    bad = world.slurm.state.jobs[1].nodes[0]
    world.slurm.stuck.add(bad)  # so that the second one takes a while
    world.claim(1, (bad,), incident="i2")
    world.run(1)
    if killed:
        world.live()
    world.run(30)
    assert world.journal.db.execute("SELECT count(*) FROM events WHERE what = 'recovery.forgotten'").fetchone()[0] == 0
    assert world.outcomes() == ["superseded", "running"]
    assert world.slurm.acts.count("delete srobust-seat-1") == 2
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count) == ("RUNNING", 2)


def quarantined(world: World, node: str) -> Quarantine | None:
    """The quarantine of a node."""
    return next((q for q in NodeLedger(world.journal).quarantines() if q.node == node), None)


def test_open_breaker_uses_up_no_tries(tmp_path: Path) -> None:
    """A dead node waits in its quarantine for the person's reset, and is drained then; nothing is counted meanwhile."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("breaker: {max_drains: 0}"))
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s))
    slurm.state.nodes["n2"] = replace(
        slurm.state.nodes["n2"], state="DOWN", flags=frozenset(("NOT_RESPONDING",)), reason="Not responding"
    )
    world.run(120)
    q = quarantined(world, "n2")
    assert q is not None
    assert q.tries == 0
    assert "breaker" in q.word
    world.journal.close()


def test_reason_that_somebody_wrote_during_the_recheck_is_kept(world: World) -> None:
    """A failed recheck does not drain over it: the node is theirs."""
    world.slurm.recheck_exit = "1:0"
    world.claim(1, ("n2",))
    world.run(2)
    node = world.slurm.state.nodes["n2"]
    world.slurm.state.nodes["n2"] = replace(node, reason="watch this one, ann", flags=node.flags | {"DRAIN"})
    world.run(30)
    assert world.slurm.state.nodes["n2"].reason == "watch this one, ann"
    assert quarantined(world, "n2") is None
    assert not world.slurm.state.reservations


@pytest.mark.parametrize("killed", [False, True])
def test_breaker_can_be_reset_after_the_clock_was_set_back(tmp_path: Path, killed: bool) -> None:
    """Drains that lie in the future would open it again and again, for as long as the clock was wrong."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("breaker: {max_drains: 1, max_partition_share: 0.9}"))
    world.run(6)
    for name in ("n2", "n3"):
        slurm.drain(name, "srobust: XID 79")
    world.run(12)
    assert world.daemon.breaker.why_open
    slurm.now_s -= DAY_S
    if killed:
        world.live()
    world.run(12)
    request_reset(world.journal, slurm.now_s, "a person")
    world.run(12)
    assert not world.daemon.breaker.why_open
    world.journal.close()


def test_reset_in_the_future_does_not_switch_the_breaker_off(tmp_path: Path) -> None:
    """What is drained after the clock was set back counts."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("breaker: {max_drains: 1, max_partition_share: 0.9}"))
    world.run(6)
    request_reset(world.journal, slurm.now_s, "a person")
    slurm.now_s -= DAY_S
    world.run(12)
    for name in ("n2", "n3"):
        slurm.drain(name, "srobust: XID 79")
    world.run(12)
    assert world.daemon.breaker.why_open
    world.journal.close()


def test_a_lost_node_s_incident_ends_with_the_next_step_of_its_job(world: World) -> None:
    """Its supervisor knows of no incident: it tells of its steps alone, beside the name of one that ended long ago."""
    job = world.slurm.run_job(("n4", "n5"), restart_count=1)
    number, now_s = job.ref.job_id, world.slurm.now_s
    attempt = Attempt("fake", str(number), 0, int(now_s) - 60)
    incident = Incident(id="node-n6", job=attempt.job, attempt=attempt.key, opened_at_s=now_s - 30)
    row = IncidentRow("lost", incident, attempt, number, "ann", NODE_LOST, "act", state="running", outcome="running")
    world.journal.add_incident(row)

    def tells(**progress: float) -> None:
        claim = Claim("watching", "line", 1, "old", progress=progress)
        world.slurm.state.jobs[number] = replace(job, comment=render(claim))

    tells(first=now_s, step=101.0)
    world.run(3)
    assert world.outcomes() == ["running"], "steps that it had made before are no new ones"
    tells(first=now_s, new=now_s + 4, step=121.0)
    world.run(6)
    (after,) = world.journal.incidents()
    assert (after.outcome, after.incident.times["first_new_step"]) == ("resumed", now_s + 4)
    assert after.reason.startswith("step 121 reached")


def test_silent_node_is_noticed_after_the_clock_was_set_back(world: World) -> None:
    """Its silence began in the future: it would have to last until then."""
    world.daemon.context.config = parse("daemon: {protect: all}")
    world.run(6)
    world.slurm.state.nodes["n2"] = replace(world.slurm.state.nodes["n2"], flags=frozenset(("NOT_RESPONDING",)))
    while not world.daemon.node_failures.suspicious:
        world.run(0.5)
    world.slurm.now_s -= DAY_S
    world.run(10)
    assert [row.kind for row in world.journal.incidents()] == ["node_lost"]
