"""What agents and supervisor send each other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import messages as m
from slurm_robust.supervise.agent.mount_messages import CheckMounts, MountsChecked
from slurm_robust.supervise.agent.packing import pack
from slurm_robust.supervise.agent.stopped_messages import ContinueRank, RankContinued
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer

SENT: list[m.FromAgent] = [
    m.Hello("n1", 7),
    m.Heartbeat("n1", 8),
    m.RankFound("n1", 3, 100, "0", 8, 1.5, task=1, nodes=2, ranked=True, python="/env/bin/python"),
    m.RankFound("n1", 3, 100, "0", 8, 1.5),
    m.RankGone("n1", 3, 100, 2.5, task_lives=True),
    m.ProgressReport("n1", (m.ProgressEntry(3, 9, "train", 5.0, 10, "nan", 0.5, None),)),
    m.ProgressReport("n1", (m.ProgressEntry(3, 9, "evaluate", 5.0, 10, None, 0.5, float("inf")),)),
    m.ProgressReport("n1", (m.ProgressEntry(3, 9, "train", 5.0, 10, 0.5, None, None, 7),)),
    m.TimingReport("n1", (m.TimingEntry(3, 9, 1.0, None, None), m.TimingEntry(4, 9, 1.0, 0.5, 0.5))),
    m.RankStart("n1", 3, {"imports_done": 1.0}, {"dp": 8}, m.FirstStep(-1, 0.0)),
    m.RankState("n1", 3, "T", 101),
    m.TaskEnded("n1", "0", 3, 0, 9, 0.25),
    m.CaptureTaken("n1", 4, pack({"v": 1})),
    m.RasTaken("n1", 4, pack({"json": None})),
    m.Cleaned("n1", 5, (7, 8)),
    m.NodeFindings("n1", (NodeFinding(7, 1.5, "kmsg", "xid", "now", "XID 79", (0, 3), "", 79),)),
    m.NodeFindings("n1", (NodeFinding(8, 2.5, "link", "link", "if_repeated", "down", (), "mlx5_0/1", None),)),
    m.NodeFindings("n1", problem="findings.jsonl: owned by user 1000"),
    m.NodeFindings("n1", (NodeFinding(7, 1.5, "kmsg", "xid", "now", "XID 79", (0,), "", 79),), unused=True),
    m.KernelRecords("n1", 1.5, 60.5, ("3,1,5,-;NVRM: Xid", "3,2,6,-;x"), {"0000:9b:00": 3}),
    m.KernelRecords("n1", 1.5, 60.5, ("3,1,5,-;NVRM: Xid",), {}, 535, unused=True),
    m.PortTraffic("n1", 60.0, 2**50),
    WarmAnswer("n1", 6, (0, 1), "x opens /dev/nvidia0", "x", 900, 3.5, 2**28, 2**35, pack("m\tx\t/x")),
    WarmAnswer("n1", 6),
    RankContinued("n1", 3, 101),
    RankContinued("n1", 3, 101, "process 101 is held by a debugger"),
    MountsChecked("n1", 7, ("/data",), ("/home",)),
    m.Flushing("n1"),
    m.Flushed("n1"),
]
ASKED: list[m.ToAgent] = [
    m.WatchAttempt("1.0.2"),
    m.TakeCapture(4, 2, 5.0, "n1", with_recorder=False),
    m.CleanUp(5, "1.0.1", 3.0, ("0", "1")),
    m.CleanUp(0),
    ContinueRank("n1", 3, 101),
    AskWarm(6, "1.0.2", "prepare", pack({"record": ""}), "n1"),
    CheckMounts(7, ("/data",), "n2"),
]


def test_every_message_arrives_as_it_was_sent() -> None:
    """Through JSON, and none is left out here."""
    assert [m.from_agent(json.loads(json.dumps(m.encode(message)))) for message in SENT] == SENT
    assert [m.to_agent(json.loads(json.dumps(m.encode(message)))) for message in ASKED] == ASKED
    assert {type(message) for message in SENT} | {m.Malformed} == set(m.FromAgent.__args__)
    assert {type(message) for message in ASKED} == set(m.ToAgent.__args__)


def test_fields_with_their_default_are_not_sent() -> None:
    """Lines of thousands of ranks stay short."""
    assert m.encode(m.RankGone("n1", 3, 100, 2.5)) == {"t": "gone", "n": "n1", "rank": 3, "pid": 100, "at": 2.5}


@pytest.mark.parametrize(
    "raw", [{}, {"t": "?", "n": "n1"}, {"t": ["p"], "n": "n1"}, {"t": "hb"}, {"t": "rank", "n": "n1", "rank": "x"}]
)
def test_what_is_no_message_is_malformed(raw: dict[str, Any]) -> None:
    """An unknown kind, a field that is missing, a value of another type: with the node's name where there is one."""
    assert m.from_agent(raw) == m.Malformed(raw.get("n", ""))
    assert m.to_agent(raw) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(
    st.sampled_from(["hello", "rank", "gone", "p", "t", "marks", "state", "exit", "cap", "clean", "found", "warm"]),
    st.data(),
)
def test_any_json_is_a_message_or_malformed(kind: str, data: st.DataObject) -> None:
    """Never an error."""
    keys = (
        "n",
        "rank",
        "pid",
        "r",
        "at",
        "marks",
        "layout",
        "first",
        "s",
        "step_id",
        "world",
        "blob",
        "id",
        "left",
        "tasks",
        "refused",
        "findings",
    )
    raw = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys((*keys, "findings"), ANYTHING)))
    assert isinstance(m.from_agent({**raw, "t": kind}), m.FromAgent.__args__)
