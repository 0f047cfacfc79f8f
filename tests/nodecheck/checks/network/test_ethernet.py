from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import ROCE, Looker, device, interface, write

from slurm_robust.nodecheck.checks.network.ethernet_errors import LIMITS
from slurm_robust.nodecheck.sources import network_links

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"


def route(name: str, destination: str = "00000000", mask: str = "00000000") -> str:
    """A line of /proc/net/route."""
    return f"{name}\t{destination}\t0101A8C0\t0003\t0\t0\t100\t{mask}\t0\t0\t0\n"


def routes(looker: Looker, *names: str) -> None:
    """These interfaces have a default route."""
    write(looker.root, {"/proc/net/route": HEAD + "".join(map(route, names))})


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """One interface with a default route."""
    made = Looker("ethernet", tmp_path, monkeypatch)
    interface(made.root, "ens10f0")
    routes(made, "ens10f0")
    return made


@pytest.mark.parametrize("name", ["eth0", "ens10f0", "enp1s0f0np0", "bond0.12", "ib0", "wlp2s0", "virbr0-calibrate"])
def test_interfaces_are_taken_from_the_routes_and_not_from_their_names(name: str) -> None:
    """A peer (gcm) missed `ens10f0` and took `virbr0-calibrate` for InfiniBand: names say nothing."""
    assert network_links.default_interfaces(HEAD + route(name), "") == [name]
    assert network_links.default_interfaces(HEAD + route(name, "000011AC", "0000FFFF"), "") == []


def test_ipv6_default_routes_count_and_rejecting_ones_do_not() -> None:
    """A node may have IPv6 only; the kernel's own `unreachable` entry on lo is no route."""
    zero = "0" * 32
    line = f"{zero} 00 {zero} 00 fe80{'0' * 28} 00000400 00000001 00000000 {{flags}}     {{name}}\n"
    text = line.format(flags="00000003", name="ens10f0") + line.format(flags="00200200", name="lo")
    assert network_links.default_interfaces("", text) == ["ens10f0"]


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_tables_are_read_without_an_error(one: str, other: str) -> None:
    """Truncated or odd /proc tables give what they can."""
    assert isinstance(network_links.default_interfaces(one, other), list)


@given(st.sampled_from(["../../etc", ".", "..", "a/b", "a\0b", "x" * 70]))
def test_a_name_that_steps_out_of_its_folder_is_none(name: str) -> None:
    """A saved tree may say anything."""
    assert network_links.default_interfaces(HEAD + route(name), "") == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ("pass", "link_up")),
        ({"operstate": "unknown"}, ("pass", "link_up")),  # many virtual cards
        ({"operstate": "", "carrier": "", "speed": "-1", "duplex": "unknown", "mtu": ""}, ("pass", "link_up")),
        ({"speed": "4294967295"}, ("pass", "link_up")),
        ({"operstate": "down", "carrier": ""}, ("fail", "link_down")),
        ({"operstate": "lowerlayerdown"}, ("fail", "link_down")),
        ({"carrier": "0"}, ("fail", "link_down")),
        ({"duplex": "half"}, ("warn", "half_duplex")),
    ],
)
def test_one_interface(looker: Looker, said: dict[str, str], expected: tuple[str, str]) -> None:
    """Fails only where the only interface with a default route has no link."""
    interface(looker.root, "ens10f0", **said)
    assert looker.look() == expected


def test_no_default_route_and_no_sysfs_are_nothing_to_look_at(looker: Looker) -> None:
    """A container may hide either."""
    (looker.root / "sys/class/net").rename(looker.root / "away")
    assert looker.look() == ("skip", "no_interface")
    routes(looker)
    assert looker.look() == ("skip", "no_default_route")


def test_one_of_two_default_routes_without_a_link_warns(looker: Looker) -> None:
    """The other one still carries."""
    interface(looker.root, "eth1", operstate="down")
    routes(looker, "ens10f0", "eth1")
    assert looker.look() == ("warn", "link_down")


def test_what_the_site_names_must_be_there_and_up(looker: Looker) -> None:
    """A storage network beside the default route."""
    assert looker.look(interfaces=["storage0"]) == ("fail", "interface_missing")
    interface(looker.root, "storage0")
    assert looker.look(interfaces=["storage0"]) == ("pass", "link_up")
    interface(looker.root, "storage0", operstate="down")
    assert looker.look(interfaces=["storage0"]) == ("fail", "link_down")
    assert looker.look() == ("pass", "link_up")


def test_speed_against_the_site_and_against_this_boot(looker: Looker) -> None:
    """Less than the site expects fails, less than before warns, less by design is nothing."""
    interface(looker.root, "ens10f0", speed="10000")
    assert looker.look() == ("pass", "link_up")
    assert looker.look(min_mbps={"ens10f0": 100_000}) == ("fail", "speed_below_expected")
    assert looker.look(min_mbps={"default": 100_000}) == ("fail", "speed_below_expected")
    interface(looker.root, "ens10f0", speed="1000")
    assert looker.look() == ("warn", "speed_dropped")
    assert looker.look(min_mbps={"ens10f0": 1000}) == ("pass", "link_up")
    looker.reboot()
    assert looker.look() == ("pass", "link_up")


