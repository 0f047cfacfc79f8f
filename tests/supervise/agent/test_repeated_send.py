"""Findings are sent again, and the supervisor takes them once."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import World

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import messages as m
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.repeated_send import AGAIN_S, RepeatedSend


class Clock(SystemClock):
    """It stands until the test moves it."""

    at_s = 1000.0

    def monotonic_s(self) -> float:
        """Time."""
        return self.at_s


def found(seq: int = 1, **more: object) -> m.NodeFindings:
    """A finding of n1."""
    return m.NodeFindings("n1", (NodeFinding(seq, 1e6, "kmsg", "xid", "now", "XID 79", (0,), "", 79),))._replace(**more)  # type: ignore[arg-type]


RECORDS = m.KernelRecords("n1", 1e6, 60.0, ("3,7,5,-;NVRM: Xid (PCI:0000:9b:00): 79, x",), {"0000:9b:00": 0})


def sent_over(seconds: int, *first: m.FromAgent) -> list[tuple[int, m.FromAgent]]:
    """What is sent, and after how many seconds, where these are sent at first."""
    clock = Clock()
    sent: list[tuple[int, m.FromAgent]] = []
    sender = RepeatedSend(lambda message: sent.append((int(clock.at_s - 1000), message)), clock)
    for message in first:
        sender.send(message)
    for _ in range(seconds):
        clock.at_s += 1
        sender.poll()
    return sent


def test_faults_are_sent_three_times_within_half_a_minute() -> None:
    """In order; what tells of no fault is sent once."""
    others = [m.Heartbeat("n1", 2), m.PortTraffic("n1", 60.0, 5), m.NodeFindings("n1", problem="owned by user 7")]
    faults: list[m.FromAgent] = [found(), RECORDS]
    times = [0, *map(int, AGAIN_S)]
    assert sent_over(100, *others) == [(0, message) for message in others]
    assert sent_over(100, *faults) == [(at_s, message) for at_s in times for message in faults]


def test_a_flood_is_bounded() -> None:
    """The last ones are repeated."""
    flood = [found(seq) for seq in range(1000)]
    sent = sent_over(60, *flood)
    assert [message for at_s, message in sent if at_s == 0] == flood
    assert [message for at_s, message in sent if at_s == 5] == flood[-128:]


@pytest.mark.parametrize("lost", [(), (0, 1), (4,), (0, 1, 2, 3)])
def test_the_supervisor_takes_each_once(tmp_path: Path, lost: tuple[int, ...]) -> None:
    """Of a service and of a kernel log, whichever of the six messages the channel has lost."""
    world = World(tmp_path)
    attempt = world.attempt()
    world.finds_ranks()
    for number, (_, message) in enumerate(sent_over(60, found(), RECORDS)):
        if number not in lost:
            world.session.receive(m.from_agent(m.encode(message)))
    world.session.node_faults.pass_on(attempt.signals, world.session.folder)
    assert sorted(signal.source for signal in attempt.signals) == ["agent", "kmsg"]


def test_a_lost_gpu_of_a_spare_is_said_once(tmp_path: Path) -> None:
    """However often it is sent."""
    world = World(tmp_path)
    attempt = world.attempt()
    for _, message in sent_over(60, found(unused=True)):
        world.session.receive(m.from_agent(m.encode(message)))
    world.session.node_faults.pass_on(attempt.signals, world.session.folder)
    assert sum("no rank has run there" in line["text"] for line in world.story) == 1
