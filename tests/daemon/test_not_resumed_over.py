"""Whoever was told that a job was not brought back is told once that it runs again or has ended, and no "Still"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse

KEY = "1.r0.5.i1"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A job of two nodes that waits after its requeue; one target, to which nothing is handed over here."""
    text = "cluster: main\nnotify: {targets: [{name: hook, kind: webhook, url: 'http://127.0.0.1:1/'}]}"
    made = World(tmp_path, FakeSlurm(3), parse(text))

    async def nothing(now_s: float) -> None:
        del now_s

    monkeypatch.setattr(made.daemon.notifier, "_keep_running", nothing)
    made.slurm.run_job(("n1", "n2"))
    made.run(6)
    job = made.slurm.state.jobs[1]
    made.slurm.state.jobs[1] = replace(job, state="PENDING", priority=0, restart_count=1, reason="JobHeldUser")
    made.run(6)
    look(made, 1)
    yield made
    made.journal.close()


def look(world: World, seconds: float) -> None:
    """Let time pass, with a look and a tick every ten seconds."""

    async def passing() -> None:
        for _ in range(max(1, round(seconds / 10))):
            world.slurm.now_s += 10
            await world.look()
            await world.daemon.notifier.tick()

    asyncio.run(passing())


def told(world: World) -> list[str]:
    """What the target is told, oldest first."""
    return [alert.happened for alert in world.daemon.notifier._kept.targets["hook"].waiting]


def given_up(world: World) -> None:
    """The daemon's two lines of one recovery."""
    for what in ("recovery.given_up", "recovery.not_started"):
        world.journal.event(world.slurm.now_s, "warning", what, f"{KEY}: no start within 120 s; Slurm says: Resources")


WAITS = "Job 1 was not brought back: no start within 120 s; Slurm says: Resources"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("RUNNING", "Job 1, which was not brought back, runs again on n[1-2]"),
        ("COMPLETED", "Job 1, which was not brought back, has ended (COMPLETED)"),
        ("", "Job 1, which was not brought back, has ended"),
    ],
)
def test_it_is_told_once_that_the_job_is_back_or_gone(world: World, state: str, said: str) -> None:
    """By the daemon that told of it, also hours later."""
    given_up(world)
    look(world, 3 * 3600)
    assert told(world) == [WAITS]
    job = world.slurm.state.jobs.pop(1)
    if state:
        now = {"state": state, "nodes": ("n1", "n2"), "start_at_s": int(world.slurm.now_s)}
        world.slurm.state.jobs[1] = replace(job, **now)  # type: ignore[arg-type]
    look(world, 7200)
    assert told(world) == [WAITS, said]
