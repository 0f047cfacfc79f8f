"""The first line of `srobust status`: what needs a person now."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.daemon.api.needs import needs

JOB = {"job": "12", "user": "ann", "suspected_at_s": 900.0, "incident": "i1", "claim": "watching"}


def state(**more: Any) -> dict[str, Any]:
    """A snapshot in which all is well, but for this."""
    quiet = {"at_s": 1000.0, "breaker": {"open": False, "why": ""}, "jobs": [], "nodes": [], "standby": []}
    return {**quiet, "incidents": [], "waiting": [], "troubles": [], **more}


def test_all_is_well() -> None:
    """A suspicion that is still looked into, or acted on, is nobody's business yet."""
    assert needs(state(), 1000.0) == []
    assert needs(state(jobs=[JOB]), 1000.0) == []
    acted = [{"job": "12", "id": "i1", "outcome": "running"}]
    assert needs(state(jobs=[JOB], incidents=acted), 1000.0) == []


def test_a_hang_that_nobody_acts_on() -> None:
    """Which job, for how long, why nothing is done, and what to type; of its own incident, not of an earlier one's."""
    observed = [{"job": "12", "id": "i1", "outcome": "observed", "opened_at_s": 930.0}]
    (said,) = needs(state(jobs=[JOB], incidents=observed), 1000.0)
    assert said.startswith("job 12 of ann has made no progress for 1 min 40 s")
    assert "observe mode" in said
    assert said.endswith(": srobust incidents 12; srobust stacks 12; scontrol requeue 12 (starts it anew)")
    (since_its_step,) = needs(state(jobs=[{**JOB, "step_at_s": 700.0}], incidents=observed), 1000.0)
    assert "no progress for 5 min" in since_its_step
    assert needs(state(jobs=[{**JOB, "suspected_at_s": None}], incidents=observed), 1000.0) == []
    assert needs(state(jobs=[{**JOB, "incident": "i2"}], incidents=observed), 1000.0) == []


def test_a_recovery_goes_before_the_report_that_it_began_with() -> None:
    """A job first reports that it is only alerted on, and then claims: two rows of one incident."""
    alerted = {"job": "12", "id": "i1", "outcome": "alerted", "state": "closed", "opened_at_s": 930.0}
    recovery = {"job": "12", "id": "i1", "outcome": "", "state": "open"}
    for rows in (
        [alerted, recovery],
        [recovery, alerted],
        [alerted, {**recovery, "outcome": "resumed", "state": "closed"}],
    ):
        assert needs(state(jobs=[JOB], incidents=rows), 1000.0) == []
    other = {"job": "12", "id": "by-daemon", "outcome": "", "state": "open"}
    assert needs(state(jobs=[JOB], incidents=[alerted, other]), 1000.0) == [], "the daemon brings it back by itself"
    (said,) = needs(state(jobs=[JOB], incidents=[alerted]), 1000.0)
    assert "alert only" in said


def test_the_most_urgent_comes_first() -> None:
    """The daemon's own troubles, the breaker, jobs, nodes."""
    said = needs(
        state(
            troubles=["the disk is full: df -h /x"],
            breaker={"open": True, "why": "XID storm"},
            waiting=[{"job": "7", "reason": "JobHeldAdmin"}, {"job": "8", "reason": "JobHeldUser"}],
            nodes=[{"name": "n3", "owner": "srobust"}, {"name": "n4", "owner": "foreign"}],
            standby=[{"short": 2, "short_since_s": 1000.0 - 3601.0}],
        ),
        1000.0,
    )
    starts = ("the disk is full", "the breaker is open (XID storm)", "job 7 is held", "n3 is drained", "the standby")
    assert [s.startswith(start) for s, start in zip(said, starts, strict=True)] == [True] * 5


def test_a_pool_that_is_short_needs_nobody_for_an_hour() -> None:
    """It is filled as soon as a node is free; of older daemons nobody knows since when."""
    for pool in ({"short": 1, "short_since_s": 900.0}, {"short": 1}, {"short": 0, "short_since_s": None}):
        assert needs(state(standby=[pool]), 1000.0) == []


@pytest.mark.parametrize("reason", ["JobHeldUser", "job requeued in held state"])
def test_a_job_that_its_user_holds_needs_nobody(reason: str) -> None:
    """`scontrol hold` and `scontrol requeuehold`: whoever releases it overrides its owner."""
    assert needs(state(waiting=[{"job": "16", "reason": reason}]), 1000.0) == []
    (said,) = needs(state(waiting=[{"job": "16", "reason": "launch failed requeued held"}]), 1000.0)
    assert said.endswith("scontrol release 16")


