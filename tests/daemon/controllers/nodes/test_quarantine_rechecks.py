"""Quarantines and their rechecks, against a simulated Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Six nodes, the defaults but for the mode."""
    made = World(tmp_path, FakeSlurm(), Config())
    yield made
    made.journal.close()


def test_recheck_that_cannot_tell_is_tried_again_then_given_back(tmp_path: Path) -> None:
    """Unknown is not unhealthy: five rechecks without a result, then back with a strike and an alert."""
    slurm = FakeSlurm(recheck_exit="3:0")
    world = World(tmp_path, slurm, Config())
    slurm.run_job(("n1", "n2"))
    world.run(6)
    world.claim(1, ("n2",))
    world.run(900, step_s=1.0)
    assert slurm.acts.count("submit") == 5
    assert not slurm.state.nodes["n2"].drained
    assert not slurm.state.reservations
    assert len(NodeLedger(world.journal).strikes("n2", 0)) == 1
    world.journal.close()


def test_suspect_that_holds_up_the_end_but_answers(world: World) -> None:
    """It is set DOWN so that the job can go on, brought back into its quarantine, checked, and back with a strike."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.slurm.stuck.add("n2")
    world.run(6)
    world.claim(1, ("n2",))
    world.run(60)
    assert world.slurm.acts.count("set_down n2") == 1
    assert world.slurm.acts.count("resume n2") == 1
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert not world.slurm.state.nodes["n2"].drained
    assert len(NodeLedger(world.journal).strikes("n2", 0)) == 1


def test_silent_node_in_quarantine_is_drained(world: World) -> None:
    """The suspect's slurmd is frozen: DOWN, silent, drained with what was witnessed, never resumed."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.run(6)
    node = world.slurm.state.nodes["n2"]
    world.slurm.state.nodes["n2"] = replace(node, flags=frozenset(("NOT_RESPONDING",)))
    world.claim(1, ("n2",))
    world.run(60)
    assert world.slurm.state.jobs[1].state == "RUNNING"
    assert "resume n2" not in world.slurm.acts
    drained = world.slurm.state.nodes["n2"]
    assert drained.reason.startswith("srobust: held up the end of job 1")
    assert drained.reason.count("does not respond") == 1
    assert "DRAIN" in drained.flags
    assert told(world) == [f"n2: {drained.reason}"], "what people read is the whole reason"


def told(world: World) -> list[str]:
    """What the log has of drained nodes."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'node.drained'")]


@pytest.mark.parametrize("falls_silent", [False, True])
def test_a_drain_that_only_ends_a_job_is_told_once_it_is_clear_what_the_node_is(
    world: World, *, falls_silent: bool
) -> None:
    """It answers, and is brought back to be checked: nobody is told. Or it does not: told with that, once."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.slurm.stuck.add("n2")
    world.run(6)
    world.claim(1, ("n2",))
    while "set_down n2" not in world.slurm.acts:
        world.run(0.5)
    if falls_silent:
        node = world.slurm.state.nodes["n2"]
        world.slurm.state.nodes["n2"] = replace(node, flags=node.flags | {"NOT_RESPONDING"})
    world.run(60)
    reason = world.slurm.state.nodes["n2"].reason
    assert told(world) == ([f"n2: {reason}"] if falls_silent else [])
    assert ("does not respond" in reason) is falls_silent


def test_a_node_that_slurm_gave_up_in_quarantine_is_drained_in_one_sentence(world: World) -> None:
    """`Not responding, and does not respond` says the same twice."""
    world.slurm.run_job(("n1", "n2", "n3"))
    world.run(6)
    world.claim(1, ("n2",))
    world.run(2)
    node = world.slurm.state.nodes["n2"]
    down = replace(node, state="DOWN", flags=frozenset(("NOT_RESPONDING",)), reason="Not responding")
    world.slurm.state.nodes["n2"] = down
    world.run(30)
    assert world.slurm.state.nodes["n2"].reason == "srobust: does not respond"


