"""How often the daemon reads what: claims wait, so the jobs come first, and only as often as that is cheap."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm

from slurm_robust.config import Config, parse
from slurm_robust.daemon.core import Core
from slurm_robust.daemon.journal import Journal
from slurm_robust.daemon.service import Daemon
from slurm_robust.model import Mode

LOOK_S = 0.05
"""Between two looks here: shorter than any interval, so that what is due is what is counted."""


def readings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, cost_s: float, config: Config | None = None, as_user: bool = False
) -> tuple[Counter[str], float]:
    """What an idle daemon reads in a minute, where the jobs take this long to read, and its pause between looks."""
    slurm = FakeSlurm()
    journal = Journal.open(folder)
    core = Core(config or Config(), slurm, journal, account="root", mode=Mode.ACT, clock=lambda: slurm.now_s)
    daemon = Daemon(core, as_user=as_user)
    counted = Counter[str]()

    def counting(name: str) -> Callable[[], Any]:
        read = getattr(slurm, name)

        def call() -> Any:
            counted[name] += 1
            return read()

        return call

    for name in ("jobs", "nodes", "reservations"):
        monkeypatch.setattr(slurm, name, counting(name))
    monkeypatch.setattr(Core, "jobs_cost_s", cost_s)

    async def minute() -> None:
        for _ in range(round(60 / LOOK_S)):
            slurm.pass_s(LOOK_S)
            await daemon._look()

    asyncio.run(minute())
    interval_s = daemon._interval_s()
    journal.close()
    return counted, interval_s


def test_jobs_are_read_four_times_a_second_where_that_is_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim waits a quarter of a second; nodes and reservations are read as seldom as ever."""
    counted, interval_s = readings(tmp_path, monkeypatch, cost_s=0.01)
    assert 200 <= counted["jobs"] <= 270
    assert 8 <= counted["nodes"] <= 14
    assert 8 <= counted["reservations"] <= 14
    assert interval_s == pytest.approx(0.25)


def test_dear_readings_come_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty thousand jobs in the queue: no more readings than `idle_interval_s` says."""
    counted, interval_s = readings(tmp_path, monkeypatch, cost_s=0.4)
    assert 50 <= counted["jobs"] <= 68
    assert interval_s == pytest.approx(1.0)


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.001, 0.25), (0.02, 0.4), (0.049, 0.98), (5.0, 1.0)])
def test_readings_take_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_s: float, interval_s: float
) -> None:
    """Between the two limits, the pause is twenty times what a reading takes."""
    monkeypatch.setattr(Core, "jobs_cost_s", cost_s)
    journal = Journal.open(tmp_path)
    core = Core(Config(), FakeSlurm(), journal, account="root", mode=Mode.ACT)
    assert Daemon(core)._interval_s() == pytest.approx(interval_s)
    journal.close()


def test_users_own_daemons_read_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be one for every user."""
    counted, interval_s = readings(tmp_path, monkeypatch, cost_s=0.001, as_user=True)
    assert counted["jobs"] <= 62
    assert interval_s == pytest.approx(1.0)


def test_a_site_may_want_it_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`claim_interval_s` is the site's choice, and never longer than `idle_interval_s`."""
    config = parse("daemon: {claim_interval_s: 5, idle_interval_s: 2}")
    counted, _ = readings(tmp_path, monkeypatch, cost_s=0.001, config=config)
    assert 25 <= counted["jobs"] <= 35


def test_a_hiccup_of_this_machine_is_no_cost(tmp_path: Path) -> None:
    """One slow reading among quick ones says nothing about slurmctld."""
    journal = Journal.open(tmp_path)
    core = Core(Config(), FakeSlurm(), journal, account="root", mode=Mode.ACT)
    core._jobs_took_s.extend([0.01, 0.01, 2.0])
    assert core.jobs_cost_s == pytest.approx(0.01)
    journal.close()
