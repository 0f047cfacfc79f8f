"""The seat road on a real Slurm: claim, quarantine, seat, requeue, running, recheck."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.daemon.controllers.breaker import request_reset
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.marks.claim import Claim, parse_answer, split
from slurm_robust.slurm.client import Node

pytestmark = pytest.mark.slurm

UNFIT = ["/bin/sh", "-c", "scontrol update jobid=$SLURM_JOB_ID comment='srobust-check: unfit: XID 79 on GPU 3'; exit 1"]


def test_claim_to_running_on_survivors_and_standby(scene: Scene, record_property: pytest.RecordProperty) -> None:
    """A claim moves the job off its suspect onto a standby node; a queued competitor stays queued; nothing is left."""
    scene.start(standby={"size": 1})
    wait_until(lambda: "standby.checked" in scene.log.read_text(), 30, "a standby node that has been checked")
    job = scene.submit("-N3", "--exclusive")
    before = scene.watched(job)
    suspect, spare = before.nodes[1], ({"n1", "n2", "n3", "n4"} - set(before.nodes)).pop()
    scene.cluster.run(["scontrol", "update", f"JobId={job}", "AdminComment=ticket 7"])
    competitor = scene.submit("-N2", "--exclusive", script="sleep 600")
    asked_s = scene.claim(job, [suspect])
    after = scene.running(job, restart=1)
    asked_to_running_s = time.time() - asked_s
    assert set(after.nodes) == set(before.nodes) - {suspect} | {spare}
    assert scene.job(competitor).state == "PENDING"
    incident = scene.await_incident(job, outcome="resumed")
    times = incident["times"]
    decision_to_running_s = times["running"] - times["accepted"]
    record_property("asked_to_running_s", round(asked_to_running_s, 2))
    record_property("decision_to_running_s", round(decision_to_running_s, 2))
    # A plain requeue takes 121 s; this machine is shared, so the bound is a loose one.
    assert decision_to_running_s < 60
    # `running` is when the daemon saw it, which looks now and then; the first step is told by the job itself.
    assert times["accepted"] <= times["stopped"] <= times["running"] <= times["first_new_step"] + 5
    left = scene.job(job)
    assert left.reservation == ""
    assert (left.exclude, left.req_nodes) == (suspect, "")
    own_words, _ = split(left.admin_comment)
    answer = parse_answer(left.admin_comment)
    assert own_words == "ticket 7"
    assert answer is not None
    assert (answer.state, answer.road, answer.standby) == ("accepted", "seat", (spare,))
    assert split(left.comment)[0] == "mine"
    wait_until(lambda: not [n for n in scene.ours() if "standby" not in n], 20, "seat and quarantine are gone")
    assert not scene.node(suspect).drained
    journal = scene.journal()
    assert len(NodeLedger(journal).strikes(suspect, 0)) == 1
    journal.close()
    # Slurm shows the end of an action before the daemon has looked and written it down.
    wait_until(lambda: all(a.done_at_s for a in scene.await_incident(job)["actions"]), 20, "all actions are done")


def test_failed_recheck_drains_with_the_evidence_and_trips_the_breaker(scene: Scene) -> None:
    """Unfit: drained with the check's sentence; past the bound nothing is taken out for a claim, and jobs still move.

    A drain past the bound opens the breaker.
    """
    scene.start(quarantine={"recheck_command": UNFIT}, breaker={"max_drains": 1})
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    wait_until(lambda: "srobust-drain-permit" in scene.node(suspect).comment, 10, "a drain permit on the nodes")
    scene.claim(job, [suspect])
    scene.running(job, restart=1)
    node = wait_until(lambda: scene.node(suspect).drained and scene.node(suspect), 20, "the suspect is drained")
    assert node.reason == "srobust: XID 79 on GPU 3"
    wait_until(lambda: not scene.ours(), 10, "the quarantine is over")

    second = scene.watched(job, restart=1).nodes[1]
    scene.claim(job, [second], restart=1, incident="i2")
    scene.running(job, restart=2)
    assert f"{second} stays in service" in scene.await_incident(job, id="i2")["plan"]["reason"]
    assert f"srobust-quarantine-{second}" not in scene.ours()
    assert "breaker.open" not in scene.log.read_text()
    scene.client.drain(second, "srobust: XID 79 on GPU 3")
    wait_until(lambda: "breaker.open" in scene.log.read_text(), 20, "the breaker opens at the second drain")
    scene.client.resume(second)
    wait_until(lambda: scene.node(second).usable, 20, "a person has resumed the node")
    wait_until(lambda: "srobust-drain-permit" not in scene.node(second).comment, 10, "the permit is withdrawn")
    third = scene.watched(job, restart=2).nodes[0]
    scene.claim(job, [third], restart=2, incident="i3")
    scene.running(job, restart=3)
    assert f"{third} stays in service" in scene.await_incident(job, id="i3")["plan"]["reason"]
    assert not scene.node(third).drained
    assert f"srobust-quarantine-{third}" not in scene.ours()
    journal = Journal.open(scene.state_dir)
    request_reset(journal, time.time(), "a person")
    journal.close()
    wait_until(lambda: "srobust-drain-permit" in scene.node(third).comment, 15, "a permit is given again")


def test_strikes_of_different_users_jobs_drain(scene: Scene) -> None:
    """A node that passes every check, but is suspected by jobs of two users, is drained at the site's count."""
    journal = Journal.open(scene.state_dir)
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[1]
    earlier = Quarantine(suspect, "k", 999, "line-999", "hang", 0.0, 0.0, user="ann")
    NodeLedger(journal).strike(earlier, time.time() - 60, "passed")
    journal.close()
    scene.start(quarantine={"strikes_to_drain": 2})
    scene.claim(job, [suspect])
    wait_until(lambda: scene.node(suspect).drained, 30, "drained by strikes")
    assert scene.node(suspect).reason.startswith("srobust: 2 strikes in 14 days, from different jobs (ann 1, root 1)")


