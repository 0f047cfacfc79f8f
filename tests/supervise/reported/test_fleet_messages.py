"""The fleet's book: what agents have reported."""

from __future__ import annotations

import base64
import zlib

import pytest

from slurm_robust.config import site as config
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.reported.suspicion import SilenceLevel, assess


def rank(fleet: Fleet, number: int, node: str, pid: int = 100) -> None:
    """An agent says that it found a rank."""
    fleet.feed(
        from_agent({"t": "rank", "n": node, "rank": number, "pid": pid, "step_id": "0", "world": 2, "at": 1.0}),
        1.0,
    )


def test_the_fleet_follows_what_agents_report() -> None:
    """Found, progress, gone; the step is the one that all have completed."""
    fleet = Fleet("1.0.1")
    rank(fleet, 0, "n1")
    rank(fleet, 1, "n2", 200)
    fleet.feed(from_agent({"t": "p", "n": "n1", "r": [[0, 9, "train", 0.0, 10, 0.5, None, None]]}), 5.0)
    fleet.feed(from_agent({"t": "p", "n": "n2", "r": [[1, 8, "train", 0.5, 9, "nan", None, None]]}), 5.0)
    assert (fleet.step, fleet.last_sign_s, fleet.rank_nodes, fleet.step_ids) == (8, 5.0, {0: "n1", 1: "n2"}, ["0"])
    fleet.feed(from_agent({"t": "gone", "n": "n2", "rank": 1, "pid": 200, "at": 6.0}), 6.0)
    assert [r.rank for r in fleet.alive] == [0]
    fleet.feed(from_agent({"t": "gone", "n": "n1", "rank": 0, "pid": 7, "at": 6.0}), 6.0)
    assert [r.rank for r in fleet.alive] == [0], "the end of an older process of that rank"


def test_the_first_new_step_is_what_the_ranks_say() -> None:
    """Not the one that training has reached by the time somebody looks; unknown where a rank only told an old one."""
    fleet = Fleet("1.0.1")
    assert fleet.first_step(20) is None
    for number, at_s in ((0, 5.0), (1, 5.5)):
        rank(fleet, number, f"n{number + 1}")
        fleet.feed(
            from_agent({"t": "marks", "n": "n1", "rank": number, "marks": {}, "layout": {}, "first": [21, 0.0]}),
            at_s,
        )
        fleet.feed(from_agent({"t": "p", "n": "n1", "r": [[number, 23, "train", 0.0, 3, None, None, None]]}), 7.0)
    assert fleet.step == 23
    assert fleet.first_step(20) == (21, 5.5)
    assert fleet.first_step(-1) == (21, 5.5)
    assert fleet.first_step(21) is None


def test_a_watch_that_comes_after_the_hang_knows_how_long_a_step_takes() -> None:
    """`srobust attach` to a job that hangs already: its first step and its last tell the pace, so silence is seen."""
    fleet, limits = Fleet("a"), config.SuperviseConfig()
    for number in (0, 1):
        rank = {"rank": number, "pid": 70 + number, "step_id": "0", "world": 2, "at": 1.0}
        fleet.feed(from_agent({"t": "rank", "n": "n1", **rank}), 1.0)
        fleet.feed(
            from_agent({"t": "marks", "n": "n1", "rank": number, "marks": {}, "layout": {}, "first": [10, 100.0]}),
            200.0,
        )
        fleet.feed(from_agent({"t": "p", "n": "n1", "r": [[number, 60, "train", 50.0, 51, None, None, None]]}), 200.0)
    silent = [info.progress for info in fleet.ranks.values() if info.progress is not None]
    assert fleet.garbled == 0
    assert fleet.steps.p99_s() == pytest.approx(1.0)
    assert assess(silent, fleet.steps, 152.0, limits).level is SilenceLevel.QUIET
    found = assess(silent, fleet.steps, 200.0, limits)
    assert (found.level, found.ranks) == (SilenceLevel.SUSPECT, (0, 1))


@pytest.mark.parametrize(
    "message",
    [
        {"t": "p", "n": "n1", "r": [[0]]},
        {"t": "p", "n": "n1", "r": [[5, 1, "train", 1.0, 1, None, None, None]]},
        {"t": "rank", "n": "n1"},
        {"t": "cap", "n": "n1", "id": 1, "blob": "!!!"},
        {"t": "cap", "n": "n1", "id": 1, "blob": base64.b64encode(b"no zlib").decode()},
        {"t": "state", "n": "n1", "rank": 9, "s": "T", "pid": 1},
        {"t": "clean", "n": "n1", "id": "x", "left": ["a"]},
        {},
    ],
)
def test_a_message_without_sense_is_counted_and_passed_over(message: dict[str, object]) -> None:
    """One odd agent never ends the supervision."""
    fleet = Fleet("")
    fleet.expect(1)
    fleet.feed(from_agent(message), 1.0)
    assert fleet.garbled == 1


def test_captures_are_kept_as_bytes_and_bounded() -> None:
    """What a node sent, unpacked; nothing reads it here. What nobody asked for, or waits for any more, is dropped."""
    fleet = Fleet("")
    blob = base64.b64encode(zlib.compress(b'{"v":1}')).decode()
    fleet.expect(4)
    for number in (3, 4):
        fleet.feed(from_agent({"t": "cap", "n": "n1", "id": number, "blob": blob}), 1.0)
    assert fleet.archives == {4: {"n1": b'{"v":1}'}}
    assert fleet.archives.pop(4)
    fleet.feed(from_agent({"t": "cap", "n": "n2", "id": 4, "blob": blob}), 2.0)
    fleet.feed(from_agent({"t": "clean", "n": "n1", "id": 0, "left": [5]}), 2.0)
    assert (fleet.archives, fleet.clean, fleet.garbled) == ({}, {}, 0)


def test_a_node_that_was_heard_once_and_fell_silent_is_told() -> None:
    """One that never spoke is not: its agent may still be starting."""
    fleet = Fleet("")
    fleet.feed(from_agent({"t": "hb", "n": "n1"}), 10.0)
    assert fleet.silent_nodes(("n1", "n2"), 20.0, 5.0) == ["n1"]
    assert fleet.silent_nodes(("n1", "n2"), 12.0, 5.0) == []


def test_the_nodes_times_of_day_do_not_count() -> None:
    """A node may be 40 minutes behind or ahead: agents tell how long ago something was, our clock tells when."""
    fleet = Fleet("1.0.1")
    rank(fleet, 0, "n1")
    fleet.feed(from_agent({"t": "p", "n": "n1", "r": [[0, 9, "train", 2.5, 10, None, None, None]]}), 9000.0)
    assert fleet.last_sign_s == 8997.5
    start = {"t": "marks", "n": "n1", "rank": 0, "layout": {}}
    fleet.feed(from_agent({**start, "marks": {"imports_done": 100.0}, "first": [-1, 0.0]}), 9000.0)
    assert (fleet.mark("imports_done"), fleet.ranks[0].first_step_at_s) == (8900.0, 0.0)
    fleet.feed(from_agent({**start, "marks": {"imports_done": 101.0}, "first": [0, 50.0]}), 9001.0)
    assert (fleet.mark("imports_done"), fleet.first_step(-1)) == (8900.0, (0, 8951.0))
    fleet.feed(from_agent({"t": "p", "n": "n1", "r": [[0, 9, "train", -60.0, 10, None, None, None]]}), 9002.0)
    assert fleet.last_sign_s == 9002.0, "nothing comes from the future"
