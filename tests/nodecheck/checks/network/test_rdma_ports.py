from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from network_trees import DOWN, OFF, REAL, ROCE, UP, Looker, device, eight, interface, write

from slurm_robust.nodecheck.checks.network import rdma_ports
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import rdma


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """Eight healthy cards."""
    made = Looker("rdma_ports", tmp_path, monkeypatch)
    eight(made.root)
    return made


def test_a_healthy_node_and_one_without_rdma(looker: Looker, tmp_path: Path) -> None:
    """Eight active ports pass, with and without the number expected; no device is nothing to look at."""
    assert looker.look() == ("pass", "ports_active")
    assert looker.look(expected=8) == ("pass", "ports_active")
    empty = runner.run([rdma_ports.check], Context("n1", root=tmp_path / "none"), {}, 10.0).results[0].finding
    assert (empty.status.value, empty.reason) == ("skip", "no_rdma")


def test_the_healthy_h100_node_has_no_finding(tmp_path: Path) -> None:
    """Real material: eight ConnectX-7 and a bonded BlueField-3."""
    if not REAL.is_dir():
        pytest.skip(f"real material is not here: {REAL}")
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(REAL)
    report = runner.run([rdma_ports.check], Context("n1", root=tmp_path), {"rdma_ports": {"expected": 9}}, 10.0)
    finding = report.results[0].finding
    assert (finding.status.value, finding.reason) == ("pass", "ports_active")
    assert finding.sentence.startswith("9 RDMA ports are active")


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (DOWN, ("warn", "port_down")),
        ({**DOWN, "phys_state": "6: LinkErrorRecovery"}, ("warn", "port_down")),
        ({"state": "2: INIT"}, ("warn", "port_not_configured")),
        ({"state": "3: ARMED"}, ("warn", "port_not_configured")),
        (OFF, ("pass", "ports_active")),  # nobody saw it up: unused on purpose
        ({"lid": "0x0"}, ("warn", "no_lid")),
        ({"lid": "0xffff"}, ("warn", "no_lid")),
        ({"sm_lid": "0x0"}, ("warn", "no_lid")),
        ({"lid": "", "sm_lid": "junk"}, ("pass", "ports_active")),
        ({"state": ""}, ("unknown", "port_unreadable")),
    ],
)
def test_a_port_that_nobody_saw_up_never_fails(looker: Looker, port: dict[str, str], expected: tuple[str, str]) -> None:
    """The odd one out of eight warns: it may be unused. A disabled port is no fault."""
    device(looker.root, "mlx5_3", UP | port)
    assert looker.look() == expected
    assert looker.look() == expected


def test_most_ports_down_is_how_the_node_is_built(looker: Looker) -> None:
    """Six of eight without a cable, and nobody expects more: no finding; with an expectation it fails."""
    for number in range(6):
        device(looker.root, f"mlx5_{number}", UP | DOWN)
    assert looker.look() == ("pass", "ports_active")
    assert looker.look(expected=8) == ("fail", "ports_missing")
    assert looker.look(expected=8, ignore=["mlx5_0"]) == ("fail", "ports_missing")
    assert looker.look(expected=2) == ("pass", "ports_active")


@pytest.mark.parametrize(("port", "reason"), [(DOWN, "port_down"), ({"state": "2: INIT"}, "port_not_configured")])
def test_a_port_that_was_up_and_stays_away_fails_at_the_second_look(
    looker: Looker, port: dict[str, str], reason: str
) -> None:
    """One look may meet a flap; half a minute later it is none. Back up, all is well; a new boot starts anew."""
    assert looker.look() == ("pass", "ports_active")
    device(looker.root, "mlx5_3", UP | port)
    assert looker.look(5) == ("warn", reason)
    assert looker.look(5) == ("warn", reason)
    assert looker.look(30) == ("fail", reason)
    assert "mlx5_3" in looker.finding(30).sentence
    device(looker.root, "mlx5_3", UP)
    assert looker.look() == ("pass", "ports_active")
    device(looker.root, "mlx5_3", UP | port)
    assert looker.look(5) == ("warn", reason)
    looker.reboot()
    assert looker.look() == ("warn", "fewer_ports_than_before")


