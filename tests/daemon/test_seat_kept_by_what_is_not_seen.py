"""A seat that Slurm does not delete, because of a job that the daemon does not see in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.slurm.errors import SlurmRefusedError


def test_it_is_closed_and_ends_within_a_minute(tmp_path: Path, monkeypatch: Any) -> None:
    """Its end is set once, though its deletion is tried again and again; the job runs on."""
    world = World(tmp_path, FakeSlurm(4), parse(""))
    slurm, ends = world.slurm, []

    def refused(name: str) -> None:
        raise SlurmRefusedError(f"delete {name}", "Requested reservation is in use")

    def expires(name: str, users: tuple[str, ...]) -> None:
        ends.append(users)
        slurm.state.reservations[name] = replace(slurm.state.reservations[name], end_at_s=int(slurm.now_s) + 60)

    monkeypatch.setattr(slurm, "delete_reservation", refused)
    monkeypatch.setattr(slurm, "expire_reservation", expires)
    slurm.run_job(("n1", "n2"))
    world.run(4)
    world.claim(1, ("n2",))
    world.run(20)
    assert slurm.state.jobs[1].state == "RUNNING"
    assert ends == [(world.daemon.context.account,)]
    world.journal.close()
