"""What there was to use is written where it changes, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, StandbyConfig
from slurm_robust.daemon.store.attempt_ledger import AttemptLedger, PoolSize
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.values import gpu_count


def test_nodes_of_each_class_and_members_of_each_pool(tmp_path: Path) -> None:
    """A node is added, one leaves its pool, a daemon is started anew: a row for each change."""
    world = World(tmp_path, FakeSlurm(), Config(standby=StandbyConfig(size=1, check_max_age_h=0.0)))
    nodes, began_s = world.slurm.state.nodes, world.slurm.now_s
    nodes["n6"] = replace(nodes["n6"], gres="gpu:a100:8(S:0-1)", partitions=())
    world.run(30)
    ledger = AttemptLedger(world.journal)
    whole = (began_s, began_s + 1e6)
    assert [(c.gres, c.nodes, c.gpus) for c in ledger.cluster_sizes(*whole)] == [
        ("", 5, 0),
        ("gpu:a100:8(S:0-1)", 1, 8),
    ]
    (pool,) = ledger.pool_sizes(*whole)
    assert (pool.partition, pool.wanted, len(pool.nodes)) == ("main", 1, 1)
    world.live()
    world.run(30)
    assert (len(ledger.cluster_sizes(*whole)), len(ledger.pool_sizes(*whole))) == (2, 1)
    middle_s = world.slurm.now_s
    world.slurm.drain(pool.nodes[0], "bad fan")
    del nodes["n6"]
    world.run(100)
    assert [(c.gres, c.nodes) for c in ledger.cluster_sizes(middle_s + 1, middle_s + 90)][-1] == (
        "gpu:a100:8(S:0-1)",
        0,
    )
    later = ledger.pool_sizes(middle_s + 90, middle_s + 100)
    assert len(later) == 1
    assert later[0].nodes != pool.nodes
    world.journal.forget_before(world.slurm.now_s)
    kept = ledger.cluster_sizes(world.slurm.now_s, world.slurm.now_s)
    assert {(c.gres, c.nodes) for c in kept} == {("", 5), ("gpu:a100:8(S:0-1)", 0)}
    world.journal.close()


def test_gpus_in_a_text_of_slurm() -> None:
    """As nodes and jobs write them."""
    texts = [
        "gpu:a100:8(S:0-1),nic:1",
        "gres/gpu:2",
        "gres:gpu:4",
        "gpu:tesla:1(S:0),gpu:k80:3",
        "",
        "nic:2",
        "gres/gpu",
    ]
    assert [gpu_count(text) for text in texts] == [8, 2, 4, 4, 0, 0, 1]


def test_a_year_of_changes_is_read_and_forgotten_in_one_pass(tmp_path: Path) -> None:
    """Counted in SQLite's own steps: 4,000 rows took millions of them, in which no recovery goes on."""
    journal = Journal.open(tmp_path)
    ledger, steps = AttemptLedger(journal), [0]
    ledger.add_sizes(pools=[PoolSize(float(n), f"p{n % 2}", "main", 1, ("n1",)) for n in range(4000)])

    def count() -> int:
        steps[0] += 1
        return 0

    journal.db.set_progress_handler(count, 1000)
    assert [row.at_s for row in ledger.pool_sizes(3000.5, 3002.0)] == [2999.0, 3000.0, 3001.0, 3002.0]
    journal.forget_before(3000.0)
    journal.db.set_progress_handler(None, 0)
    assert steps[0] < 1000
    assert [row.at_s for row in ledger.pool_sizes(0.0, 3001.0)] == [2998.0, 2999.0, 3000.0, 3001.0]
    journal.close()
