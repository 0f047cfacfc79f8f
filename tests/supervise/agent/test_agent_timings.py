"""Step timings from the ranks' pages to the supervisor."""

from __future__ import annotations

import json
import math
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.progress import ProgressRecord, StepTiming
from slurm_robust.supervise.agent import messages, wire
from slurm_robust.supervise.agent.timings import MOST_STEPS, SEND_EVERY_S, TimingsQueue, thinned
from slurm_robust.supervise.reported.fleet import KEPT_STEPS, Fleet

BLANK = ProgressRecord(9, 2, 0, 0, -1, 0.0, 0.0, None, None, 0, "train", 0.0, 0.0, None, 0, 0.0, 0.0, {}, {})


def record(steps: range, pid: int = 9) -> ProgressRecord:
    """A rank that has timed these steps from its first on, of which the page holds the last 48."""
    timings = tuple(StepTiming(n, 1.5, 1.0 + n / 1000, math.nan) for n in steps)
    return BLANK._replace(pid=pid, timed=len(timings), timings=timings[-48:])


def test_each_timing_is_sent_once() -> None:
    """Nothing before it is due; then what is new, and nothing twice."""
    timings = TimingsQueue(0.0)
    timings.add(3, record(range(4)))
    assert list(timings.due(1.0)) == []
    timings.add(3, record(range(5)))
    (entries,) = timings.due(SEND_EVERY_S)
    assert [entry[:2] for entry in entries] == [(3, n) for n in range(5)]
    assert entries[0][2:] == (1.5, 1.0, None)
    timings.add(3, record(range(6)))
    (entries,) = timings.due(2 * SEND_EVERY_S)
    assert [entry[1] for entry in entries] == [5]


def test_another_process_begins_anew() -> None:
    """A rank that was started anew counts from nothing."""
    timings = TimingsQueue(0.0)
    timings.add(3, record(range(6)))
    timings.add(3, record(range(2), pid=10))
    (entries,) = timings.due(SEND_EVERY_S)
    assert [entry[1] for entry in entries] == [0, 1, 2, 3, 4, 5] or len(entries) == 6


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 1 << 40))
def test_fast_steps_are_thinned_alike(numbers: list[int], begin: int) -> None:
    """At most so many, each step once, and only such as another rank with the same steps would keep."""
    kept = thinned([StepTiming(begin + n, 1.0, 1.0, 1.0) for n in numbers])
    assert len(kept) <= MOST_STEPS
    assert len({t.step for t in kept}) == len(kept)
    assert len(kept) == len(set(numbers)) or len(set(numbers)) > MOST_STEPS


def test_messages_fit_into_a_line_and_the_book_takes_them() -> None:
    """Sixteen ranks of eight steps: whole lines, and the table that the judge reads."""
    timings, fleet = TimingsQueue(0.0), Fleet("a")
    for rank in range(16):
        fleet.feed(messages.RankFound("n1", rank, 9, "0", 16, 1.0), time.time())
        timings.add(rank, record(range(1_000_000, 1_000_008)))
    for number, entries in enumerate(timings.due(SEND_EVERY_S)):
        message = messages.encode(messages.TimingReport("n1", entries))
        (line,) = wire.encode("a-node-with-a-name", number, message)
        fleet.feed(messages.from_agent(json.loads(line.removeprefix(wire.MARK))), time.time())
    table = fleet.timings.table()
    assert fleet.garbled == 0
    assert (len(table.ranks), len(table.steps)) == (16, 8)
    assert table.compute[0][0] == 1001.0
    assert set(table.nodes.values()) == {"n1"}


def test_the_book_refuses_what_makes_no_sense() -> None:
    """A rank that nobody found, text, too few numbers: counted; and it never grows beyond its steps."""
    fleet = Fleet("a")
    fleet.feed(messages.RankFound("n1", 0, 9, "0", 1, 1.0), time.time())
    for entry in ([7, 1, 1.0, 1.0, 1.0], ["x", 1, 1, 1, 1], [0, 1, 1.0], [0, -1, 1.0, 1.0, 1.0]):
        fleet.feed(messages.from_agent({"t": "t", "n": "n1", "r": [entry]}), time.time())
    assert fleet.garbled == 4
    for step in range(3 * KEPT_STEPS):
        fleet.feed(messages.from_agent({"t": "t", "n": "n1", "r": [[0, step, 1.0, math.inf, "fast"]]}), time.time())
    assert len(fleet.timings) == KEPT_STEPS
    assert fleet.timings.last_step == 3 * KEPT_STEPS - 1
