"""Claims that ask for too much, or are no claims at all; and what the daemon costs while nothing happens."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.marks.claim import Claim, parse_answer, render

pytestmark = pytest.mark.slurm

WORDS = ("[[srobust:1 {]]", "[[srobust:1 " + "[" * 900 + "]]", "[[srobust:")
"""Not even the form of a claim: a user's own words."""
NOT_CLAIMS = (
    "[[srobust:1 {]}]]",
    '[[srobust:1 {"state":"wants","lineage":"l","incident":"i","evict":"n1"}]]',
    '[[srobust:1 {"state":"wants","lineage":"$(touch /tmp/x)","incident":"i"}]]',
    '[[srobust:1 {"state":"wants","lineage":"l","incident":"\'; DROP TABLE incidents;--"}]]',
    '[[srobust:1 {"state":"wants","lineage":"l","incident":"i","evict":["n1 State=DOWN"]}]]',
    '[[srobust:1 {"state":"wants","lineage":"l","incident":"i","evict":["ALL","n[1-4]"]}]]',
    '[[srobust:9 {"state":"wants","lineage":"l","incident":"i"}]]',
    '[[srobust:1 {"state":"wants","lineage":"l"}]]',
    '[[srobust:1 {"state":"wants","lineage":"l","incident":"i","at_s":1e999}]]',
)


def test_hostile_claims_do_nothing(scene: Scene) -> None:
    """Malformed, hostile and foreign claims of an ordinary user: refused and logged, and nothing else happens."""
    scene.start()
    job = scene.submit("-N2", "--exclusive", user="nobody", script="sleep 600")
    other = scene.submit("-N1", "--exclusive", script="sleep 600")
    mine, foreign = scene.running(job), scene.running(other).nodes[0]
    wait_until(lambda: all(n.usable for n in scene.client.nodes()), 20, "every node has registered")
    # A node that registers anew on a busy machine may count its time since boot a second differently.
    nodes = [replace(n, comment="", boot_at_s=0) for n in scene.client.nodes()]
    for text in WORDS:
        scene.say(job, text, user="nobody")
        time.sleep(0.3)
    for text in NOT_CLAIMS:
        seen = scene.log.read_text().count("claim.")
        scene.say(job, text, user="nobody")
        if seen < 6:  # after six lines a minute about one job, the log keeps quiet
            wait_until(lambda n=seen: scene.log.read_text().count("claim.") > n, 10, f"{text[:60]} is logged")
        else:
            time.sleep(0.3)
    # Well-formed, and about a node that is not the job's own: refused whole, its own node untouched too.
    claim = Claim("wants", "l", incident="grab", evict=(mine.nodes[0], foreign), why="give me that")
    scene.say(job, claim, user="nobody")
    incident = scene.await_incident(job, id="grab", outcome="refused")
    assert foreign in incident["reason"]
    # Of an attempt that is not running.
    scene.say(job, Claim("wants", "l", restart=3, incident="future", evict=(mine.nodes[0],)), user="nobody")
    for number in range(40):
        scene.say(job, Claim("wants", "l", incident=f"flood{number}", evict=(foreign,)), user="nobody")
    time.sleep(1)  # nothing to wait for: it is shown that nothing comes
    now = scene.job(job)
    assert (now.state, now.restart_count, now.start_at_s) == ("RUNNING", 0, mine.start_at_s)
    assert [replace(n, comment="", boot_at_s=0) for n in scene.client.nodes()] == nodes
    assert not scene.client.reservations()
    journal = scene.journal()
    rows = journal.incidents()
    journal.close()
    assert {row.outcome for row in rows} == {"refused"}
    assert len(rows) <= 5  # refused claims of one job are written down five times an hour
    answer = parse_answer(now.admin_comment)
    assert answer is not None
    assert answer.state == "refused"