def test_only_nodes_that_are_left_out_are_dots() -> None:
    """Four fit."""
    nodes = [{"name": f"n{n}", "owner": "srobust"} for n in range(1, 6)]
    assert needs(state(nodes=nodes[:2]), 1000.0)[0].startswith("2 nodes (n1, n2) are drained")
    assert needs(state(nodes=nodes), 1000.0)[0].startswith("5 nodes (n1, n2, n3, n4, …) are drained")


def test_a_target_that_takes_no_message() -> None:
    """After ten minutes: before, it is tried again; at once if the daemon cannot read its secret."""
    target = {"target": "oncall", "failing_since_s": 1000.0, "error": "answered 404"}
    assert needs(state(notify=[target]), 1000.0) == []
    (said,) = needs(state(at_s=5000.0, notify=[target]), 5000.0)
    assert said == "nobody is told by oncall (answered 404): srobust notify test --target oncall"
    assert needs(state(notify=[{**target, "failing_since_s": None}]), 1000.0) == []
    unread = {**target, "error": "/etc/oncall.url cannot be read (Permission denied): ls -l /etc/oncall.url"}
    assert len(needs(state(notify=[unread]), 1000.0)) == 1


def test_an_old_snapshot_never_says_that_all_is_well() -> None:
    """What it shows may have changed."""
    (said,) = needs(state(), 1100.0)
    assert "1 min 40 s old" in said


def test_a_snapshot_of_an_older_daemon_is_read() -> None:
    """It lacks what this version added."""
    older = state()
    for key in ("waiting", "troubles"):
        del older[key]
    job = {k: v for k, v in JOB.items() if k != "suspected_at_s"}
    assert needs({**older, "jobs": [job]}, 1000.0) == []


def test_nodes_of_a_storm_of_faults_are_named_for_an_hour() -> None:
    """Nothing is done about them, and their markers are gone; one that was drained since is told as such."""
    storm = {"at_s": 900.0, "kinds": ["xid"], "nodes": ["k1", "k3"]}
    nodes = [{"name": name, "owner": "", "node_state": "idle"} for name in ("k1", "k2", "k3")]
    (said,) = needs(state(nodes=nodes, fault_storm=storm), 1000.0)
    assert said.startswith("k1, k3 reported faults within a minute (xid)")
    assert said.endswith("type on each: srobust check")
    assert needs(state(nodes=nodes, fault_storm={**storm, "at_s": 1000.0 - 3601.0}), 1000.0) == []
    nodes[0]["owner"] = nodes[2]["owner"] = "foreign"
    assert needs(state(nodes=nodes, fault_storm=storm), 1000.0) == []
    assert needs(state(fault_storm=None), 1000.0) == []


def test_a_job_that_was_not_brought_back_and_the_nodes_it_lost() -> None:
    """Slurm's queue is all that it has left; nodes that a person or a power saver took down are nobody's loss."""
    row = {"job": "35", "id": "node-w4", "outcome": "not_started", "state": "closed"}
    older = {"job": "35", "id": "i0", "outcome": "resumed", "state": "closed"}
    waits = {"job": "35", "reason": "Resources", "left_out": {}}
    nodes = [
        {"name": "w4", "state": "DOWN+NOT_RESPONDING", "owner": "slurm"},
        {"name": "w5", "state": "DOWN+NOT_RESPONDING", "owner": ""},
        {"name": "w6", "state": "DOWN", "owner": "foreign"},
        {"name": "w7", "state": "DOWN+POWERED_DOWN", "owner": ""},
    ]
    first, second = needs(state(incidents=[row, older], waiting=[waits], nodes=nodes), 1000.0)
    assert first == "job 35 was not brought back and waits (Resources): srobust incidents 35"
    assert second.startswith("2 nodes (w4, w5) are DOWN: sinfo -R")
    assert second.endswith("NodeName=w4,w5 State=RESUME")
    assert needs(state(incidents=[older, row], waiting=[waits], nodes=nodes), 1000.0) == []
    assert needs(state(incidents=[row], nodes=nodes), 1000.0) == [], "it runs again"
    soon = {**waits, "reason": "BeginTime"}
    assert needs(state(incidents=[row], waiting=[soon], nodes=nodes), 1000.0) == []
