"""What only tells people of the past and the present keeps no recovery from its turn, whatever is wrong with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import Config, LemonsConfig, StandbyConfig, parse
from slurm_robust.daemon.controllers.nodes.lemons import Lemons
from slurm_robust.daemon.controllers.records.sizes import Sizes
from slurm_robust.daemon.controllers.records.trainings import Trainings
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger
from slurm_robust.daemon.store.node_ledger import NodeLedger
from slurm_robust.daemon.totals import Totals
from slurm_robust.marks.claim import Claim, render


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Eight nodes, of which one is standby; job 1 runs on two."""
    config = Config(lemons=LemonsConfig(act=True), standby=StandbyConfig(size="auto", check_max_age_h=0.0))
    made = World(tmp_path, FakeSlurm(8), config)
    made.slurm.run_job(("n1", "n2"))
    yield made
    made.journal.close()


def breaks(*_: object, **__: object) -> None:
    """A fault of ours."""
    raise ZeroDivisionError("ours")


def test_faults_in_all_of_it_delay_no_recovery(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told once, and `srobust status` says which; the job is requeued with a standby node."""
    for part in (Trainings, Lemons, Sizes):
        monkeypatch.setattr(part, "tick", breaks)
    monkeypatch.setattr(NodeLedger, "failures", breaks)
    monkeypatch.setattr(AttemptLedger, "times_of", breaks)
    world.run(12)
    world.claim(1, ("n2",))
    world.run(30)
    assert world.outcomes() == ["running"]
    assert world.slurm.state.jobs[1].restart_count == 1
    assert [len(pool.nodes) for pool in world.daemon.standby_pools.pools] == [1]
    assert published(world.daemon)["jobs"][0]["ettr"] is None
    told = [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = 'daemon.error'")]
    assert sorted(text.partition(":")[0] for text in told) == [
        "computing the sizes of standby pools",
        "recording of sizes",
        "recording of trainings",
        "the effective time of trainings",
        "the search for lemons",
    ]
    assert "recording of trainings fails (ZeroDivisionError: ours)" in " ".join(world.daemon.context.troubles.values())
    monkeypatch.undo()
    world.run(6)
    assert not any("recording" in trouble for trouble in world.daemon.context.troubles.values())


def test_one_that_fails_after_a_poll_does_not_keep_the_others_from_their_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting, then telling people, then publishing."""
    turns: list[str] = []

    async def wrong() -> None:
        turns.append("wrong")
        breaks()

    async def good() -> None:
        turns.append("good")

    monkeypatch.setattr(Totals, "tick", breaks)
    world.daemon.after_poll += [wrong, good]
    for _ in range(3):
        asyncio.run(world.daemon._publish())
    assert turns == ["wrong", "good"] * 3


def test_a_daemon_starts_with_damaged_rows(world: World) -> None:
    """Rows that make no sense are left out; the others are gone on with."""
    job = world.slurm.state.jobs[1]
    world.slurm.state.jobs[1] = replace(job, comment=render(Claim("watching", "line-1")))
    world.run(12)
    db = world.journal.db
    db.execute(
        "INSERT INTO attempts SELECT 99, restart, run_at_s, lineage, cluster, job, user, name, partition, 'n[1',"
        " node_count, gpus, eligible_at_s, start_at_s, first_step_at_s, first_new_step_at_s, last_step_at_s,"
        " seen_at_s, end_at_s, resume_step, last_step, checkpoint_s, slow_s, step_s, report_every_s, 'no JSON',"
        " state, 'no JSON' FROM attempts"
    )
    db.execute("INSERT INTO pool_sizes VALUES(1.0, 'p', 'main', 1, 'n[1')")
    assert list(world.live().trainings.running) == [1]


def test_a_clock_that_was_set_back_while_no_daemon_ran(tmp_path: Path) -> None:
    """What it wrote of the future is not waited for: lemons, sizes of pools, and the messages of the hour."""
    site = "lemons: {act: true}\nnotify: {targets: [{name: ops, kind: webhook, url: 'http://localhost:9/'}]}\n"
    world = World(tmp_path, FakeSlurm(), parse(site + "standby: {size: auto}\n"))
    now_s, ahead_s = world.slurm.now_s, world.slurm.now_s + 1e6
    world.journal.put("lemons_asked_at_s", repr(ahead_s))
    world.journal.put("lemons_given", f'{{"n1": {ahead_s}}}')
    world.journal.put("standby_sizes", f'{{"a": {{"size": 2, "changed_at_s": {ahead_s}, "reason": ""}}}}')
    world.journal.put("notify", f'{{"targets": {{"ops": {{"sent_at_s": [{ahead_s}]}}}}}}')
    daemon = world.live()
    world.run(1)
    assert float(world.journal.get("lemons_asked_at_s")) <= now_s + 1
    assert json.loads(world.journal.get("lemons_given"))["n1"] <= now_s + 1
    assert daemon.standby_pools.sizes._remembered()["a"].changed_at_s <= now_s + 1
    assert max(daemon.notifier._kept.targets["ops"].sent_at_s) <= now_s + 1
    world.journal.close()
