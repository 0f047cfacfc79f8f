"""Sums for Prometheus: each row of the journal is counted once, over restarts, a full disk and what is forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config
from slurm_robust.daemon.counted import BUCKETS_S
from slurm_robust.daemon.store.journal import FILE_NAME, Journal
from slurm_robust.daemon.store.schema import MIGRATIONS
from slurm_robust.daemon.totals import MAX_EVENTS, gpus_of
from slurm_robust.slurm.client import Node


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job on n1 to n3, and time."""
    made = World(tmp_path, FakeSlurm(), Config())
    for name, node in made.slurm.state.nodes.items():
        made.slurm.state.nodes[name] = replace(node, gres="gpu:h100:8(S:0-1)")
    made.slurm.run_job(("n1", "n2", "n3"))
    run(made, 6)
    yield made
    made.journal.close()


def run(world: World, seconds: int) -> None:
    """Let time pass; after each second the daemon publishes, and counts first."""
    for _ in range(seconds):
        world.run(1)
        world.daemon.totals.tick()


def counters(world: World) -> dict[str, float]:
    """All sums of the running daemon."""
    found: dict[str, float] = world.daemon.totals.shown()["counters"]
    return found


def whole_recovery(world: World) -> None:
    """A claim against n2, a seat, and a new step."""
    world.claim(1, ("n2",), times={"suspected": world.slurm.now_s - 10, "decided": world.slurm.now_s - 2})
    run(world, 20)
    world.claim(1, (), state="watching", times={"first_new_step": world.slurm.now_s}, step=30)
    run(world, 10)
    assert world.outcomes() == ["resumed"]


def test_a_whole_recovery(world: World) -> None:
    """Its beginning, its end, its stages, what was replaced, and the GPU seconds until the first new step."""
    whole_recovery(world)
    found = counters(world)
    assert found["incidents_opened|claim"] == found["incidents|claim|seat|resumed"] == found["claims|accepted"] == 1
    assert (found["standby_replacements|hit"], found["standby_replacements|miss"]) == (1, 0)
    times = world.daemon.totals.shown()["times"]
    stages = {key.split("|")[1] for key in times if key.startswith("stage|")}
    assert stages == {"decided", "accepted", "stopped", "running", "first_new_step"}
    (row,) = world.journal.incidents()
    took_s = row.incident.times["first_new_step"] - row.incident.times["suspected"]
    assert times["recovery|seat"]["sum_s"] == pytest.approx(took_s)
    assert sum(times["recovery|seat"]["counts"]) == 1
    assert len(times["recovery|seat"]["counts"]) == len(BUCKETS_S) + 1
    assert found["gpu_seconds_lost|seat"] == pytest.approx(took_s * 24, rel=0.001)


def test_nothing_is_counted_twice_after_a_restart_or_missed_when_it_is_forgotten(world: World) -> None:
    """A new life goes on with the old sums; the retention takes rows, not sums."""
    whole_recovery(world)
    before = counters(world)
    world.live()
    assert counters(world) == before
    run(world, 3)
    assert counters(world)["incidents|claim|seat|resumed"] == 1
    world.journal.forget_before(world.slurm.now_s + 1)
    run(world, 3)
    world.journal.event(world.slurm.now_s, "info", "node.back", "n9 is back")
    run(world, 3)
    assert counters(world)["incidents|claim|seat|resumed"] == 1
    assert counters(world)["events|node.back"] == before.get("events|node.back", 0) + 1


def test_a_drain_and_one_that_was_for_nothing(world: World) -> None:
    """Two drains, another reason for one of them: two drains. One node is back within the hour, one after it."""
    world.slurm.drain("n5", "srobust: XID 79")
    world.slurm.drain("n6", "srobust: XID 48")
    run(world, 5)
    world.daemon.ledger.drained_again("n5", world.slurm.now_s, "srobust: XID 79, rebooted")
    run(world, 2)
    assert counters(world)["drains"] == 2
    for node in ("n5", "n6"):
        world.daemon.ledger.drain_ended(node, world.slurm.now_s + (3700 if node == "n6" else 5))
    world.daemon.totals.tick()
    world.slurm.pass_s(2)
    world.daemon.totals.tick()
    found = counters(world)
    assert (found["drains"], found["drains_ended"], found["drains_reverted"]) == (2, 2, 1)


def test_a_damaged_incident_is_passed_over(world: World) -> None:
    """The others are counted all the same."""
    whole_recovery(world)
    world.journal.db.execute("UPDATE incidents SET counted = 0")
    world.journal.db.execute(
        "INSERT INTO incidents SELECT 'bad', id, 77, '77', user, lineage, cluster, restart, start_at_s, kind, mode, "
        "'closed', outcome, reason, 1e9, 1e9, 'no JSON', recovery, times, report, seat, abort, plan, confidence, step, "
        "claimed_at_s, 0 FROM incidents"
    )
    before = counters(world)["incidents_opened|claim"]
    run(world, 2)
    assert counters(world)["incidents_opened|claim"] == before + 1


