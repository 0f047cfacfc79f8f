"""NCCL's own view as a vote: what its text and JSON say, where it alone is right, and where it alone would be wrong."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localize_scenes import ALL_REDUCE, capture, evidence, process, rank, repeated, waiting

from slurm_robust.core.model import Conclusion, Grade
from slurm_robust.localize.judge import judge
from slurm_robust.localize.ras import CommunicatorMember, Lag, RasError, RasView, read, read_json, read_text
from slurm_robust.localize.votes.nccl_ras import judge_ras

NODES = {n: f"n{n}" for n in range(4)}
PIDS = {100 + n: (n,) for n in range(4)}


def member(number: int) -> CommunicatorMember:
    """Rank `number` of ours as NCCL sees it."""
    return CommunicatorMember(number, f"10.0.0.{number}", 100 + number)


def lag(*behind: int, operation: str = "AllReduce", size: int = 4, ahead: tuple[int, ...] = (), by: int = 1) -> Lag:
    """These launched an operation less often than their peers."""
    told = tuple((member(n), 50 - by) for n in behind)
    return Lag("cafe", size, operation, 50, told, True, tuple(member(n) for n in ahead))


def views(*lags: Lag, silent: tuple[int, ...] = (), dead: bool = False, apart_s: float = 3.0) -> list[RasView]:
    """The same answer twice."""
    found = RasView(100.0, tuple((member(n), 4, dead) for n in silent), lags)
    return [found, replace(found, at_s=100.0 + apart_s)]


# -- the vote ---------------------------------------------------------------------------------------------------------


def test_alone_right_who_launched_less_is_named() -> None:
    """All stand at the same synchronisation, Python knows nothing: the rank that launched one operation less is it."""
    found = judge_ras(views(lag(2)), PIDS, NODES)
    assert found is not None
    assert [(s.node, s.ranks) for s in found.suspects] == [("n2", (2,))]
    assert "launched AllReduce 49 times, 3 peers 50 times" in found.reason


def test_alone_right_a_process_that_does_not_answer_is_named() -> None:
    """Twice unreachable, or given up by NCCL once: its service needs neither Python nor the GPU."""
    for said in (views(silent=(1,)), views(silent=(1,), dead=True)[:1]):
        found = judge_ras(said, PIDS, NODES)
        assert found is not None
        assert [s.node for s in found.suspects] == ["n1"]
    assert judge_ras(views(silent=(1,))[:1], PIDS, NODES) is None, "one timeout says nothing"


def test_alone_wrong_a_late_rank_that_waits_itself_is_no_culprit() -> None:
    """Rank 1 is behind in one group because it waits in another for rank 3: the end of the chain is named."""
    small = replace(lag(1, size=2, ahead=(0,)), communicator="beef")
    other = replace(lag(3, size=2, ahead=(1,)), communicator="f00d")
    found = judge_ras(views(small, other), PIDS, NODES)
    assert found is not None
    assert [s.node for s in found.suspects] == ["n3"]
    # Where the older text does not tell who is ahead, nobody is named.
    untold = [replace(x, ahead=()) for x in (small, other)]
    assert judge_ras(views(*untold), PIDS, NODES) is None


def test_alone_wrong_counts_that_move_name_nobody() -> None:
    """NCCL's counters run ahead of each other in any healthy job: only what stands still counts."""
    before, after = views(lag(2))
    moved = replace(after, lags=(replace(lag(2), most=51, behind=((member(2), 50),)),))
    assert judge_ras([before, moved], PIDS, NODES) is None
    assert judge_ras(views(lag(2), apart_s=0.5), PIDS, NODES) is None
    assert judge_ras([after], PIDS, NODES) is None


def test_alone_wrong_different_operations_are_the_programs() -> None:
    """Rank 2 is ahead by a barrier's broadcast and behind by a reduction: it waits, too, and no node is named."""
    mixed = (lag(2), lag(0, 1, 3, operation="Broadcast"))
    assert judge_ras(views(*mixed), PIDS, NODES) is None


def test_most_nodes_silent_is_a_cause_that_they_share() -> None:
    """Three of four: the network, or RAS itself."""
    found = judge_ras(views(silent=(0, 1, 2)), PIDS, NODES)
    assert found is not None
    assert found.conclusion is Conclusion.UNDETERMINED


def test_strangers_are_not_named() -> None:
    """Process ids that no rank of ours has, or that several have, name nobody."""
    stranger = Lag("cafe", 2, "AllReduce", 50, ((CommunicatorMember(0, "10.9.9.9", 7), 49),))
    assert judge_ras(views(stranger), PIDS, NODES) is None
    shared = Lag("cafe", 2, "AllReduce", 50, ((CommunicatorMember(0, "10.0.0.1", 100), 49),))
    assert judge_ras(views(shared), {100: (0, 1)}, NODES) is None


@pytest.mark.parametrize("number", [4, 7, 10**9, -1])
def test_a_process_with_an_impossible_number_is_not_named(number: int) -> None:
    """A communicator of four ranks has no rank 4: the answer is garbled, whatever process id stands beside it."""
    odd = CommunicatorMember(number, "10.0.0.2", 102)
    silent = RasView(100.0, ((odd, 4, True),))
    late = RasView(100.0, (), (Lag("cafe", 4, "AllReduce", 50, ((odd, 49),)),))
    for said in (silent, late):
        assert judge_ras([said, replace(said, at_s=104.0)], PIDS, NODES) is None


