"""What the node watch tells Slurm of an unfit node: the gate's own decision, or a marker where the node has jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_robust.config.site import BreakerConfig, Config, NodecheckConfig, SlurmConfig
from slurm_robust.core.model import Mode
from slurm_robust.marks import fault_marker
from slurm_robust.marks.fault_marker import FaultMarker
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result
from slurm_robust.nodecheck.stages import gate
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmTimeoutError

TEXT = "XID 79 on GPU 0000:9b:00"
REPORT = NodeReport("n1", "periodic", (Result("xid", Finding.fail("xid", TEXT, "")),))
MARKER = FaultMarker(1_790_000_000, "xid", (0,), TEXT)
MILD = MARKER._replace(spares_jobs=True)
ACT = Config(mode=Mode.ACT)
BUSY = Node("n1", "ALLOCATED", comment="rack 12 [[srobust-drain-permit until=1]]")


class Slurm:
    """One node, as each reading shows it, and what is done to it."""

    def __init__(self, *readings: Node | None) -> None:
        self.readings = list(readings)
        self.done: list[tuple[str, ...]] = []

    def connect(self, config: SlurmConfig) -> Any:
        """Itself."""
        assert config.timeout_s <= 3.0 + gate.SPREAD_S
        return self

    def node(self, name: str) -> Node | None:
        """The next reading."""
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def nodes(self) -> list[Node]:
        """The same, in a list."""
        node = self.node("n1")
        return [node] if node else []

    def drain(self, nodes: str, reason: str) -> None:
        """A drain."""
        self.done.append(("drain", nodes, reason))

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """A marker."""
        self.done.append(("extra", nodes, extra))


def tell(slurm: Slurm, marker: FaultMarker = MARKER, config: Config = ACT) -> str:
    """What the log says of it."""
    lines: list[str] = []
    gate.tell_fault(REPORT, marker, config, lines.append, slurm.connect)
    assert len(lines) == 1
    return lines[0]


def idle(most: str = "") -> Node:
    """A node without jobs, with a permit for the next minute."""
    return Node("n1", "IDLE", comment=f"[[srobust-drain-permit until={int(time.time()) + 60}{most}]]")


@pytest.mark.parametrize("flags", [(), ("RESERVED",), ("PLANNED",)])
@pytest.mark.parametrize("marker", [MARKER, MILD], ids=["urgent", "mild"])
def test_a_node_without_jobs_is_marked_where_a_daemon_is_alive(flags: tuple[str, ...], marker: FaultMarker) -> None:
    """It drains the node; hundreds that fail in the same second would not see each other's drains.

    Its permit says that it is alive. In a standby pool, too, and whether or not jobs could go on.
    """
    slurm = Slurm(replace(idle(" most=9"), flags=frozenset(flags), extra="rack 7"))
    assert tell(slurm, marker).startswith("marking the fault of n1")
    assert slurm.done == [("extra", "n1", fault_marker.render(marker, "rack 7"))]


def test_a_node_without_jobs_whose_extra_belongs_to_the_scheduler_drains_itself() -> None:
    """By its permit, with the prolog's reason."""
    slurm = Slurm(replace(idle(), extra='{"scratch": 7}'))
    assert tell(slurm).startswith("draining n1")
    assert slurm.done == [("drain", "n1", f"srobust: {TEXT}")]


@pytest.mark.parametrize("comment", ["rack 7 [[srobust-no-drain-permit]]", "[[srobust-drain-permit until=1]]"])
def test_a_node_without_jobs_and_without_a_permit_stays_as_it_is(comment: str) -> None:
    """The breaker is open, its repair is under way, or the daemon is dead."""
    slurm = Slurm(Node("n1", "IDLE", comment=comment))
    assert "it has no drain permit" in tell(slurm)
    assert slurm.done == []


def test_a_node_without_jobs_that_is_drained_is_not_marked() -> None:
    """Whoever drained it."""
    slurm = Slurm(replace(idle(), flags=frozenset({"DRAIN"}), reason="bad fan"))
    assert "already drained (bad fan)" in tell(slurm)
    assert slurm.done == []