def test_caps_and_no_requeue(scene: Scene) -> None:
    """Past the day's cap, or for a job that must not be requeued, the claim is refused with the reason."""
    scene.start(seat={"max_per_job_day": 1})
    fixed = scene.submit("-N1", "--exclusive", "--no-requeue")
    job = scene.submit("-N2", "--exclusive")
    scene.claim(fixed, list(scene.watched(fixed).nodes))
    assert "--no-requeue" in scene.await_incident(fixed, outcome="refused")["reason"]
    scene.watched(job)
    scene.claim(job, [])
    scene.watched(job, restart=1)
    scene.await_incident(job, outcome="resumed")
    scene.claim(job, [], restart=1, incident="i2")
    assert "max_per_job_day" in scene.await_incident(job, id="i2", outcome="refused")["reason"]
    assert scene.job(job).restart_count == 1


def test_a_job_that_comes_no_further_leaves_the_seats_to_others(scene: Scene) -> None:
    """Seats in a row after which it told no new step are bounded, whatever it calls its lineage; others have theirs."""
    scene.start(supervise={"fruitless_attempts": 1})
    job, other = (scene.submit("-N1", "--exclusive") for _ in range(2))
    scene.watched(job)
    scene.claim(job, [], step=5)
    scene.watched(job, restart=1)
    scene.await_incident(job, outcome="resumed")
    scene.claim(job, [], restart=1, incident="i2", step=5)
    assert "no new step" in scene.await_incident(job, id="i2", outcome="refused")["reason"]
    scene.claim(job, [], restart=1, incident="i3", step=6)
    scene.watched(job, restart=2)
    scene.watched(other)
    scene.claim(other, [])
    scene.watched(other, restart=1)


def test_seat_that_does_not_start_is_let_go(scene: Scene) -> None:
    """No node of the kind is free: the seat is released in time with Slurm's reason; the job waits unheld.

    Once the suspect has passed its check, the job may have it back: it does not wait for ever.
    """
    scene.start(seat={"start_timeout_s": 2.0}, quarantine={"recheck_command": ["/bin/sleep", "4"]})
    job = scene.submit("-N4", "--exclusive")
    suspect = scene.watched(job).nodes[2]
    scene.claim(job, [suspect])
    incident = scene.await_incident(job, outcome="not_started")
    assert "Slurm says" in incident["reason"]
    assert f"srobust-seat-{job}" not in scene.ours()
    waiting = scene.job(job)
    assert (waiting.reservation, waiting.state) == ("", "PENDING")
    assert waiting.priority > 0
    assert len(scene.running(job, restart=1).nodes) == 4
    assert scene.job(job).exclude == ""


def test_own_reservation_and_exclusions_are_kept(scene: Scene) -> None:
    """A job in a reservation of its own, with exclusions of its own, has both again once it runs."""
    scene.start()
    create = ["scontrol", "create", "reservation", "users=root", "duration=60", "nodes=n[1-3]", "starttime=now"]
    scene.cluster.run([*create, "reservationname=team"])
    job = scene.submit("-N2", "--exclusive", "--reservation=team", "--exclude=n1")
    assert set(scene.watched(job).nodes) == {"n2", "n3"}
    scene.claim(job, [])
    assert set(scene.running(job, restart=1).nodes) == {"n2", "n3"}
    scene.await_incident(job, outcome="resumed")
    now = scene.job(job)
    assert (now.reservation, now.exclude) == ("team", "n1")


def test_idle_daemon_asks_slurm_once_a_second(scene: Scene) -> None:
    """With nothing going on, at most one call to Slurm a second."""
    scene.start(daemon={"idle_interval_s": 1.0})
    path = scene.state_dir / "state.json"

    def calls() -> tuple[int, float]:
        state = json.loads(path.read_text())
        return int(state["slurm_calls"]), float(state["at_s"])

    wait_until(lambda: path.exists() and calls()[0] >= 11, 20, "it has settled")
    first, first_at_s = calls()
    wait_until(lambda: calls()[1] > first_at_s + 4, 20, "four seconds")
    last, last_at_s = calls()
    assert first < last <= first + (last_at_s - first_at_s) + 1


def test_claim_survives_beside_the_users_words() -> None:
    """What the scene's jobs say is what the wrapper says: the same protocol, by the same function."""
    assert render(Claim("watching", "l"), "mine").startswith("mine [[srobust:1 ")