def test_quarantine_is_renewed_while_the_daemon_lives(tmp_path: Path) -> None:
    """A quarantine longer than its reservation is kept up, never for longer than the seat's duration ahead."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("quarantine: {claim_limit_s: 86400}"))
    slurm.run_job(("n2",), user="ben")  # the recheck waits for this job to end
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s))
    for _ in range(40):
        world.run(60, step_s=5.0)
        held = slurm.state.reservations["srobust-quarantine-n2"]
        assert slurm.now_s < held.end_at_s <= slurm.now_s + 660
    world.journal.close()


def test_a_claim_does_not_keep_a_node_while_others_jobs_run_on_it(world: World) -> None:
    """The check waits for another job there, which may take days: after a quarter of an hour the node is back."""
    slurm = world.slurm
    slurm.run_job(("n2",), user="ben")
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 7, "l", "why", slurm.now_s, slurm.now_s, user="ann"))
    world.run(860, step_s=5.0)
    assert "srobust-quarantine-n2" in slurm.state.reservations
    world.run(60, step_s=5.0)
    assert "srobust-quarantine-n2" not in slurm.state.reservations
    assert NodeLedger(world.journal).quarantines() == []
    assert slurm.state.jobs[1].state == "RUNNING"


def test_rechecks_that_cannot_tell_end_with_the_claims_limit(tmp_path: Path) -> None:
    """Each waits ten minutes to start in vain: the second one is the last."""
    slurm = FakeSlurm(recheck_exit="3:0")
    world = World(tmp_path, slurm, parse("quarantine: {claim_limit_s: 30}"))
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 7, "l", "why", slurm.now_s, slurm.now_s, user="ann"))
    world.run(120)
    assert slurm.acts.count("submit") == 2
    assert NodeLedger(world.journal).quarantines() == []
    assert not slurm.state.nodes["n2"].drained


@pytest.mark.parametrize("trouble", ["completing", "silent"])
def test_a_node_in_trouble_by_itself_stays_in_quarantine(world: World, trouble: str) -> None:
    """It does not end a job, or does not respond: that is more than a claim."""
    slurm = world.slurm
    job = slurm.run_job(("n2",), user="ben")
    if trouble == "completing":
        slurm.stuck.add("n2")
        slurm.state.jobs[1] = replace(job, completing=True)
    else:
        node = slurm.state.nodes["n2"]
        slurm.state.nodes["n2"] = replace(node, flags=frozenset(("NOT_RESPONDING",)))
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 7, "l", "why", slurm.now_s, slurm.now_s, user="ann"))
    world.run(1500, step_s=5.0)
    assert "srobust-quarantine-n2" in slurm.state.reservations


def test_recheck_whose_quarantine_ended_under_it_is_not_waited_for(world: World) -> None:
    """The daemon was away, the reservation ended, Slurm holds the recheck for ever: it is cancelled and done anew."""
    slurm = world.slurm
    node = Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s)
    NodeLedger(world.journal).quarantine(node)
    world.run(2.5)
    held = next(j for j in slurm.state.jobs.values() if j.name.startswith("srobust-recheck"))
    slurm.state.jobs[held.ref.job_id] = replace(
        held, state="RESV_DEL_HOLD", nodes=(), priority=0, reservation="", exit_code=""
    )
    world.run(120)
    assert slurm.state.jobs[held.ref.job_id].state == "CANCELLED"
    assert not NodeLedger(world.journal).quarantines()
    assert not slurm.state.reservations


@pytest.mark.parametrize("drained", [False, True])
def test_quarantine_is_released_once_its_recheck_has_let_go(tmp_path: Path, drained: bool) -> None:
    """The node of a recheck takes seconds to end it: the reservation is deleted once, after that, without a failure."""
    slurm = FakeSlurm()
    slurm.recheck_ends_s = 8.0
    world = World(tmp_path, slurm, Config())
    NodeLedger(world.journal).quarantine(Quarantine("n2", "k", 1, "l", "why", slurm.now_s, slurm.now_s))
    world.run(3.0)
    recheck = next(j for j in slurm.state.jobs.values() if j.name.startswith("srobust-recheck"))
    if drained:  # by the recheck's own prolog, while it runs
        slurm.drain("n2", "srobust: XID 79")
    world.run(30)
    assert slurm.acts.count("delete srobust-quarantine-n2") == 1
    assert slurm.acts.count(f"cancel {recheck.ref.address}") <= drained
    assert not NodeLedger(world.journal).quarantines()
    events = [r["what"] for r in world.journal.db.execute("SELECT what FROM events WHERE level = 'warning'")]
    assert [w for w in events if "quarantine" in w] == []
    if not drained:
        count = world.journal.db.execute("SELECT count(*) FROM strikes").fetchone()[0]
        assert count == 1
    world.journal.close()