def test_the_expected_count_gives_a_flap_the_same_grace(looker: Looker) -> None:
    """What has just gone down warns, then fails."""
    looker.look(expected=8)
    device(looker.root, "mlx5_3", UP | DOWN)
    assert looker.look(5, expected=8) == ("warn", "ports_missing")
    assert looker.look(60, expected=8) == ("fail", "ports_missing")


def test_a_port_switched_off_by_hand_warns(looker: Looker) -> None:
    """Somebody did that; the site may say that it is meant."""
    looker.look()
    device(looker.root, "mlx5_3", UP | OFF)
    assert looker.look() == ("warn", "port_disabled")
    assert looker.look(100, ignore=["mlx5_3"]) == ("pass", "ports_active")


@pytest.mark.parametrize("name", ["mlx5_3", "mlx5_3/1", "ib3", "MT_0000000999"])
def test_what_the_site_ignores_is_passed_over(looker: Looker, name: str) -> None:
    """By device, port, interface or board."""
    looker.look()
    folder = device(looker.root, "mlx5_3", UP | DOWN, board_id="MT_0000000999")
    (folder / "device/net/ib3").mkdir(parents=True)
    assert looker.look(ignore=[name]) == ("pass", "ports_active")
    assert looker.look(ignore=["mlx5_4"]) == ("warn", "port_down")
    assert looker.look(ignore=["mlx5_4"]) == ("fail", "port_down")


def test_a_roce_port_without_a_cable_is_told_from_one_that_is_off(looker: Looker) -> None:
    """mlx5 calls both Disabled: what the interface says decides."""
    for number in range(8):
        folder = device(looker.root, f"mlx5_{number}", ROCE)
        (folder / f"device/net/eth{number}").mkdir(parents=True)
        interface(looker.root, f"eth{number}")
    assert looker.look() == ("pass", "ports_active")
    device(looker.root, "mlx5_3", ROCE | OFF)
    assert looker.look() == ("warn", "port_down")
    assert looker.look() == ("fail", "port_down")
    interface(looker.root, "eth3", flags="0x1002")
    assert looker.look() == ("warn", "port_disabled")


def test_an_ethernet_port_without_sisters_may_be_for_management(looker: Looker) -> None:
    """It only warns; an InfiniBand port never is. With an expectation it counts like any other."""
    board = {"hca_type": "MT4117", "board_id": "MT_2420110034"}
    device(looker.root, "mlx5_8", ROCE, **board)
    assert looker.look(expected=9) == ("pass", "ports_active")
    device(looker.root, "mlx5_8", ROCE | DOWN, **board)
    assert looker.look() == ("warn", "port_down")
    assert looker.look() == ("warn", "port_down")
    assert looker.look(expected=9) == ("fail", "ports_missing")
    device(looker.root, "mlx5_8", UP | DOWN, **board)
    assert looker.look() == ("fail", "port_down")


@pytest.mark.parametrize("key", ["mlx5_3", "MT_0000000838", "MT4129", "default"])
def test_a_card_in_the_wrong_mode_fails_where_the_site_says_which(looker: Looker, key: str) -> None:
    """One board may serve as InfiniBand and as Ethernet: only the site knows."""
    device(looker.root, "mlx5_3", ROCE)
    assert looker.look() == ("pass", "ports_active")
    assert looker.look(link_layer={key: "InfiniBand"}) == ("fail", "wrong_link_layer")
    assert looker.look(link_layer={"default": "InfiniBand", "mlx5_3": "Ethernet"}) == ("pass", "ports_active")
    assert looker.look(link_layer={key: 7}) == ("pass", "ports_active")


def test_a_card_that_left_the_bus_fails_and_one_that_lost_its_driver_warns(looker: Looker) -> None:
    """An unloaded driver or a new bond takes devices away by hand; a PCI function goes only when it dies."""
    looker.look()
    folder = looker.root / "sys/class/infiniband/mlx5_3"
    folder.rename(looker.root / "away")
    assert looker.look() == ("warn", "device_unbound")
    (looker.root / "sys/bus/pci/devices/0000:03:00.0").rename(looker.root / "gone")
    assert looker.look() == ("fail", "device_gone")
    assert looker.look(5, ignore=["mlx5_3"]) == ("pass", "ports_active")
    looker.reboot()
    assert looker.look() == ("warn", "fewer_ports_than_before")


