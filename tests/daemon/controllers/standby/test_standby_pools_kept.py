"""Standby pools, against a simulated Slurm."""

from __future__ import annotations

from pathlib import Path

from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse


def test_standby_pool_is_kept(tmp_path: Path) -> None:
    """The pool is made, refilled when a member drains, renewed before it ends, and never takes a node in use."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("standby: {size: 2, duration_days: 1}"))
    slurm.run_job(("n1", "n2", "n3"))
    world.run(30)
    (pool,) = slurm.state.reservations.values()
    assert pool.nodes == "n[5-6]"
    slurm.drain("n6", "fan")
    world.run(30)
    (pool,) = slurm.state.reservations.values()
    assert pool.nodes == "n[4-5]"
    world.run(3 * 86400, step_s=600.0)
    (pool,) = slurm.state.reservations.values()
    assert pool.end_at_s > slurm.now_s
    world.journal.close()
