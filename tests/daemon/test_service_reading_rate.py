"""How often the daemon asks Slurm: once a second at rest, for the jobs more often while a claim is on its way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm

from slurm_robust.config.site import Config, parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.controllers.recovery.claim_intake import EXPECT_S
from slurm_robust.daemon.controllers.recovery.node_failures import NodeFailures
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.marks.claim import Claim, render


class Counting:
    """Stands before a simulated Slurm, and counts every call."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm = slurm
        self.counted = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._slurm, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.counted[name] += 1
            return found(*args, **kwargs)

        return call


class Scene:
    """A daemon, its simulated Slurm with one running job, and time that passes only when it pauses."""

    def __init__(self, folder: Path, *, config: Config | None = None, as_user: bool = False) -> None:
        self.slurm = FakeSlurm()
        self.client: Any = Counting(self.slurm)
        self.journal = Journal.open(folder)
        context = DaemonContext(
            config or Config(),
            self.client,
            self.journal,
            account="ann" if as_user else "root",
            mode=Mode.ACT,
            clock=lambda: self.slurm.now_s,
        )
        self.daemon = Daemon(context, as_user=as_user)
        self.slurm.run_job(("n1",))
        self.say("watching")
        self.look_for(10.0)

    def say(self, state: str, **words: Any) -> None:
        """Have the job say something."""
        claim = Claim(state, "l", at_s=self.slurm.now_s, **words)
        self.slurm.state.jobs[1] = replace(self.slurm.state.jobs[1], comment=render(claim))

    def look_for(self, seconds: float) -> Counter[str]:
        """Calls by name, over so many seconds."""
        self.client.counted.clear()

        async def live() -> None:
            until_s = self.slurm.now_s + seconds
            while self.slurm.now_s < until_s:
                await self.daemon._poll()
                self.slurm.pass_s(self.daemon._interval_s())

        asyncio.run(live())
        return self.client.counted.copy()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """One that has looked around."""
    made = Scene(tmp_path)
    yield made
    made.journal.close()


def test_an_idle_daemon_calls_slurm_once_a_second(scene: Scene) -> None:
    """The promise: one call a second in all, whatever it is; the jobs get most of them."""
    counted = scene.look_for(60.0)
    assert 58 <= counted.total() <= 61
    assert counted["jobs"] >= 38


def test_a_suspicion_has_the_jobs_read_as_often_as_is_cheap(scene: Scene) -> None:
    """The claim that may follow waits a quarter of a second; nothing else is read more often."""
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.look_for(2.0)
    counted = scene.look_for(30.0)
    assert 100 <= counted["jobs"] <= 121
    assert counted.total() - counted["jobs"] <= 11


def test_a_suspicion_that_is_taken_back_is_over(scene: Scene) -> None:
    """The next word of the job says that nothing is wrong."""
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.look_for(5.0)
    scene.say("watching")
    scene.look_for(5.0)
    assert scene.look_for(20.0).total() <= 21


@pytest.mark.parametrize(("state", "words"), [("watching", {"suspected_at_s": 1.0}), ("wants", {"incident": "i-1"})])
def test_a_job_that_says_no_more_is_not_listened_to_for_ever(scene: Scene, state: str, words: dict[str, Any]) -> None:
    """A supervisor that was killed while it suspected something, or a claim that was refused."""
    scene.daemon.context.mode = Mode.OBSERVE  # nothing is done about the claim
    scene.say(state, **words)
    scene.look_for(EXPECT_S + 5.0)
    assert scene.look_for(20.0).total() <= 21


def test_dear_readings_come_once_a_second(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty thousand jobs in the queue: no more readings than while nothing is going on."""
    monkeypatch.setattr(DaemonContext, "jobs_cost_s", 0.4)
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.look_for(2.0)
    assert scene.look_for(30.0).total() <= 42


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.001, 0.25), (0.02, 0.4), (0.049, 0.98), (5.0, 1.0)])
def test_readings_take_a_twentieth_of_the_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, cost_s: float, interval_s: float
) -> None:
    """Between the two limits, the pause is twenty times what a reading takes."""
    monkeypatch.setattr(DaemonContext, "jobs_cost_s", cost_s)
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.look_for(2.0)
    assert scene.daemon._interval_s() == pytest.approx(interval_s)


def test_users_own_daemons_hear_their_user_only(tmp_path: Path) -> None:
    """There may be one for every user: each is awake for its own user's jobs alone."""
    scene = Scene(tmp_path, as_user=True)
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.slurm.state.jobs[1] = replace(scene.slurm.state.jobs[1], user="bob")
    scene.look_for(5.0)
    assert scene.look_for(20.0).total() <= 21
    scene.journal.close()


def test_a_site_may_want_it_slower(tmp_path: Path) -> None:
    """`claim_interval_s` is the site's choice, and never longer than `idle_interval_s`."""
    scene = Scene(tmp_path, config=parse("daemon: {claim_interval_s: 5, idle_interval_s: 2}"))
    scene.say("watching", suspected_at_s=scene.slurm.now_s)
    scene.look_for(3.0)
    assert 8 <= scene.look_for(30.0)["jobs"] <= 16
    scene.journal.close()


def test_a_hiccup_of_this_machine_is_no_cost(scene: Scene) -> None:
    """One slow reading among quick ones says nothing about slurmctld."""
    scene.daemon.context._jobs_took_s.clear()
    scene.daemon.context._jobs_took_s.extend([0.01, 0.01, 2.0])
    assert scene.daemon.context.jobs_cost_s == pytest.approx(0.01)


def test_a_slow_slurmctld_is_not_asked_less_often_than_at_rest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a node is looked after, for hours perhaps: other jobs' claims and dying nodes wait no longer for it."""
    monkeypatch.setattr(DaemonContext, "jobs_cost_s", 5.0)
    monkeypatch.setattr(DaemonContext, "nodes_cost_s", 5.0)
    monkeypatch.setattr(NodeFailures, "suspicious", True)
    scene.look_for(10.0)
    counted = scene.look_for(60.0)
    assert counted["jobs"] >= 9
    assert counted["nodes"] + counted["node_listing"] >= 9


def test_recoveries_that_only_wait_are_looked_at_together(tmp_path: Path) -> None:
    """Three jobs whose end takes minutes: hardly more calls than for one, whenever each of them began."""
    scene = Scene(tmp_path)
    jobs = [scene.slurm.run_job(nodes).ref.job_id for nodes in (("n2", "n5"), ("n3", "n6"), ("n4",))]
    scene.slurm.stuck |= {"n4", "n5", "n6"}
    for number, suspect in zip(jobs, ("n2", "n3", "n1"), strict=True):
        scene.look_for(1.3)
        claim = Claim("wants", f"l{number}", incident="i1", evict=(suspect,), at_s=scene.slurm.now_s)
        scene.slurm.state.jobs[number] = replace(scene.slurm.state.jobs[number], comment=render(claim))
    scene.look_for(60.0)
    waiting = len(scene.daemon.recoveries.open)
    counted = Counter[str]()
    for _ in range(60):
        for number in jobs:
            job = scene.slurm.state.jobs[number]
            # As Slurm computes them anew all the time while a job waits.
            scene.slurm.state.jobs[number] = replace(job, priority=job.priority + 1, start_at_s=int(scene.slurm.now_s))
        counted += scene.look_for(1.0)
    assert len(scene.daemon.recoveries.open) == waiting >= 2
    assert counted["jobs_named"] <= 40
    assert counted["job"] <= 6
    assert counted.total() <= 140
    scene.journal.close()