def test_a_renamed_device_is_the_same_card(looker: Looker) -> None:
    """Udev may rename a device while the node runs."""
    looker.look()
    folder = looker.root / "sys/class/infiniband"
    (folder / "mlx5_3").rename(folder / "rocep3s0")
    assert looker.look() == ("pass", "ports_active")


def test_virtual_functions_beside_their_card_are_not_judged(looker: Looker) -> None:
    """They wait for guests; in a guest, where no card stands beside them, they are."""
    folder = device(looker.root, "mlx5_8", UP | DOWN, pci="0000:08:00.1", hca_type="MT4126")
    (folder / "device/physfn").symlink_to("../0000:07:00.0")
    assert looker.look() == ("pass", "ports_active")
    assert looker.look(ignore=[f"mlx5_{n}" for n in range(8)], expected=1) == ("fail", "ports_missing")


def test_a_switch_of_virtual_functions_counts_as_its_uplink(looker: Looker) -> None:
    """Every virtual function has a port in switchdev mode."""
    for number in range(2, 20):
        write(looker.root / f"sys/class/infiniband/mlx5_0/ports/{number}", UP | DOWN)
    finding = looker.finding()
    assert (finding.status.value, list(finding.evidence["ports"])) == ("pass", [f"mlx5_{n}" for n in range(8)])


CORPUS: list[tuple[str, dict[str, str], tuple[str, str], str]] = [
    ("mlx5_bond_0", ROCE, ("0x15b3", "0xa2dc"), "card"),
    ("ibp0s1", UP, ("0x15b3", "0x1021"), "card"),
    ("roceP2p1s0", ROCE, ("0x14e4", "0x1760"), "card"),
    ("rdmap16s27", {**ROCE, "link_layer": "Unknown"}, ("0x1d0f", "0xefa2"), "guest"),
    ("mlx5_ib0", UP, ("0x15b3", "0x101c"), "guest"),
    ("manae_0", ROCE, ("0x1414", "0x00ba"), "guest"),
    ("irdma0", ROCE, ("0x8086", "0x1592"), "card"),
]


@pytest.mark.parametrize(("name", "port", "ids", "kind"), CORPUS, ids=lambda value: str(value)[:12])
def test_devices_are_told_by_sysfs_and_not_by_name(
    tmp_path: Path, name: str, port: dict[str, str], ids: tuple[str, str], kind: str
) -> None:
    """Whatever a distribution or cloud calls it; Ethernet interfaces with `ib` in their names are none."""
    device(tmp_path, name, port, pci="0000:01:00.0", ids=ids, hca_type="", board_id="")
    for other in ("virbr0-calibrate", "ib0", "ens10f0"):
        interface(tmp_path, other)
    found = rdma.devices(Context("n1", root=tmp_path))
    assert [(d["name"], d["kind"], d["ports"][0]["layer"]) for d in found] == [(name, kind, port["link_layer"])]
    assert found[0]["card"] != "unknown card"


@pytest.mark.parametrize(
    "kept",
    [
        {"active": 7, "devices": [], "since": "x", "full": "y"},
        {"active": {"mlx5_0": None}, "devices": {"a": 1, "b": ["c"], "d": ""}, "since": {"mlx5_0": "x", "b": -1}},
        {"since": {"mlx5_3": 1e99}, "active": {"mlx5_3": True}},
    ],
)
def test_any_memory_gives_a_finding(looker: Looker, kept: dict[str, Any]) -> None:
    """What was kept may be of another version of ours, or garbage."""
    device(looker.root, "mlx5_3", UP | DOWN)
    facts = rdma_ports.probe(Context("n1", root=looker.root), {}) | {"kept": {"boot_id": "boot-1", **kept}}
    options = rdma_ports.check.settings({})
    assert rdma_ports.judge(facts, options).status.value in ("warn", "fail")
    kept_next = rdma_ports.remember(facts, options)
    assert kept_next is not None
    assert kept_next["active"]


def test_a_virtual_function_may_have_no_id_of_its_own(looker: Looker) -> None:
    """In a guest with InfiniBand (Azure's, say) ports can carry traffic under their card's id."""
    for number in range(2):
        pci = f"0000:0{number}:00.0"
        device(looker.root, f"mlx5_{number}", {**UP, "lid": "0x0"}, pci=pci, ids=("0x15b3", "0x101e"), hca_type="")
    assert looker.look() == ("pass", "ports_active")
