"""An agent looks at RDMA ports itself: a tree of /sys, lost links, traffic, a card that hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.supervise.agent import rdma_ports
from slurm_robust.supervise.agent.clock import SystemClock
from slurm_robust.supervise.agent.messages import FromAgent, NodeFindings, PortTraffic, encode, from_agent
from slurm_robust.supervise.agent.port_watch import LOOK_S, TRAFFIC_S, PortWatch


class Clock(SystemClock):
    """It stands until the test moves it."""

    at_s = 1000.0

    def now_s(self) -> float:
        """Wall time."""
        return self.at_s

    def monotonic_s(self) -> float:
        """The same."""
        return self.at_s


class Node:
    """A node's cards, and what its agent sends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.sent: list[FromAgent] = []
        self.watch = PortWatch("n1", self.sent.append, root=str(root), clock=self.clock)

    def port(self, device: str, state: str = "4: ACTIVE", lost: int = 0, moved: int = 0) -> None:
        """What a port of this card shows; `moved` in words of four bytes, each way."""
        port = self.root / device / "ports/1"
        (port / "counters").mkdir(parents=True, exist_ok=True)
        files = {"state": state, "counters/link_downed": lost}
        files.update(dict.fromkeys(("counters/port_xmit_data", "counters/port_rcv_data"), moved))
        for name, value in files.items():
            (port / name).write_text(f"{value}\n")

    def passes(self, seconds: float, *, watched: bool = False) -> list[FromAgent]:
        """So much time passes, and a reading is taken; what is sent then."""
        self.sent.clear()
        self.clock.at_s += seconds
        self.watch.poll(watched=watched)
        wait_until(lambda: not self.watch._reader._thread.is_alive(), 10, "the reading")  # type: ignore[union-attr]
        self.watch.poll(watched=watched)
        return list(self.sent)

    def found(self, seconds: float = LOOK_S, *, watched: bool = False) -> list[tuple[str, str, str]]:
        """The findings that are sent then."""
        sent = [m for m in self.passes(seconds, watched=watched) if isinstance(m, NodeFindings)]
        return [(f.port, f.urgency, f.text) for message in sent for f in message.findings]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two cards, both active, and one that is down."""
    made = Node(tmp_path)
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        made.port(device, state)
    return made


def test_lost_links_are_found_where_no_service_watches(node: Node) -> None:
    """One that is down, one that was down for a moment, and one that comes back; what was down before is no news."""
    assert node.found() == []
    node.port("mlx5_0", "1: DOWN", 1)
    node.port("mlx5_1", lost=1)
    assert node.found() == [
        ("mlx5_0/1", "if_repeated", "mlx5_0/1 lost its link"),
        ("mlx5_1/1", "if_repeated", "mlx5_1/1 lost its link for a moment"),
    ]
    node.port("mlx5_0", lost=1)
    assert node.found() == [("mlx5_0/1", "note", "mlx5_0/1 is active again")]
    node.port("mlx5_0", lost=2)
    assert node.found(2 * LOOK_S) == [("mlx5_0/1", "if_repeated", "mlx5_0/1 lost its link for a moment")]


def test_a_service_that_comes_and_goes_is_not_doubled(node: Node) -> None:
    """What changed while it watched is its own to tell."""
    node.found()
    node.port("mlx5_0", "1: DOWN", 1)
    assert node.found(TRAFFIC_S, watched=True) == []
    assert node.found(TRAFFIC_S) == []
    assert node.found() == []
    node.port("mlx5_1", "1: DOWN", 1)
    assert node.found() == [("mlx5_1/1", "if_repeated", "mlx5_1/1 lost its link")]


def test_virtual_functions_and_odd_files_are_left_out(node: Node) -> None:
    """A slice of a card, a port that cannot be read, a device without ports."""
    node.port("mlx5_9")
    (node.root / "mlx5_9/device/physfn").mkdir(parents=True)
    (node.root / "mlx5_8").mkdir()
    (node.root / "mlx5_7/ports/1").mkdir(parents=True)
    assert rdma_ports.read_ports(str(node.root))["mlx5_7/1"] == (None, None, None)
    assert sorted(rdma_ports.read_ports(str(node.root))) == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_7/1"]
    assert rdma_ports.read_ports(str(node.root / "none")) == {}


def test_a_card_that_hangs_holds_up_nobody(node: Node) -> None:
    """A pipe stands for a file whose reading does not come back: the agent goes on, and reads nothing meanwhile."""
    state = node.root / "mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    for _ in range(3):
        node.clock.at_s += LOOK_S
        node.watch.poll(watched=False)
    thread = node.watch._reader._thread
    assert thread is not None
    assert thread.is_alive()
    with state.open("w") as pipe:
        pipe.write("4: ACTIVE\n")
    wait_until(lambda: not thread.is_alive(), 10, "the reading")


def test_traffic_is_sent_once_a_minute_and_only_where_it_changes(node: Node) -> None:
    """In bytes of both ways; a message survives its journey."""
    assert node.passes(0) == []
    node.port("mlx5_0", moved=1000)
    assert node.passes(TRAFFIC_S) == [PortTraffic("n1", 60.0, 8000)]
    sent = [message for _ in range(36) for message in node.passes(LOOK_S)]
    assert [m.moved_bytes for m in sent if isinstance(m, PortTraffic)] == [0]
    message = PortTraffic("n1", 60.0, 8000)
    assert from_agent(encode(message)) == message


def test_a_finding_of_its_own_has_the_shape_of_the_services(node: Node) -> None:
    """So that the supervisor need not tell them apart."""
    node.found()
    node.port("mlx5_0", "1: DOWN", 1)
    (message,) = [m for m in node.passes(LOOK_S) if isinstance(m, NodeFindings)]
    (found,) = message.findings
    assert found == NodeFinding(1, 1005.0 + LOOK_S, "agent", "port", "if_repeated", found.text, (), "mlx5_0/1")
    assert from_agent(encode(message)) == message


def test_what_cannot_be_read_is_no_lost_link(node: Node) -> None:
    """Neither a state nor a counter that is empty for a moment, nor one that reads 0 once, nor cards not listed."""
    node.port("mlx5_0", lost=3)
    assert node.found() == []
    counter, state = (node.root / "mlx5_0/ports/1" / name for name in ("counters/link_downed", "state"))
    for path, text in ((counter, ""), (state, ""), (state, "?"), (counter, "0"), (counter, "N/A")):
        path.write_text(text)
        assert node.found() == []
        node.port("mlx5_0", lost=3)
        assert node.found() == []
    node.port("mlx5_0", lost=4)
    assert node.found() == [("mlx5_0/1", "if_repeated", "mlx5_0/1 lost its link for a moment")]


def test_cards_that_cannot_be_listed_are_not_gone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the memory is short; a card that is gone has lost its link."""
    assert node.found() == []
    with monkeypatch.context() as broken:
        broken.setattr(rdma_ports.os, "listdir", lambda _: (_ for _ in ()).throw(OSError(12, "no memory")))
        assert node.found() == []
    assert node.found() == []
    (node.root / "mlx5_1").rename(node.root.parent / "away")
    assert node.found() == [("mlx5_1/1", "if_repeated", "mlx5_1/1 lost its link")]