def test_a_claim_past_a_bound_moves_the_job_and_takes_no_node_out(scene: Scene) -> None:
    """The first time for its weak evidence, then for the user's bound: the job goes on elsewhere, and is told why."""
    scene.start(quarantine={"max_per_user_hour": 1, "recheck_command": ["/bin/sleep", "600"]})
    jobs = [scene.submit("-N1", "--exclusive") for _ in range(2)]
    first, second = (scene.watched(job).nodes[0] for job in jobs)
    scene.claim(jobs[0], [first], grade="weak")
    scene.running(jobs[0], restart=1)
    wait_until(lambda: "first_new_step" in scene.await_incident(jobs[0])["times"], 20, "the job has told its times")
    assert "evidence is weak" in scene.await_incident(jobs[0])["plan"]["reason"]
    assert not [name for name in scene.ours() if "quarantine" in name]
    scene.claim(jobs[1], [second], grade="strong")
    scene.running(jobs[1], restart=1)
    assert [name for name in scene.ours() if "quarantine" in name] == [f"srobust-quarantine-{second}"]
    third = scene.watched(jobs[1], restart=1).nodes[0]
    scene.claim(jobs[1], [third], restart=1, incident="i2", step=9)
    after = scene.running(jobs[1], restart=2)
    assert third not in after.nodes
    answer = parse_answer(scene.job(jobs[1]).admin_comment)
    assert answer is not None
    assert f"quarantine.max_per_user_hour is 1: {third} stays in service" in answer.why
    kept = [line for line in scene.log.read_text().splitlines() if "claim.suspect_kept: " in line]
    assert [f"{node} stays in service" in line for node, line in zip((first, third), kept, strict=True)] == [True] * 2
    assert [name for name in scene.ours() if "quarantine" in name] == [f"srobust-quarantine-{second}"]
    assert not scene.node(third).drained


def test_array_task_leaves_its_siblings_alone(scene: Scene) -> None:
    """The claim of one task of an array, the one that carries the array's own id, requeues that task only."""
    scene.start()
    array = scene.submit("-N1", "--exclusive", "--array=0-2")
    tasks = {f"{array}_{i}": scene.watched(f"{array}_{i}") for i in range(3)}
    leader = next(address for address, job in tasks.items() if job.ref.job_id == array)
    scene.claim(leader, list(tasks[leader].nodes))
    after = scene.running(leader, restart=1)
    assert set(after.nodes).isdisjoint(tasks[leader].nodes)
    for address, job in tasks.items():
        if address != leader:
            now = scene.job(address)
            assert (now.state, now.restart_count, now.start_at_s) == ("RUNNING", 0, job.start_at_s)


def test_maintenance_window_ahead(scene: Scene) -> None:
    """With a window ahead, the time limit is lowered to what fits; with too little left, nothing is stopped."""
    scene.start()
    job = scene.submit("-N2", "--exclusive", "--time=60")
    before = scene.watched(job)
    create = ["scontrol", "create", "reservation", "users=root", "duration=30", "nodes=ALL", "flags=MAINT,IGNORE_JOBS"]
    scene.cluster.run([*create, "reservationname=window", "starttime=now+20minutes"])
    wait_until(lambda: len(scene.client.reservations()) == 1, 5, "the window")
    scene.claim(job, [before.nodes[0]])
    after = scene.running(job, restart=1)
    assert after.time_limit_s is not None
    assert 15 * 60 <= after.time_limit_s <= 19 * 60
    assert "window" in scene.await_incident(job)["recovery"]["reason"]
    scene.watched(job, restart=1)
    scene.cluster.run(["scontrol", "update", "reservationname=window", "starttime=now+5minutes"])
    scene.claim(job, [after.nodes[0]], restart=1, incident="i2")
    assert "window" in scene.await_incident(job, id="i2", outcome="refused")["reason"]
    wait_until(
        lambda: (a := parse_answer(scene.job(job).admin_comment)) and (a.state, a.incident) == ("refused", "i2"),
        10,
        "the answer names this claim",
    )
    assert scene.job(job).state == "RUNNING"


