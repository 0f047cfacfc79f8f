"""`standby.size: auto`, against a simulated Slurm: the pool follows the journal's failures by one a day."""

from __future__ import annotations

from pathlib import Path

from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import StandbyConfig, parse
from slurm_robust.policy.cluster.node_states import HardwareClass, PoolRules
from slurm_robust.slurm.values import expand

DAY_S = 86400.0
SITE = "standby: {size: auto, start_size: 1, max_size: 2, min_node_days: 30}"


def members(slurm: FakeSlurm) -> int:
    """How many nodes the one pool holds."""
    (pool,) = slurm.state.reservations.values()
    return len(expand(pool.nodes))


def test_the_pool_grows_when_its_nodes_fail_often(tmp_path: Path) -> None:
    """At first too little is known; then one node more, with the reason. A restart of the daemon changes nothing."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse(SITE))
    world.run(60, step_s=10.0)
    assert members(slurm) == 1
    (shown,) = published(world.daemon)["standby"]
    assert shown["wanted"] == 1
    assert "too little evidence yet (0 of 30 node-days): it stays 1" in shown["size_reason"]
    begun_s = slurm.now_s
    for day in range(6):
        world.daemon.ledger.drained("n1", begun_s + day * DAY_S, "srobust: XID 79")
        world.daemon.ledger.drain_ended("n1", begun_s + day * DAY_S + 7200.0)
    world.run(6.5 * DAY_S, step_s=1800.0)
    (shown,) = published(world.daemon)["standby"]
    assert (shown["wanted"], members(slurm)) == (2, 2)
    assert "6 failures in" in shown["size_reason"]
    world.live()
    world.run(20, step_s=5.0)
    assert members(slurm) == 2
    world.journal.close()


def test_drains_that_were_taken_back_do_not_count(tmp_path: Path) -> None:
    """Within the hour, unless a repair did it; and what was lost to a job counts."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse(SITE))
    ledger = world.daemon.ledger
    for at_s, lasts_s in ((1000.0, 1800.0), (20_000.0, 4000.0), (50_000.0, 1800.0)):
        ledger.drained("n1", at_s, "srobust: x")
        ledger.drain_ended("n1", at_s + lasts_s)
    world.journal.db.execute(
        "INSERT INTO repairs(node, remedy, nth, drained_as, begun_at_s, acted_at_s) "
        "VALUES('n1', 'reboot', 1, 'x', 50100, 50200)"
    )
    assert ledger.failures(0.0) == [("n1", 20_000.0), ("n1", 50_000.0)]
    assert ledger.failures(30_000.0) == [("n1", 50_000.0)]
    world.journal.close()


def test_a_class_that_was_not_computed_yet_is_bounded_too() -> None:
    """A class that came within the hour."""
    rules = PoolRules(StandbyConfig(size="auto", start_size=9, max_size=2), "seat")
    assert rules.size_of(HardwareClass("main", "", ())) == 2


def test_a_site_that_chose_a_number_computes_nothing(tmp_path: Path) -> None:
    """No reason is shown, and nothing is written."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("standby: {size: 2}"))
    world.run(60, step_s=10.0)
    (shown,) = published(world.daemon)["standby"]
    assert (shown["wanted"], shown["size_reason"], world.journal.get("standby_sizes")) == (2, "", "")
    world.journal.close()
