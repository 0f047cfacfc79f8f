"""RDMA ports in a tree of /sys: a flap, a port that stays away, one that is switched off, the last of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import wait_until
from watch_helpers import RunningService

from slurm_robust.marks import node_findings
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodewatch import polls

Watch = Callable[..., RunningService]
_UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}
_DOWN = {"state": "1: DOWN", "phys_state": "2: Polling"}
_OFF = {"state": "1: DOWN", "phys_state": "3: Disabled"}


def port(root: Path, number: int, **files: str) -> None:
    """Write a port of the card mlx5_NUMBER, each file whole at once."""
    folder = root / "sys/class/infiniband" / f"mlx5_{number}"
    card = {"hca_type": "MT4129", "board_id": "MT_0000000838", "fw_ver": "28.41.1000", "node_type": "1: CA"}
    line = {"link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "lid": "0x1f", "sm_lid": "0x1"}
    bus = root / "sys/bus/pci/devices" / f"0000:{number:02x}:00.0"
    bus.mkdir(parents=True, exist_ok=True)
    (folder / "ports/1/counters").mkdir(parents=True, exist_ok=True)
    if not (folder / "device").is_symlink():
        (folder / "device").symlink_to(f"../../../bus/pci/devices/{bus.name}")
    told = {**card, **{f"ports/1/{name}": text for name, text in {**line, **files}.items()}}
    for name, text in told.items():
        path = folder / (name if "link_downed" not in name else "ports/1/counters/link_downed")
        path.with_suffix(".new").write_text(f"{text}\n")
        path.with_suffix(".new").rename(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with four alike cards."""
    made = tmp_path / "root"
    for number in range(4):
        port(made, number, **_UP, link_downed="0")
    boot = made / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(node_findings.boot_id())
    return made


def test_ports_that_flap_and_go(root: Path, watch: Watch) -> None:
    """Down and up is one if_repeated with its port and a note; off by a person is a note; others are silent."""
    service = watch(extra=f", root: {root}").start()
    settled(service)
    port(root, 2, **_DOWN, link_downed="1")
    lost = service.wait_for("port", timeout_s=10)
    assert (lost.urgency, lost.port, lost.source) == ("if_repeated", "mlx5_2/1", "rdma")
    port(root, 2, **_UP, link_downed="1")
    back = service.wait_for("port", 2, timeout_s=10)
    assert (back.urgency, back.port) == ("note", "mlx5_2/1")
    port(root, 3, **_OFF, link_downed="0")
    off = service.wait_for("port", 3, timeout_s=10)
    assert (off.urgency, off.port) == ("note", "mlx5_3/1")
    port(root, 1, **_UP, link_downed="1")
    moment = service.wait_for("port", 4, timeout_s=10)
    assert (moment.urgency, moment.port) == ("if_repeated", "mlx5_1/1"), "down and up again between two readings"
    assert {finding.urgency for finding in service.findings()} == {"if_repeated", "note"}


def test_a_port_that_stays_away_and_the_last_one(root: Path, watch: Watch) -> None:
    """One rail of four waits for a checkpoint; where none is left, the job leaves at once."""
    service = watch(extra=f", root: {root}, options: {{rdma_ports: {{grace_s: 1.0}}}}").start()
    settled(service)
    port(root, 0, **_DOWN, link_downed="1")
    assert service.wait_for("rdma_ports", timeout_s=20).urgency == "at_next_checkpoint"
    for number in range(4):
        port(root, number, **_DOWN, link_downed="2")
    service.wait_for("port", 4, timeout_s=10)
    for number in range(4):
        port(root, number, **_UP, link_downed="2")
    service.wait_for("rdma_ports", 2, timeout_s=20)  # well again
    for number in range(4):
        port(root, number, **_DOWN, link_downed="3")
    assert service.wait_for("rdma_ports", 3, timeout_s=20).urgency == "now"


def settled(service: RunningService) -> None:
    """Wait until the ports were read once, by what their check keeps."""
    wait_until((service.cache / "nodewatch" / "rdma_ports.json").exists, 20, f"the ports are read; {service.said()}")


def test_what_cannot_be_read_is_no_lost_link(tmp_path: Path) -> None:
    """A state or a counter that is empty, or reads 0, for one look; what comes back is as it was."""
    looks: list[tuple[str, int | None]] = [("ACTIVE", 3), ("", None), ("ACTIVE", 3), ("ACTIVE", 0), ("ACTIVE", 3)]
    known = None
    for state, lost in looks:
        now = polls._known(known, (state, lost))
        assert not polls._lost(known, now[0])
        assert not polls._flapped(known, *now)
        known = now
    assert polls._flapped(known, *polls._known(known, ("ACTIVE", 4)))
    port(tmp_path, 0, **_UP, link_downed="")
    assert polls.ports(Context("n1", root=tmp_path), ()) == {"mlx5_0/1": ("ACTIVE", None)}
