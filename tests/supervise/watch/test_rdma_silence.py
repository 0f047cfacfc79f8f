"""No RDMA traffic on a whole job: how long, and what is done about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from supervised import World

from slurm_robust.supervise.agent.messages import PortTraffic
from slurm_robust.supervise.incident.quiet_captures import QuietCaptures
from slurm_robust.supervise.lineage.attempt_start import AttemptStart
from slurm_robust.supervise.lineage.lineage_store import LineageStore
from slurm_robust.supervise.reported.traffic import SILENT_S, Traffic

NODES = ("n1", "n2")


def minutes(traffic: Traffic, node: str, *rates: float) -> float:
    """A node sends its bytes a second of these minutes; returns the end of the last one."""
    for number, rate in enumerate(rates, 1):
        traffic.take(PortTraffic(node, 60.0, int(60 * rate)), 60.0 * number)
    return 60.0 * len(rates)


def test_silence_is_that_of_all_nodes_since_the_last_of_them_moved_anything() -> None:
    """A heartbeat of a storage is no traffic by the standard of the training; one busy node ends the silence."""
    traffic = Traffic()
    minutes(traffic, "n1", 5e9, 5e9, 1e4)
    assert traffic.silent_s(NODES, 1000) == 0, "the other node has sent nothing yet"
    minutes(traffic, "n2", 5e9, 5e9, 5e9, 0)
    assert traffic.silent_s(NODES, 1000) == 1000 - 180
    traffic.take(PortTraffic("n2", 60.0, int(1e9 * 60)), 1000)
    assert traffic.silent_s(NODES, 1000) == 0


def test_a_job_that_never_trained_over_rdma_is_not_silent() -> None:
    """Or only some of its nodes did."""
    traffic = Traffic()
    minutes(traffic, "n1", 1e5, 0)
    minutes(traffic, "n2", 5e9, 0)
    assert traffic.silent_s(NODES, 9000) == 0
    assert traffic.silent_s(("n2",), 9000) > 0
    assert traffic.silent_s((), 9000) == 0


def test_a_job_without_progress_that_moves_nothing_is_told_once(tmp_path: Path) -> None:
    """Its stacks are captured, and nothing is done, since they prove nothing. Steps that go on are believed more."""
    world = World(tmp_path, command="python train.py")
    attempt = world.attempt()
    world.finds_ranks()
    start = AttemptStart(world.session, attempt, LineageStore(world.session))
    captures = QuietCaptures(world.session, attempt, start)
    began_s = world.clock.at_s
    for node in NODES:
        for rate in (5e9, 0.0):
            world.clock.at_s += 1
            world.session.receive(PortTraffic(node, 60.0, int(60 * rate)))
    while world.clock.at_s < began_s + 1500:
        assert asyncio.run(captures.poll()) is None
        world.clock.at_s += 10
    assert [line["text"] for line in world.story if line["kind"] == "note"] == [
        "silence suspected: no RDMA traffic on any node of the job for 600 s; its stacks are captured"
    ]
    assert captures._captured_at_s > began_s + SILENT_S
    world.trains(40)
    attempt_with_steps = QuietCaptures(world.session, attempt, start)
    world.clock.at_s += 30
    assert asyncio.run(attempt_with_steps.poll()) is None
    assert attempt_with_steps._captured_at_s == 0.0