def test_laggards_without_names_are_told() -> None:
    """NCCL's text only counts those that are behind: undetermined, and the verdict says what NCCL saw."""
    text = """#0-0 (27a0) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 9
  2 ranks have launched up to operation 8
"""
    answers = tuple(read_text(text, at_s) for at_s in (100.0, 104.0))
    scene = repeated(*(waiting(n) for n in range(4)))
    found = judge(replace(scene, ras=answers))
    assert found.conclusion is Conclusion.UNDETERMINED
    assert not found.suspects
    assert "NCCL counts ranks behind their peers in AllReduce" in found.reason
    assert "names none of them" in found.reason


def test_with_stacks_that_cannot_tell_the_judge_follows_nccl() -> None:
    """All ranks wait at the same line: undetermined by stacks alone, one node with NCCL's counts."""
    ranks = [rank(n, process(ALL_REDUCE, pid=100 + n)) for n in range(4)]
    scene = evidence(capture(100.0, *ranks), capture(105.0, *ranks))
    assert judge(scene).conclusion is Conclusion.UNDETERMINED
    found = judge(replace(scene, ras=tuple(views(lag(2)))))
    assert found.conclusion is Conclusion.CULPRIT
    assert [s.node for s in found.suspects] == ["n2"]
    assert (found.corroborated, found.grade) == (True, Grade.STRONG), "two answers between which nothing moved"
    assert judge(replace(repeated(waiting(0), waiting(1)), ras=())).conclusion is Conclusion.UNDETERMINED


# -- what NCCL says ---------------------------------------------------------------------------------------------------

TEXT = """\
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 10.1.0.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 10.1.0.210
  Rank 2 -- GPU 2 (NVML 6) managed by process 483074 on node 10.1.0.210
  Rank 9 has launched up to operation 12 -- GPU 1 managed by process 77 on node 10.1.0.211

  Communicator ranks have different Broadcast operation counts
  31 ranks have launched up to operation 4
  Rank 5 has not launched any operations -- GPU 5 managed by process 483077 on node 10.1.0.210

"""


def test_the_text_of_older_versions() -> None:
    """Processes that do not answer, and who is behind in which operation by how much."""
    found = read_text(TEXT, 7.0)
    assert found.silent == ((CommunicatorMember(-1, "10.1.0.213", 3487984), 0, False),)
    reduce, broadcast = found.lags
    assert (reduce.operation, reduce.most, reduce.size, reduce.whole) == ("AllReduce", 6650, 32, True)
    assert [(who.rank, who.pid, count) for who, count in reduce.behind] == [
        (0, 483072, 6649), (2, 483074, 6649), (9, 77, 12),
    ]  # fmt: skip
    assert [(who.rank, count) for who, count in broadcast.behind] == [(5, 0)]


def test_a_process_that_is_given_up() -> None:
    """NCCL says DEAD, after a minute."""
    found = read_text(TEXT.replace("INCOMPLETE\n  Missing communicator data from 1 job process", "DEAD\n  1 job"), 7.0)
    assert [dead for _, _, dead in found.silent] == [True]


def test_the_oldest_text_has_no_names_of_operations() -> None:
    """NCCL 2.24 counts all collectives together."""
    (found,) = read_text(
        "#0-0 (27a0) MISMATCH\n  Communicator ranks have different collective operation counts\n"
        "  3 ranks have launched up to operation 9\n"
        "  Rank 1 has launched up to operation 8 -- GPU 1 managed by process 5 on node 10.0.0.1\n", 1.0
    ).lags  # fmt: skip
    assert (found.operation, found.size, found.behind[0][1]) == ("", 4, 8)


def test_more_behind_than_are_named_is_told() -> None:
    """Where NCCL only counts them, the lag is not whole, and names nobody."""
    text = """#0-0 (a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  20 ranks have launched up to operation 9
  12 ranks have launched up to operation 8
  Rank 3 has launched up to operation 7 -- GPU 3 managed by process 5 on node h
"""
    (found,) = read_text(text, 1.0).lags
    assert not found.whole
    assert judge_ras([RasView(1.0, (), (found,)), RasView(9.0, (), (found,))], {5: (3,)}, NODES) is None


LINES = TEXT.splitlines()


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=60), max_size=40))
def test_no_text_is_too_odd(lines: list[str]) -> None:
    """Lines in any order, cut or foreign: a view comes out, and every rank behind is below the most."""
    for found in read_text("\n".join(lines), 1.0).lags:
        assert all(count < found.most for _, count in found.behind)


KEYS = st.sampled_from(["communicators", "hash", "size", "missing", "operations", "at_s", "json", "text"])
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda s: st.lists(s) | st.dictionaries(KEYS, s)
)


@given(ANYTHING)
def test_no_json_is_too_odd(told: Any) -> None:
    """Anything but an answer is refused with a sentence, and nothing else is raised."""
    with contextlib.suppress(RasError):
        assert isinstance(read_json(json.dumps(told).encode(), 1.0), RasView)
    with contextlib.suppress(RasError):
        assert isinstance(read(json.dumps(told).encode()), RasView)


def test_what_an_incident_keeps_is_read_again() -> None:
    """As the agent sent it: JSON, or text."""
    told = {"nccl": "2.29.1", "communicators": [{"hash": "0xa", "size": 4, "missing": [[1, "h", 9, True]]}]}
    assert read(json.dumps({"at_s": 5.0, "json": told, "text": "", "error": ""}).encode()).silent[0][2]
    assert len(read(json.dumps({"at_s": 5.0, "json": None, "text": TEXT}).encode()).lags) == 2
    with pytest.raises(RasError):
        read(b'{"at_s": 5.0, "json"')