def test_a_counter_that_reads_0_once_does_not_send_the_cards_history(node: Node) -> None:
    """Nor does one that cannot be read make a silence of a training."""

    def sent(moved: int | None) -> list[int]:
        node.port("mlx5_0", moved=moved or 0)
        if moved is None:
            (node.root / "mlx5_0/ports/1/counters/port_xmit_data").write_text("")
        return [m.moved_bytes for m in node.passes(TRAFFIC_S) if isinstance(m, PortTraffic)]

    readings = [10**9, 10**9 + 10, 0, 10**9 + 20, 10**9 + 31, None, 10**9 + 50, 10**9 + 62]
    assert [sent(moved) for moved in readings] == [[], [80], [], [], [88], [], [], [96]]


def test_ports_that_the_site_ignores_are_not_looked_at(node: Node, tmp_path: Path) -> None:
    """By the names of the check: a device, a port, an interface, a board."""
    (node.root / "mlx5_1/board_id").write_text("MT_0000000838\n")
    (node.root / "mlx5_2/ports/1/gid_attrs/ndevs").mkdir(parents=True)
    (node.root / "mlx5_2/ports/1/gid_attrs/ndevs/0").write_text("eth7\n")
    (node.root / "mlx5_0/device/net/ib0").mkdir(parents=True)
    for ignored, left in (
        ("mlx5_0", {"mlx5_1/1", "mlx5_2/1"}),
        ("mlx5_1/1", {"mlx5_0/1", "mlx5_2/1"}),
        ("MT_0000000838", {"mlx5_0/1", "mlx5_2/1"}),
        ("eth7", {"mlx5_0/1", "mlx5_1/1"}),
        ("ib0", {"mlx5_1/1", "mlx5_2/1"}),
        ("mlx5_9", {"mlx5_0/1", "mlx5_1/1", "mlx5_2/1"}),
    ):
        assert set(rdma_ports.read_ports(str(node.root), (ignored,))) == left
