"""Agents beside the watch step's own: wanted while that one is silent, and no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from slurm_robust.supervise.agent.messages import Flushed, Flushing, Handler, Heartbeat
from slurm_robust.supervise.reported import agents as module
from slurm_robust.supervise.reported import watch_step
from slurm_robust.supervise.reported.agents import Agents


class Watch:
    """A watch step that is told what its agents say."""

    made: list[Watch]

    def __init__(self, job_id: int, tick_s: float, handler: Handler, log: object, **_: object) -> None:
        self.handler = handler
        self.nodes: tuple[str, ...] = ()
        self.attempt = ""
        self.watched_since_s: float | None = 100.0
        self.made.append(self)

    async def start(self, nodes: Sequence[str], attempt: str) -> None:
        """Be wanted."""
        self.nodes, self.attempt = tuple(nodes), attempt

    async def stop(self) -> None:
        """Be wanted no more."""
        self.nodes = ()


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """The watch steps made, the main one first."""
    Watch.made = []
    monkeypatch.setattr(module, "WatchStep", Watch)
    return Watch.made


def test_an_extra_agent_goes_when_the_watch_steps_own_answers_again(watches: list[Watch]) -> None:
    """One agent a node; what the extra one itself says is no answer of the other."""
    heard = {"n1": time.time(), "n2": time.time() - 60}
    agents = Agents(5, 0.5, lambda m: heard.__setitem__(m.node, time.time()), lambda _: None)

    async def story() -> None:
        await agents.start(["n1", "n2"], "a")
        assert await agents.look_after(["n1", "n2"], heard, 7.0) == ["n2"]
        main, extra = watches
        assert extra.nodes == ("n2",)
        extra.handler(Heartbeat("n2"))
        assert await agents.look_after(["n1", "n2"], heard, 7.0) == []
        assert extra.nodes == ("n2",)
        main.handler(Heartbeat("n2"))
        assert await agents.look_after(["n1", "n2"], heard, 7.0) == []
        assert extra.nodes == ()
        assert main.nodes == ("n1", "n2")
        heard["n2"] -= 60
        assert await agents.look_after(["n1", "n2"], heard, 7.0) == ["n2"]
        assert len(watches) == 3

    asyncio.run(story())


def test_agents_look_back_as_far_as_their_nodes_are_watched(watches: list[Watch]) -> None:
    """An extra agent to the start of the first one; after another supervisor, to the start of the job."""
    heard = {"n1": time.time() - 60}
    agents = Agents(5, 0.5, lambda _: None, lambda _: None)
    agents.look_back(30.0)

    async def story() -> None:
        await agents.start(["n1"], "a")
        await agents.look_after(["n1"], heard, 7.0)

    asyncio.run(story())
    main, extra = watches
    assert extra.watched_since_s == main.watched_since_s
    assert time.monotonic() - 32 < float(main.watched_since_s or 0) < time.monotonic() - 29


def test_a_watch_step_that_outlives_its_kill_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its srun hangs in a file system: neither the end of the supervisor nor a requeue waits for it."""
    monkeypatch.setattr(watch_step, "_END_S", 0.01)
    monkeypatch.setattr(watch_step, "_KILLED_S", 0.01)
    step = watch_step.WatchStep(5, 0.5, lambda _: None, lambda _: None)

    async def story() -> None:
        hangs = SimpleNamespace(returncode=None, stdin=SimpleNamespace(close=lambda: None), wait=asyncio.Event().wait)
        step._process = cast("asyncio.subprocess.Process", hangs)
        step._keeper = asyncio.create_task(asyncio.sleep(600))
        assert step.running
        await asyncio.wait_for(step.stop(), 2.0)
        assert not step.running

    asyncio.run(story())


def test_a_watch_step_that_ends_with_its_job_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm ends it a moment before the srun of an allocation of its own is gone; one that ended by itself is told."""
    monkeypatch.setattr(watch_step, "_LOG_DELAY_S", 0.05)
    told: list[str] = []
    step = watch_step.WatchStep(5, 0.5, lambda _: None, told.append)

    async def live() -> int:
        return 143

    async def story(lasts_s: float) -> None:
        await step.start(("n1",), "")
        await asyncio.sleep(lasts_s)
        await step.stop()
        await asyncio.sleep(0.1)

    monkeypatch.setattr(step, "_run_srun", live)
    asyncio.run(story(0.0))
    assert told == []
    asyncio.run(story(0.2))
    assert [line.split(";")[0] for line in told] == ["the watch step ended (exit 143)"]


def test_a_watch_step_that_never_starts_is_told_of_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python on that node, say: a week of training is not a story of ten thousand notes."""
    monkeypatch.setattr(watch_step, "_LOG_DELAY_S", 0.0)
    monkeypatch.setattr(watch_step, "_RETRY_S", (0.001, 0.002))
    told: list[str] = []
    step = watch_step.WatchStep(5, 0.5, lambda _: None, told.append)
    lives = 0

    async def live() -> int:
        nonlocal lives
        lives += 1
        return 2

    async def story() -> None:
        await step.start(("n1",), "")
        await asyncio.sleep(0.2)
        await step.stop()

    monkeypatch.setattr(step, "_run_srun", live)
    asyncio.run(story())
    assert lives > 3
    assert [line.split("; ")[-1] for line in told] == [
        "next try in 0.001 s",
        "tried again every 0.002 s, without further notes",
    ]


@pytest.mark.parametrize("told", [True, False])
def test_the_end_waits_for_agents_that_write_checkpoints(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """One says that it still writes: srun is left alone until it says that it is through, or the time is over."""
    monkeypatch.setattr(watch_step, "_END_S", 0.05)
    monkeypatch.setattr(watch_step, "_FLUSH_S", 30.0 if told else 0.3)
    monkeypatch.setattr(watch_step, "_KILLED_S", 0.01)
    said: list[str] = []
    heard: list[type] = []
    step = watch_step.WatchStep(5, 0.5, lambda message: heard.append(type(message)), said.append)

    async def story() -> None:
        ended = asyncio.Event()
        hangs = SimpleNamespace(returncode=None, stdin=SimpleNamespace(close=lambda: None), wait=ended.wait)
        step._process = cast("asyncio.subprocess.Process", hangs)
        step._keeper = keeper = asyncio.create_task(asyncio.sleep(600))
        step._receive(Flushing("n1"))
        stopping = asyncio.create_task(step.stop())
        await asyncio.sleep(0.2)
        assert not keeper.cancelled()
        if told:
            step._receive(Flushed("n1"))
        await asyncio.wait_for(stopping, 5.0)
        assert keeper.cancelled()

    asyncio.run(story())
    assert said[0] == "waiting until checkpoints in memory are written on n1"
    assert said[1:] == ([] if told else ["checkpoints are not all written after 0.3 s on n1"])
    assert heard == ([Flushing, Flushed] if told else [Flushing])