def _one_is_suspected(scene: Scene, nodes: str) -> tuple[Path, int]:
    """A user's job on all four nodes accuses one of them, whose check passes as soon as this file is removed."""
    unchecked, check = scene.waiting_check()
    unchecked.touch()
    scene.start(quarantine={"recheck_command": check})
    job = scene.submit(nodes, "--exclusive", "--requeue", user="daemon", script="exec sleep 600")
    suspect = scene.running(job).nodes[2]
    scene.say(job, Claim("wants", "l", incident="i1", evict=(suspect,), why="hangs"), user="daemon")
    return unchecked, job


def test_job_of_all_nodes_waits_for_its_suspects_check(scene: Scene) -> None:
    """No node can take its place. Until then the survivors are held for the job, and closed to its user."""
    unchecked, job = _one_is_suspected(scene, "-N4")
    wait_until(lambda: "action.recheck" in scene.log.read_text(), 30, "the suspect's check")
    wait_until(lambda: scene.job(job).reason not in ("", "BeginTime", "None"), 30, "the job waits for a node")
    seat = scene.ours()[f"srobust-seat-{job}"]
    assert (scene.job(job).state, scene.job(job).reservation, seat.users) == ("PENDING", "", ("root",))
    unchecked.unlink()
    assert len(scene.running(job, restart=1).nodes) == 4
    scene.await_incident(job, outcome="running")
    wait_until(lambda: not scene.ours(), 20, "nothing of ours is left")


def test_job_that_needs_fewer_nodes_starts_on_those_of_its_seat(scene: Scene) -> None:
    """Slurm shows how many nodes a requeued job had, not that two are enough: the others are no reason to wait."""
    unchecked, job = _one_is_suspected(scene, "-N2-4")
    assert len(scene.running(job, restart=1).nodes) == 3
    unchecked.unlink()


def test_foreign_drain_is_left_alone(scene: Scene) -> None:
    """A suspect that a person drained is excluded from the job, and otherwise stays exactly as the person left it."""
    scene.start()
    job = scene.submit("-N2", "--exclusive")
    suspect = scene.watched(job).nodes[0]
    scene.cluster.run(["scontrol", "update", f"nodename={suspect}", "state=drain", "reason=fan broken (ann)"])
    scene.claim(job, [suspect])
    assert suspect not in scene.running(job, restart=1).nodes
    scene.await_incident(job, outcome="resumed")
    node = scene.node(suspect)
    assert (node.reason, node.drained) == ("fan broken (ann)", True)
    assert not scene.ours()


def test_observe_changes_nothing(scene: Scene) -> None:
    """In observe mode the same plan stands in the journal, and Slurm is exactly as it was."""
    job = scene.submit("-N2", "--exclusive")
    before = scene.watched(job)
    # What the stories before left behind on this cluster has settled.
    passing = {"COMPLETING", "NOT_RESPONDING", "RESERVED"}
    wait_until(lambda: not any(n.flags & passing for n in scene.client.nodes()), 30, "nodes at rest")
    nodes = _nodes(scene)
    scene.start(mode="observe", standby={"size": 1})
    scene.claim(job, [before.nodes[0]])
    incident = scene.await_incident(job, outcome="observed")
    assert tuple(incident["recovery"]["bad"]) == (before.nodes[0],)
    assert [a.calls for a in incident["actions"]] == [0] * len(incident["actions"])
    assert len(incident["actions"]) >= 8
    time.sleep(1.5)  # nothing to wait for: it is shown that nothing comes
    after = scene.job(job)
    assert replace(after, comment=before.comment) == before
    assert _nodes(scene) == nodes
    assert not scene.client.reservations()


def _nodes(scene: Scene) -> list[Node]:
    """As Slurm shows them, less the second at which they booted: slurmd computes it anew each time it registers."""
    return [replace(node, boot_at_s=0) for node in scene.client.nodes()]


def test_others_requeue_is_never_shortened(scene: Scene) -> None:
    """A supervised job that an administrator requeues waits as long as Slurm says."""
    scene.start()
    job = scene.submit("-N2", "--exclusive")
    scene.watched(job)
    scene.cluster.run(["scontrol", "requeue", str(job)])
    wait_until(lambda: scene.job(job).state == "PENDING", 20, "requeued")
    time.sleep(1.5)  # nothing to wait for: it is shown that nothing comes
    now = scene.job(job)
    assert now.reason == "BeginTime"
    assert now.start_at_s > time.time() + 90
    assert not scene.ours()
