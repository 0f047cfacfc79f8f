"""What comes over the channel may be anything: no message ends the supervisor, or its watch step."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from supervised import World

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import messages as m
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.agent.packing import pack
from slurm_robust.supervise.agent.stopped_messages import RankContinued
from slurm_robust.supervise.reported import watch_step
from slurm_robust.supervise.reported.watch_step import WatchStep

FINDING = NodeFinding(7, 1e6, "kmsg", "xid", "now", "XID 79", (0, 3), "mlx5_0/1", 79)
SENT = [
    m.Heartbeat("n1", 8),
    m.RankFound("n1", 0, 100, "0", 2, 1e6, task=1, nodes=2, ranked=True),
    m.RankGone("n2", 1, 101, 1e6, task_lives=True),
    m.ProgressReport("n1", (m.ProgressEntry(0, 9, "train", 1e6, 10, 0.5, 0.5, 30.0),)),
    m.TimingReport("n1", (m.TimingEntry(0, 9, 1.0, 0.5, 0.5),)),
    m.RankStart("n1", 0, {"imports_done": 1e6}, {"dp": 2}, m.FirstStep(3, 1e6)),
    m.RankState("n1", 0, "D", 101),
    m.TaskEnded("n1", "0", 0, 1, 9, 0.25),
    RankContinued("n1", 0, 100, "process 100 is no longer stopped"),
    m.CaptureTaken("n1", 4, pack({"v": 1})),
    m.Cleaned("n1", 5, (7, 8)),
    m.NodeFindings("n1", (FINDING,), problem="owned by user 1000"),
    m.NodeFindings("n2", (FINDING,), unused=True),
    m.KernelRecords("n1", 1e6, 60.5, ("3,1,5,-;NVRM: Xid (PCI:0000:9b:00): 79, x",), {"0000:9b:00": 3}, 535),
    m.PortTraffic("n1", 60.0, 2**40),
]
NUMBERS = st.sampled_from([10**400, -(10**400), 2**63, -1, 0, math.nan, math.inf, -math.inf, -1e300, 1e300, 1e-300])
TEXTS = st.sampled_from(["\ud800", "a\nb", "\x1b[31m", "9" * 5000, "now", "n1", "note"]) | st.text(max_size=5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@st.composite
def garbled(draw: st.DrawFn) -> dict[str, Any]:
    """A message of which some values are others, at any depth."""
    raw: dict[str, Any] = json.loads(json.dumps(m.encode(draw(st.sampled_from(SENT)))))
    for _ in range(draw(st.integers(1, 3))):
        at: Any = raw
        while True:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if isinstance(at[key], (list, dict)) and at[key] and draw(st.booleans()):
                at = at[key]
                continue
            if key != "t":
                at[key] = draw(ANYTHING)
            break
    return raw


@settings(max_examples=400, deadline=None)
@given(messages=st.lists(garbled(), min_size=1, max_size=6))
def test_no_message_ends_the_supervisor(messages: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    """Whatever is in it, also for what is asked and written afterwards."""
    world = World(tmp_path_factory.mktemp("garbled"))
    attempt = world.attempt()
    world.finds_ranks()
    for raw in messages:
        world.session.receive(from_agent(raw))
    world.session.node_faults.pass_on(attempt.signals, world.session.folder)
    for line in world.story:
        assert json.dumps(line)
    now_s = world.clock.at_s
    for signal in attempt.signals:
        assert now_s - 31 * 86_400 <= signal.at_s <= now_s
        assert signal.detail.isprintable()
    world.session.node_faults.faulty(("n1", "n2"), ("n1", "n2"))
    attempt.assess(world.session.settings)
    attempt.confirm_exits()
    fleet = attempt.fleet
    assert fleet.world <= 1 << 20
    assert 0 <= fleet.traffic.silent_s(("n1", "n2"), now_s) < 1e6


def test_a_garbled_count_of_traffic_is_no_silence() -> None:
    """Neither one that no card can have moved, nor one of no time."""
    world_of = {"t": "traffic", "n": "n1"}
    world = World(Path("/nonexistent"))
    for seconds, moved in ((1e-9, 10**9), (60.0, 10**18), (60.0, -(10**9))):
        world.session.receive(from_agent({**world_of, "seconds": seconds, "moved_bytes": moved}))
    assert world.session.fleet.garbled == 3
    for moved in (10**12, 10**12):
        world.session.receive(from_agent({**world_of, "seconds": 60.0, "moved_bytes": moved}))
    assert world.session.fleet.traffic.silent_s(("n1",), world.clock.at_s + 5000) == 0


def lines_of(*messages: dict[str, Any]) -> Callable[..., list[str]]:
    """The command line of a watch step whose agents send these, and live on."""
    text = "".join(f"~SR1 {json.dumps(message)}\\n" for message in messages)
    return lambda *_: ["sh", "-c", f"printf '{text}'; exec sleep 100"]


def test_a_message_that_breaks_the_receiver_is_said_once_and_the_next_ones_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No agent is ended, and none is started again."""
    beats = [{"t": "hb", "n": "n1", "ranks": number} for number in (1, 2, 3)]
    monkeypatch.setattr(watch_step, "argv", lines_of(*beats))
    said: list[str] = []

    async def story() -> None:
        arrived = asyncio.Event()

        def take(message: m.FromAgent) -> None:
            if isinstance(message, m.Heartbeat) and message.ranks == 3:
                arrived.set()
            else:
                raise ArithmeticError("too much")

        watch = WatchStep(5, 0.5, take, said.append)
        await watch.start(["n1"], "a")
        await asyncio.wait_for(arrived.wait(), 10)
        assert (watch.starts, watch.running) == (1, True)
        await watch.stop()

    asyncio.run(story())
    assert len(said) == 1
    assert "Heartbeat" in said[0]
    assert "ArithmeticError: too much" in said[0]


def test_the_watch_step_is_started_again_whatever_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our own, too; the reason is said."""
    monkeypatch.setattr(watch_step, "_LOG_DELAY_S", 0.0)
    monkeypatch.setattr(watch_step, "_RETRY_S", (0.01,))
    beat = lines_of({"t": "hb", "n": "n1", "ranks": 1})
    monkeypatch.setattr(watch_step, "argv", beat)
    said: list[str] = []

    async def story() -> None:
        arrived = asyncio.Event()
        watch = WatchStep(5, 0.5, lambda _: arrived.set(), said.append)
        feed, fails = watch.decoder.feed, [RuntimeError("broken")]

        def breaks(line: str) -> Any:
            if fails:
                raise fails.pop()
            return feed(line)

        monkeypatch.setattr(watch.decoder, "feed", breaks)
        await watch.start(["n1"], "a")
        await asyncio.wait_for(arrived.wait(), 10)
        assert watch.starts == 2
        await watch.stop()

    asyncio.run(story())
    assert "RuntimeError: broken" in said[0]