def test_mtu_against_the_site_and_against_what_lies_below(looker: Looker) -> None:
    """A VLAN on a bond on two cards: each is looked at."""
    assert looker.look(mtu={"ens10f0": 9000}) == ("fail", "mtu_below_expected")
    vlan = interface(looker.root, "bond0.12", mtu="9000")
    (vlan / "device").rmdir()
    (vlan / "lower_bond0").symlink_to("../bond0")
    bond = interface(looker.root, "bond0", mtu="1500")
    (bond / "device").rmdir()
    for name in ("eth1", "eth2"):
        interface(looker.root, name)
        (bond / f"lower_{name}").symlink_to(f"../{name}")
    routes(looker, "bond0.12")
    assert looker.look() == ("warn", "mtu_above_lower")
    for name in ("bond0", "eth1", "eth2"):
        interface(looker.root, name, mtu="9000")
    finding = looker.finding()
    assert finding.reason == "link_up"
    assert set(finding.evidence["interfaces"]) == {"bond0.12", "bond0", "eth1", "eth2"}


def test_guests_on_a_bridge_are_not_looked_at(looker: Looker) -> None:
    """Only what the bridge has of the machine itself."""
    bridge = interface(looker.root, "br0")
    (bridge / "device").rmdir()
    (bridge / "bridge").mkdir()
    interface(looker.root, "eth1")
    (interface(looker.root, "vnet7", duplex="half") / "device").rmdir()
    for name in ("eth1", "vnet7"):
        (bridge / f"lower_{name}").symlink_to(f"../{name}")
    routes(looker, "br0")
    finding = looker.finding()
    assert finding.reason == "link_up"
    assert set(finding.evidence["interfaces"]) == {"br0", "eth1"}


def test_roce_interfaces_are_looked_at_and_may_be_down(looker: Looker) -> None:
    """Whether their link is needed is the RDMA checks' to say; half duplex never is right. IPoIB is none of them."""
    for name, kind in (("roce0", "1"), ("ibs3", "32")):
        folder = device(looker.root, f"mlx5_{name}", ROCE, pci=f"0000:0{kind[0]}:00.0")
        (folder / f"device/net/{name}").mkdir(parents=True)
        interface(looker.root, name, type=kind, operstate="down", duplex="half")
    assert looker.look() == ("pass", "link_up")
    interface(looker.root, "roce0", operstate="up", duplex="half")
    assert looker.look() == ("warn", "half_duplex")
    interface(looker.root, "roce0", operstate="up", duplex="full")
    interface(looker.root, "ibs3", operstate="up", duplex="half")
    assert looker.look() == ("pass", "link_up")


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    """One card with statistics, looked at once."""
    made = Looker("ethernet_errors", tmp_path, monkeypatch)
    interface(made.root, "eth0", carrier_down_count="1", carrier_changes="2")
    routes(made, "eth0")
    stats(made, **dict.fromkeys((*LIMITS, "rx_packets", "tx_packets", "rx_dropped", "collisions"), 1000))
    assert made.look() == ("pass", "first_look")
    return made


def stats(looker: Looker, name: str = "eth0", **counts: object) -> None:
    """Set some counters."""
    write(looker.root / f"sys/class/net/{name}/statistics", {key: f"{count}\n" for key, count in counts.items()})


@pytest.mark.parametrize("name", LIMITS)
def test_each_counter_warns_above_its_own_rate(counting: Looker, name: str) -> None:
    """And only where it is a share of the traffic that anyone could feel."""
    limit = LIMITS[name][0]
    stats(counting, **{name: 1000 + limit})
    assert counting.look() == ("pass", "errors_low")
    stats(counting, **{name: 1001 + limit})
    assert counting.look() == ("warn", name)
    assert counting.look(warn_per_hour={name: limit + 1}) == ("pass", "errors_low")
    if LIMITS[name][1]:
        stats(counting, rx_packets=10**12, tx_packets=10**12)
        assert counting.look() == ("pass", "errors_low")


def test_drops_that_are_daily_bread_are_not_looked_at(counting: Looker) -> None:
    """Packets of a protocol that nobody listens to."""
    stats(counting, rx_dropped=10**9, collisions=10**9)
    assert counting.look() == ("pass", "errors_low")


@pytest.mark.parametrize("name", ["carrier_down_count", "carrier_changes"])
def test_flaps(counting: Looker, name: str) -> None:
    """Three within a day warn; kernels before 4.16 only count changes, two a flap."""
    card = counting.root / "sys/class/net/eth0"
    step = 1 if name == "carrier_down_count" else 2
    if step == 2:
        (card / "carrier_down_count").unlink()
    write(card, {name: f"{step * 3}\n"})
    assert counting.look() == ("pass", "errors_low")
    write(card, {name: f"{step * 4}\n"})
    assert counting.look() == ("warn", "link_flaps")
    assert counting.look(warn_flaps_per_day=0) == ("pass", "errors_low")
    assert counting.look(90_000) == ("pass", "errors_low")


def test_without_statistics_there_is_nothing_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel, or a copied tree."""
    looker = Looker("ethernet_errors", tmp_path, monkeypatch)
    assert looker.look() == ("skip", "no_counters")
