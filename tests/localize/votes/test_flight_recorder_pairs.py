"""Sends and receives that one end has completed: who holds the other end, and when that is one question of a link."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from recorder_dumps import WORLD, dump, entry, plain

from slurm_robust.core.model import Conclusion, Verdict
from slurm_robust.localize.recorder.align import align
from slurm_robust.localize.recorder.dump import RankDump, read_dump
from slurm_robust.localize.votes.flight_recorder import judge_dumps
from slurm_robust.supervise.agent.recorder import MAX_EXCHANGES, reduced

NODES = {r: f"n{r}" for r in range(16)}
PAIR = {WORLD: [0, 1]}
LINE = {WORLD: [0, 1, 2]}


def verdict(dumps: Sequence[RankDump]) -> Verdict:
    """What these say together; there is something to say."""
    found = judge_dumps(dumps, NODES)
    assert found is not None
    return found


def ranks(found: Verdict) -> list[int]:
    """All suspected ranks."""
    return [r for s in found.suspects for r in s.ranks]


def tape(rank: int, *names: str, groups: Mapping[str, Sequence[int]] = PAIR, first: int = 9) -> RankDump:
    """A rank's operations in their order, its numbers counted from the first; `!` stands before one that is open."""
    told = [(name.lstrip("!"), "scheduled" if name.startswith("!") else "completed") for name in names]
    entries = [entry(first + n, n, name, state=state) for n, (name, state) in enumerate(told)]
    return dump(rank, entries, {}, groups)


@pytest.mark.parametrize("first", [0, 9], ids=["from the beginning", "a ring that began again"])
def test_a_receive_that_is_stuck_although_it_was_sent(first: int) -> None:
    """0 has completed its send, and 1 still waits to receive it: the device of 1, or the link to it; never 0."""
    found = verdict([tape(0, "send 0->1", first=first), tape(1, "!recv 1<-0", first=first)])
    assert ranks(found) == [1]
    assert "its device has not completed recv 1<-0" in found.reason
    assert found.suspects[0].confidence < 0.9


@pytest.mark.parametrize("first", [0, 9], ids=["from the beginning", "a ring that began again"])
def test_a_send_that_never_came(first: int) -> None:
    """0 has completed one send and 1 has received it; the second is not there: 0 it is, and not the device of 1."""
    found = verdict([tape(0, "send 0->1", first=first), tape(1, "recv 1<-0", "!recv 1<-0", first=first)])
    assert ranks(found) == [0]
    assert "never joined recv 1<-0" in found.reason


def test_operations_are_matched_by_their_place_in_the_order() -> None:
    """1 has two partners, so that its numbers differ from 0's: the second receive from 0 meets the second send."""
    zero = tape(0, "send 0->1", "!send 0->1", groups=LINE, first=0)
    one = tape(1, "recv 1<-2", "recv 1<-2", "recv 1<-0", "!recv 1<-0", groups=LINE, first=0)
    two = tape(2, "send 2->1", "send 2->1", groups=LINE, first=0)
    found = align([zero, one, two])
    assert [(group.ranks, op.name) for group, op in found.closed] == [((0, 1), "send 0->1")]
    assert not found.stuck


def test_an_open_send_that_is_a_later_one() -> None:
    """0's first send is complete and its second one is open: 1 is stuck in the first receive, not in the second."""
    zero = tape(0, "send 0->1", "!send 0->1", first=0)
    one = tape(1, "!recv 1<-0", first=0)
    assert ranks(verdict([zero, one])) == [1]


def test_behind_something_else_a_receive_says_nothing_of_its_device() -> None:
    """1 waits in a collective that 2 never joined; the receive behind it is only late."""
    zero = dump(0, [entry(0, 4), entry(1, 1, "send 0->1", state="completed")], {0: (4, 3)}, LINE)
    one = dump(1, [entry(0, 4), entry(1, 1, "recv 1<-0")], {0: (4, 3)}, LINE)
    two = dump(2, [], {0: (3, 3)}, LINE)
    assert 1 not in ranks(verdict([zero, one, two]))


def test_two_ends_that_each_hold_what_the_other_sent() -> None:
    """Both have completed their sends and neither received: one link, no node."""
    found = verdict([tape(0, "send 0->1", "!recv 0<-1", first=0), tape(1, "send 1->0", "!recv 1<-0", first=0)])
    assert found.conclusion is Conclusion.UNDETERMINED
    assert "one device or link among them" in found.reason


def test_several_nodes_that_hold_one_operation_are_one_question() -> None:
    """Eight of sixteen completed a reduction and eight did not: undetermined, not eight suspects."""
    everyone = {WORLD: list(range(16))}
    done = [dump(r, [], {0: (5, 5)}, everyone) for r in range(8)]
    held = [dump(r, [entry(10, 5)], {0: (5, 4)}, everyone) for r in range(8, 16)]
    found = verdict([*done, *held])
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects
    assert "ranks 8-15 on 8 nodes: one device or link among them has not completed all_reduce 5" in found.reason


def test_one_node_that_holds_an_operation_is_still_named() -> None:
    """Both ranks of a node hold what the others completed: that node."""
    everyone = {WORLD: list(range(8))}
    done = [dump(r, [], {0: (5, 5)}, everyone) for r in range(6)]
    held = [dump(r, [entry(10, 5)], {0: (5, 4)}, everyone) for r in (6, 7)]
    found = judge_dumps([*done, *held], {r: f"n{r // 2}" for r in range(8)})
    assert found is not None
    assert [(s.node, s.ranks) for s in found.suspects] == [("n3", (6, 7))]


def whole(*names: str) -> dict[str, Any]:
    """A dump as PyTorch writes it."""
    told = [(name.lstrip("!"), "scheduled" if name.startswith("!") else "completed") for name in names]
    return plain([entry(n, n, name, state=state) for n, (name, state) in enumerate(told)], {}, LINE)


def test_the_agent_counts_what_is_complete() -> None:
    """Reduced on its node, a dump says the same of its sends and receives, and stays small."""
    body = whole(*(["send 1->0", "recv 1<-2"] * 400), "!recv 1<-2")
    sent = json.dumps(reduced(body)).encode()
    assert len(sent) < 1500
    found = read_dump(sent, 1)
    assert found == read_dump(pickle.dumps(body), 1)
    assert {(peer, sends): told.completed for (_, peer, sends), told in found.exchanges.items()} == {
        (0, True): 400, (2, False): 400,
    }  # fmt: skip
    assert found.whole


def test_the_agent_bounds_the_number_of_partners() -> None:
    """A thousand partners: the latest ones are counted."""
    names = [f"send 0->{n}" for n in range(1, 1000)]
    entries = [entry(n, n, name, state="completed") for n, name in enumerate(names)]
    told = reduced(plain(entries, {}, {WORLD: range(1000)}))["exchanges"]
    assert len(told) == MAX_EXCHANGES
    assert told[-1][1] == "send 0->999"