@pytest.mark.parametrize(
    "node", [BUSY, replace(BUSY, state="MIXED"), replace(BUSY, state="IDLE", flags={"COMPLETING"})]
)
def test_on_a_node_with_jobs_the_fault_is_marked(node: Node) -> None:
    """Nothing is drained; the daemon that reads the marker may be dead now, and its breaker open."""
    slurm = Slurm(replace(node, extra="rack 7"))
    assert "marking the fault of n1" in tell(slurm)
    assert slurm.done == [("extra", "n1", fault_marker.render(MARKER, "rack 7"))]


def test_a_fault_that_jobs_can_live_with_changes_nothing_on_a_busy_node() -> None:
    """The health check and the jobs' supervisors deal with it."""
    slurm = Slurm(BUSY)
    assert "has jobs that can go on" in tell(slurm, MILD)
    assert slurm.done == []


def test_a_second_fault_joins_the_first_and_the_same_one_is_not_written_again() -> None:
    """The daemon has not read the first marker yet."""
    first = fault_marker.render(MARKER, "rack 7")
    slurm = Slurm(replace(BUSY, extra=first))
    tell(slurm)
    assert slurm.done == []
    tell(slurm, FaultMarker(MARKER.at_s + 5, "gpu_ecc", (3,), "GPU 3 is broken"))
    ((_, _, text),) = slurm.done
    joined = fault_marker.parse(text)
    assert joined is not None
    assert (joined.gpus, joined.sentence, fault_marker.without(text)) == ((0, 3), "GPU 3 is broken", "rack 7")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flags": frozenset({"DRAIN"}), "reason": "bad fan"}, "somebody has taken the node out of service (bad fan)"),
        ({"extra": '{"scratch": 7}'}, "JSON"),
    ],
)
def test_no_marker_where_a_person_or_the_scheduler_owns_the_node(change: dict[str, Any], words: str) -> None:
    """Only words."""
    slurm = Slurm(replace(BUSY, **change))
    assert words in tell(slurm)
    assert slurm.done == []


def test_a_node_that_we_drained_is_marked_all_the_same() -> None:
    """Its job still runs there, and nobody has told the daemon."""
    slurm = Slurm(replace(BUSY, flags=frozenset({"DRAIN"}), reason="srobust: failed its health check"))
    tell(slurm)
    assert [what for what, *_ in slurm.done] == ["extra"]


@pytest.mark.parametrize(("choice", "drains"), [("report", False), ("drain", True)])
@pytest.mark.parametrize("state", ["ALLOCATED", "IDLE"])
def test_without_a_daemon_the_sites_choice_holds(choice: Any, drains: bool, state: str) -> None:
    """Nobody would read a marker."""
    whole = BreakerConfig(max_partition_share=1.0)
    config = Config(mode=Mode.ACT, nodecheck=NodecheckConfig(without_daemon=choice), breaker=whole)
    slurm = Slurm(Node("n1", state, comment="rack 7"))
    assert drains or "no srobustd manages it" in tell(slurm, config=config)
    if drains:
        tell(slurm, config=config)
    assert [what for what, *_ in slurm.done] == ["drain"] * drains


def test_a_job_that_starts_during_the_pause_is_not_drained_under(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done, and the next call finds a busy node, which it marks."""
    monkeypatch.setattr(gate, "SPREAD_S", 0.01)
    json = '{"scratch": 7}'
    slurm = Slurm(replace(idle(" most=9"), extra=json), replace(BUSY, extra=json), BUSY)
    with pytest.raises(gate.JobStartedError):
        gate.tell_fault(REPORT, MARKER, ACT, lambda line: None, slurm.connect)
    assert slurm.done == []
    tell(slurm)
    assert [what for what, *_ in slurm.done] == ["extra"]


def test_in_observe_mode_slurm_is_not_even_asked() -> None:
    """Only words."""

    def never(config: SlurmConfig) -> Any:
        raise AssertionError("no call to Slurm")

    lines: list[str] = []
    gate.tell_fault(REPORT, MARKER, Config(), lines.append, never)
    assert lines == [f"observe: would tell Slurm that n1 is unfit: {TEXT}"]


def test_a_slurm_that_does_not_answer_is_the_callers_to_try_again() -> None:
    """Other than in a prolog, where the job starts and nobody waits."""

    def away(config: SlurmConfig) -> Any:
        raise SlurmTimeoutError("read node n1")

    with pytest.raises(SlurmTimeoutError):
        gate.tell_fault(REPORT, MARKER, ACT, lambda line: None, away)