def test_a_refused_claim_and_the_checks(world: World) -> None:
    """What the audit log says of checks, and an event of many names, which stays bounded."""
    world.claim(1, ("n1", "n2", "n3", "n9"))
    run(world, 2)
    journal = world.journal
    for what, text in (
        ("standby.checked", "n4: passed"),
        ("pair_test.ended", "n[4-5]: failed together. link"),
        ("pair_test.ended", "n[4-5]: passed"),
        ("quarantine.left", "n1: drained: XID 79"),
        ("quarantine.left", "n1: somebody else drained it"),
    ):
        journal.event(1.0, "info", what, text)
    for number in range(MAX_EVENTS + 10):
        journal.event(1.0, "info", f"odd.{number}", "")
    run(world, 2)
    found = counters(world)
    assert found["claims|refused"] == 1
    checks = {key: number for key, number in found.items() if key.startswith("checks|")}
    assert checks == {
        "checks|standby|passed": 1,
        "checks|pair|together": 1,
        "checks|pair|passed": 1,
        "checks|recheck|failed": 1,
    }
    assert len([key for key in found if key.startswith("events|")]) == MAX_EVENTS + 1
    assert found["events|other"] >= 10


@pytest.mark.parametrize("claims", [True, False])
def test_what_is_alerted_and_then_claimed_is_one_incident(world: World, claims: bool) -> None:
    """The report waits for the claim of the same incident, for an hour; without one it is an incident of its own."""
    world.claim(1, (), state="watching", road="alert_only", mode="act")
    run(world, 5)
    assert world.outcomes() == ["alerted"]
    assert not [name for name in counters(world) if name.startswith("incidents")]
    if claims:
        whole = {"times": {"suspected": world.slurm.now_s - 10}}
        world.claim(1, ("n2",), **whole)
        run(world, 20)
        world.claim(1, (), state="watching", times={"first_new_step": world.slurm.now_s}, step=30)
        run(world, 10)
    world.slurm.now_s += 3600
    run(world, 8)
    found = {name: number for name, number in counters(world).items() if name.startswith("incidents")}
    one = {"incidents_opened|claim": 1, "incidents|claim|seat|resumed": 1}
    assert found == (one if claims else {"incidents_opened|report": 1, "incidents|report|alert_only|alerted": 1})


@pytest.mark.parametrize(("mode", "outcome"), [("act", "resumed"), ("observe", "observed")])
def test_what_is_alerted_and_then_acted_on_by_the_job_is_one_incident(world: World, mode: str, outcome: str) -> None:
    """A hang that was not sure enough is restarted in place at the action limit, or would be."""
    world.claim(1, (), state="watching", road="alert_only", mode=mode)
    run(world, 5)
    world.claim(1, (), state="watching", road="restart_in_place", mode=mode)
    run(world, 5)
    times = {"first_new_step": world.slurm.now_s}
    world.claim(1, (), state="watching", road="restart_in_place", mode=mode, times=times, step=30)
    run(world, 5)
    world.slurm.now_s += 3600
    run(world, 8)
    found = {name: number for name, number in counters(world).items() if name.startswith("incidents")}
    assert found == {"incidents_opened|report": 1, f"incidents|report|restart_in_place|{outcome}": 1}


def test_a_full_disk_is_counted_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither lost nor counted twice; what is shown stays as it was."""
    before = counters(world)
    world.slurm.drain("n5", "srobust: XID 79")
    world.run(5)
    put = world.journal.put

    def full(key: str, value: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(world.journal, "put", full)
    world.daemon.totals.tick()
    assert counters(world) == before
    monkeypatch.setattr(world.journal, "put", put)
    run(world, 2)
    assert counters(world)["drains"] == before.get("drains", 0) + 1


def test_a_journal_of_an_older_version_is_counted_from_its_beginning(tmp_path: Path) -> None:
    """Incidents that closed before there were sums."""
    db = sqlite3.connect(tmp_path / FILE_NAME)
    for script in MIGRATIONS[:5]:
        db.executescript(script)
    db.execute("PRAGMA user_version = 5")
    for number in range(3):
        db.execute(
            "INSERT INTO incidents(key, id, job_id, job, user, lineage, cluster, restart, start_at_s, kind, mode, "
            "state, outcome, opened_at_s, closed_at_s, verdict, times) VALUES(?, 'i', 7, '7', 'ann', 'l', 'c', 0, 5, "
            "'claim', 'act', 'closed', 'resumed', 1.0, 2.0, 'null', '{\"suspected\": 5.0, \"first_new_step\": 7.0}')",
            (f"k{number}",),
        )
    db.execute("INSERT INTO drains VALUES('n1', 5.0, 'srobust: x', 9.0)")
    db.commit()
    db.close()
    world = World(tmp_path, FakeSlurm(), Config())
    world.daemon.totals.tick()
    assert counters(world)["incidents|claim|none|resumed"] == 3
    assert counters(world)["drains_reverted"] == 1
    world.journal.close()
    journal = Journal.open(tmp_path)
    assert [row.outcome for row in journal.incidents()] == ["resumed"] * 3
    journal.close()


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("", 0), ("gpu:8", 8), ("gpu:h100:8(S:0-1),nvme:2", 8), ("gpu:a:1,gpu:b:2", 3), ("gpu", 1), ("nic:4", 0)],
)
def test_gpus_of_a_node(gres: str, gpus: int) -> None:
    """As Slurm writes them."""
    assert gpus_of(Node("n1", "IDLE", gres=gres)) == gpus
